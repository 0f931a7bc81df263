"""`make links` in a fork: addresses, what is written where, and the cell that installs the kit."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest
import yaml
from nbformat import read
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output, writes

from cs336course import address, flow, links, pages
from cs336course.lessons import every
from cs336course.site.lesson import prepared
from cs336course.site.written import home
from cs336course.structure import _execution, _generated, _page
from cs336course.student import without_answers
from cs336kit.command import main

ROOT = Path(__file__).parents[2]
FIRST = Path("notebooks/00_first.ipynb")


@pytest.fixture
def fork(tmp_path, monkeypatch):
    """A clone with two lessons that have been run, as it is before anybody has named its repository."""
    for name in ("pyproject.toml", "CITATION.cff", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    pyproject, citation = tmp_path / "pyproject.toml", tmp_path / "CITATION.cff"
    # In a fork they name it already.
    before, _, rest = pyproject.read_text().partition("[project.urls]")
    pyproject.write_text(before + rest[rest.index("[project.scripts]") :] if rest else before)
    lines = citation.read_text().splitlines(keepends=True)
    citation.write_text("".join(line for line in lines if not line.startswith(("repository-code:", "url:"))))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notebooks").mkdir()
    for name, question in (("00_first", "Why?"), ("01_second", "How?")):
        result = new_output("execute_result", {"text/plain": "2"}, execution_count=2)
        cells = [
            new_markdown_cell(f"# {name[:2]} · {name[3:].capitalize()}\n\n**{question}**"),
            new_code_cell("import math", execution_count=1),
        ]
        cells += [new_code_cell("1 + 1", execution_count=2, outputs=[result]), new_code_cell("3", execution_count=None)]
        path = tmp_path / "notebooks" / f"{name}.ipynb"
        path.write_text(writes(new_notebook(cells=cells)), encoding="utf-8")
    return tmp_path


def test_addresses_follow_from_owner_and_name():
    here = links.of("Some-Body/the.course")
    assert here.repository == "https://github.com/Some-Body/the.course"
    assert here.colab(FIRST).endswith(".com/github/Some-Body/the.course/blob/main/notebooks/00_first.ipynb")
    assert here.binder(FIRST) == (
        "https://mybinder.org/v2/gh/Some-Body/the.course/main?urlpath=lab/tree/notebooks/00_first.ipynb"
    )
    assert here.unspoiled(FIRST) == "https://some-body.github.io/the.course/notebooks/00_first.html"
    # The pages of the repository that is named after its owner have no folder.
    assert links.of("Me/me.github.io").pages == "https://me.github.io"
    workflow = yaml.safe_load((ROOT / ".github/workflows/pages.yml").read_text())
    assert workflow[True]["push"]["branches"] == [links.BRANCH]


@pytest.mark.parametrize(
    "name", ["", "me", "me/", "/course", "me/a/b", "me/a b", "-me/a", "https://gitlab.com/me/a", "me/a\n"]
)
def test_what_is_no_repository_on_github_is_refused(name):
    with pytest.raises(
        ValueError, match=r"is not a repository on GitHub: write owner/name, as in make links REPO=owner"
    ):
        links.of(name)


def test_where_no_repository_is_known_there_are_no_links(fork):
    assert links.home(fork) is None and links.home(fork / "nowhere") is None
    first, texts = pages.generated(every(), FIRST)
    assert "Colab" not in first + home(every(), set()) and not any("pip" in text for text in texts)
    assert "make links REPO=owner/name" in links.said(None, FIRST)


def test_links_are_written_once_into_every_file_that_has_some(fork, capsys, monkeypatch):
    assert main(["lessons", "links", "me/course"]) == 0
    said = capsys.readouterr().out
    assert "written into pyproject.toml, CITATION.cff, 00_first.ipynb, 01_second.ipynb" in said
    here = links.of("me/course")
    assert links.home(fork) == here and "[project.scripts]" in (fork / "pyproject.toml").read_text()
    urls = tomllib.loads((fork / "pyproject.toml").read_text())["project"]["urls"]
    assert urls == {
        "Repository": here.repository, "Documentation": here.pages, "Issues": f"{here.repository}/issues",
    }  # fmt: skip
    citation = yaml.safe_load((fork / "CITATION.cff").read_text())
    assert (citation["repository-code"], citation["url"]) == (here.repository, here.pages)
    readme = (fork / "README.md").read_text()
    assert all(address in readme for address in (here.colab(FIRST), here.binder(FIRST), here.unspoiled(FIRST)))
    # The same once more changes nothing, and another name takes its place.
    before = {path: path.read_bytes() for path in fork.rglob("*") if path.is_file()}
    assert main(["lessons", "links", "me/course"]) == 0 and "unchanged" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in fork.rglob("*") if path.is_file()} == before
    monkeypatch.chdir(fork / "notebooks")
    assert main(["lessons", "links", "you/copy"]) == 0
    monkeypatch.chdir(fork)
    assert not [path for path in before if b"me/course" in path.read_bytes()]


def test_a_lesson_begins_with_its_links_and_a_cell_that_installs_the_kit(fork):
    address.write(["me/course"])
    notebook, here = read(FIRST, as_version=4), links.of("me/course")
    assert notebook.cells[0].source.endswith(" · ".join(here.opens(FIRST)))
    title, installs, imports, result, never_run, *_ = notebook.cells
    assert title.cell_type == "markdown" and installs.source == here.install() and not installs.outputs
    assert installs.metadata["jupyter"] == {"source_hidden": True} and "cellView" not in installs.metadata
    # The counts go on in order, also that of a result; what was never run stays so.
    assert [cell.execution_count for cell in (installs, imports, result, never_run)] == [1, 2, 3, None]
    assert result.outputs[0].execution_count == 3
    assert [cell.metadata["slideshow"]["slide_type"] for cell in (installs, imports)] == ["skip", "skip"]
    assert [*_generated(notebook, FIRST)] == [] and not any("import" in found for found in _page(notebook))
    assert not any("in order" in found for found in _execution({**notebook, "cells": notebook.cells[:4]}))
    # Students have the notebook alone, too, and no links to one with solutions.
    title, installs, *_ = without_answers(notebook.cells, [])
    assert installs["source"] == here.install() and "](http" not in title["source"]
    # The site needs no kit, and is what the third link leads to.
    page = json.loads(prepared(FIRST))["cells"]
    assert page[1]["source"] == ["import math"] and here.colab(FIRST) in page[0]["source"]
    assert links.UNSPOILED not in page[0]["source"] and here.colab(FIRST) in home(every(), set())


def test_the_cell_installs_the_kit_where_it_is_missing_and_does_nothing_elsewhere():
    class Shell:
        def run_line_magic(self, name, line):
            asked.append((name, line))

    asked = []
    code = compile(flow.parse(links.of("me/course").install()), "cell", "exec")
    exec(code, {"get_ipython": Shell})
    assert asked == []
    with pytest.MonkeyPatch.context() as missing:
        missing.setattr("builtins.__import__", _without_the_kit)
        exec(code, {"get_ipython": Shell})
    assert asked == [("pip", 'install -q "cs336kit[lessons] @ git+https://github.com/me/course"')]


def _without_the_kit(name, *rest):
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize("names", [[], ["me/course", "you/copy"]])
def test_one_repository_is_named(fork, names, capsys):
    assert main(["lessons", "links", *names]) == 2
    assert "name one repository on GitHub: make links REPO=owner/name" in capsys.readouterr().err
    assert links.home(fork) is None

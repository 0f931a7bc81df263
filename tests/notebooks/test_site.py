"""The site of a course of two lessons: folds, links, cards, and what is said when it cannot be built."""

import importlib
import inspect
import re

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output, writes
from site_pages import problems

from cs336kit import teach
from cs336kit.cli import main
from cs336kit.course import site
from cs336kit.course.pages import metadata
from cs336kit.course.site import names, pyodide, settings
from cs336kit.course.site.settings import as_rst, slug

# Sphinx's extensions use names that its next version but one will not have.
pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")

TEXT = (
    "# 00 · First\n\n**What is first?**\n\n[The claims](01_claims.ipynb) · [Map](01_claims.ipynb#Map-of-the-course)",
    "# 01 · Claims\n\n**Is it so?**",
)
CARD = "**The card** · two lines\n- half of $2^k$\n- the rest\n\n**Discuss**\n1. Why?"


def cell(code, tag="", *shown):
    """A code cell that has shown these."""
    outputs = [new_output("execute_result", data) for data in shown]
    return new_code_cell(code, metadata={"tags": [tag] if tag else []}, outputs=outputs)


def lessons(folder):
    """Two lessons with everything that the site treats in its own way."""
    figure, ax = teach.figures.axes()
    ax.plot([1, 2])
    drawn, _ = teach.figures.show(
        figure, alt="A line that rises from one to two, from left to right."
    )._repr_mimebundle_()
    still = {"text/html": '<div class="cs336kit-still"><b>0 01010</b></div>', "text/plain": "0 01010"}
    first = [
        cell("guess = ...", "prediction"),
        cell("teach.reveal(guess, of='x', counted=42)", "answer", {"text/plain": "forty-two"}),
        cell("secret = 42", "solution"),
        cell("draw()", "", drawn),
        cell('teach.explorers.bits(0.1, "fp16")', "", still),
        new_markdown_cell(CARD),
    ]
    for name, text, cells in (
        ("00_first", TEXT[0], first),
        ("01_claims", TEXT[1], [new_markdown_cell("## Map of the course")]),
    ):
        cells = [new_markdown_cell(text), *cells]
        for one, data in zip(cells, metadata(cells), strict=True):
            one.metadata = data
        (folder / f"{name}.ipynb").write_text(writes(new_notebook(cells=cells)), encoding="utf-8")


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A clone with two lessons, and something in the place of MathJax and Pyodide."""
    root = tmp_path_factory.mktemp("clone")
    (root / "notebooks").mkdir()
    (root / site.MATHJAX).parent.mkdir(parents=True)
    (root / site.MATHJAX).write_text("")
    (root / pyodide.PYODIDE).mkdir(parents=True)
    for name in pyodide.SHIPPED:
        (root / pyodide.PYODIDE / name).write_text("")
    (root / "CHANGELOG.md").write_text("# Changes\n")
    (root / "pages").mkdir()
    (root / "pages/planner.md").write_text("# The planner\n\n[first](notebooks/00_first.ipynb)\n")
    (root / "pages/explorers.md").write_text("# The explorers\n")
    (root / "pages/whole.html").write_text("<title>As it is</title>")
    lessons(root / "notebooks")
    return root


@pytest.fixture(scope="module")
def built(clone):
    """The site of that clone, with one room of the kit and its own pages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(names, "ROOMS", ("teach.explorers",))
        patch.setattr(site, "PAGES", clone / "pages")
        assert "pages" in site.build(clone / "out", clone)
    return clone / "out"


def test_every_link_leads_somewhere_and_nothing_comes_from_elsewhere(built):
    assert problems(built) == []


def test_links_that_lead_nowhere_and_foreign_hosts_are_seen(tmp_path):
    (tmp_path / "a.html").write_text(
        '<a href="b.html"></a><a href="#no"></a><a id="yes" href="#yes"></a><a href="https://x.org"></a>'
        '<script src="//x.org/a.js"></script><img src="data:,">'
    )
    assert [problem.split(" ", 2)[2].split(",")[0] for problem in problems(tmp_path)] == [
        "//x.org/a.js",
        "to b.html",
        "to #no",
    ]


def test_answers_and_solutions_are_folded_under_what_they_are(built):
    page = (built / "notebooks/00_first.html").read_text()
    folds = re.findall(r'<details class="fold"><summary>(.*?)</summary>(.*?)</details>', page, re.S)
    assert [name for name, _ in folds] == ["The answer", "The solution"]
    open_page = re.sub(r"<details.*?</details>", "", page, flags=re.S)
    for (_, inside), secret, beside in zip(folds, ("forty-two", "secret"), ("reveal", "guess"), strict=True):
        assert secret in inside and secret not in open_page and beside in open_page


def test_a_figure_is_shown_once_with_its_name_and_an_explorer_has_a_place(built):
    page = (built / "notebooks/00_first.html").read_text()
    assert page.count("data:image/svg+xml") == page.count('<img alt="A line that rises from one') == 1
    assert '<div class="cs336kit-explorer" data-explorer="bits"><div class="cs336kit-still">' in page
    assert '<a href="../explorers.html">' in page


def test_home_cards_and_papers_follow_from_the_clone(built):
    home, cards = ((built / f"{name}.html").read_text() for name in ("index", "cards"))
    assert "What is first?" in home and 'href="CHANGELOG.html"' in home and 'href="planner.html"' in home
    assert (built / "whole.html").read_text() == "<title>As it is</title>"
    assert not re.search(r"\{\w+\}", re.sub(r"<script.*?</script>", "", home, flags=re.S))
    assert "half of" in cards and "Discuss" not in cards and "two lines" in cards


def test_names_are_documented_where_they_are_used_from(built):
    page = (built / "api/teach.explorers.html").read_text()
    assert 'id="cs336kit.teach.explorers.bits"' in page and "BitExplorer" in page


@pytest.mark.parametrize("room", names.ROOMS)
def test_every_public_name_has_one_place(room):
    import types

    room = names._room(room)
    public = [name for name in dir(room) if not name.startswith("_")]
    there = [name for found in names.by_module(room).values() for name in found]
    values = {name: getattr(room, name) for name in getattr(room, "__all__", public)}
    ours = {n for n, v in values.items() if getattr(v, "__module__", "").startswith("cs336kit") or n.isupper()}
    assert len(there) == len({*there}) and {*there} == ours - {"TYPE_CHECKING"}
    # What a private module defines stands under its room.
    assert not any("._" in module for module in names.by_module(room))
    page = names.page(room)
    for module, found in names.by_module(room).items():
        about = as_rst((importlib.import_module(module).__doc__ or "").splitlines()[0])
        assert about in page and all(f"{module}.{name}" in page or f"{room.__name__}.{name}" in page for name in found)
    assert not any(isinstance(values[name], types.ModuleType) for name in there)


def test_a_docstring_means_what_it_says():
    assert as_rst("`a*b` is *not* |x|, a_ or `c`s\n- one") == "``a*b`` is \\*not\\* \\|x\\|, a\\_ or ``c``\\ s\n\n- one"
    assert slug(" Map of the course") == "Map-of-the-course"


def test_an_explorer_is_a_picture_with_its_name_until_python_runs():
    place = '<div class="cs336kit-explorer" data-explorer="bits"></div>'
    shown = pyodide.with_stills(f"# A\n\n{place}\nand")
    assert shown.startswith(f"# A\n\n{place[:-6]}<div class=") and shown.endswith("</div></div>\nand")
    assert 'tabindex="0" role="group" aria-label="bits">' in shown and pyodide.with_stills("# A") == "# A"


def test_a_constant_has_its_own_comment_or_none():
    def rewritten(kind, text):
        lines = text.splitlines()
        settings._rewrite(None, kind, "name", 3, None, lines)
        return lines

    assert rewritten("data", inspect.getdoc(int)) == [] and rewritten("function", "Of `x`.") == ["Of ``x``."]
    assert rewritten("data", "Of *x*.") == ["Of \\*x\\*."] and len(rewritten("function", inspect.getdoc(int))) > 1


def test_the_planners_page_has_a_menu_or_a_switch_where_the_command_has_one():
    options = {option["name"]: option for option in pyodide.offers()["options"]}
    assert options["largest_batch"]["switch"] and not options["tokens"]["switch"] and options["tokens"]["first"]
    assert not any(word in options for word in ("help", "json", "model"))
    assert options["precision"]["choices"] and options["accelerator"]["choices"] and not options["tokens"]["choices"]
    assert "%%" not in "".join(option["help"] for option in options.values())


def test_a_warning_of_sphinx_is_an_error_and_the_old_site_stays(built, clone, monkeypatch):
    monkeypatch.setattr(names, "ROOMS", ("teach.explorers",))
    monkeypatch.setattr(site, "PAGES", clone / "pages")
    paper = clone / "CONTRIBUTING.md"
    paper.write_text("# Contributing\n\n[nowhere](nowhere.md)\n")
    try:
        with pytest.raises(ValueError, match=r"CONTRIBUTING\.md:3.*nowhere\.md"):
            site.build(built, clone)
    finally:
        paper.unlink()
    assert (built / "index.html").is_file() and not [*clone.glob(".site-*")]


def test_what_cannot_be_is_said(tmp_path, clone, monkeypatch, capsys):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds something else than a site"):
        site.build(tmp_path, clone)
    with pytest.raises(ValueError, match=r"tex-svg-full\.js is missing.*make site"):
        site.build(tmp_path / "new", tmp_path)
    monkeypatch.setattr(site, "find_spec", lambda name: None)
    assert main(["lessons", "site", "--into", str(tmp_path / "new")]) == 2
    assert 'pip install "cs336kit[lab,site]"' in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.chdir(clone)
    assert main(["lessons", "site", "--into", str(tmp_path / "thesis.txt" / "new")]) == 2
    assert "cannot be read or written" in capsys.readouterr().err

"""The site of a course of two lessons: folds, links, cards, and what is said when it cannot be built."""

import importlib
import inspect
import json
import re
import zipfile
from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output, writes
from site_pages import problems

from cs336course import cells as kind
from cs336course import site
from cs336course.pages import metadata
from cs336course.site import names, pyodide, settings, written
from cs336course.site.lesson import prepared
from cs336course.site.settings import as_rst, slug
from cs336kit import teach
from cs336kit.command import main
from cs336kit.predict.grid import as_html

# Sphinx's extensions use names that its next version but one will not have.
pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")

TEXT = (
    "# 00 · First\n\n**What is first?**\n\n[The claims](01_claims.ipynb) · [Map](01_claims.ipynb#Map-of-the-course)",
    "# 01 · Claims\n\n**Is it so?**",
)
SOLUTION, ANSWER = "secret = 42", as_html(("a",), [("forty-two",), ("a sentence of its own",)], "<")
CARD = '**The card** · two lines\n- half of $2^k$\n- the "rest" -- all of it\n\n**Discuss**\n1. Why?'


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
        cell(
            "teach.reveal(guess, of='x', counted=42)",
            "answer",
            {"text/html": f"<details><summary>The answer</summary>\n{ANSWER}\n</details>", "text/plain": ""},
        ),
        cell(f"# Solution of 00.1: unfold\n### BEGIN SOLUTION\n{SOLUTION}\n### END SOLUTION", "solution"),
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
    (root / "pages/explorers.md").write_text("# The explorers\n\n(bits)=\n## Bits\n")
    lessons(root / "notebooks")
    return root


@pytest.fixture(scope="module")
def built(clone):
    """The site of that clone, with one room of the kit and its own pages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(names, "ROOMS", {"teach.explorers": "cs336kit.teach.explorers"})
        patch.setattr(site, "PAGES", clone / "pages")
        assert "pages" in site.build(clone / "out", clone)
    return clone / "out"


def test_every_link_leads_somewhere_and_nothing_comes_from_elsewhere(built):
    assert problems(built) == []


def test_links_that_lead_nowhere_and_foreign_hosts_are_seen(tmp_path):
    (tmp_path / "a.html").write_text(
        '<a href="b.html"></a><a href="#no"></a><a id="yes" href="#yes"></a><a href="https://x.org"></a>'
        '<script src="//x.org/a.js"></script><img src="data:,"><p id="yes"></p>'
    )
    assert [problem.split(" ", 2)[2].split(",")[0] for problem in problems(tmp_path)] == [
        "the id yes twice",
        "//x.org/a.js",
        "to b.html",
        "to #no",
    ]


def test_answers_and_solutions_are_folded_under_what_they_are(built):
    page = (built / "notebooks/00_first.html").read_text()
    folds = re.findall(r'<details class="fold"><summary>(.*?)</summary>(.*?)</details>', page, re.S)
    assert [name for name, _ in folds] == ["The code", "The solution"]
    open_page = re.sub(r"<details.*?</details>", "", page, flags=re.S)
    for (_, inside), secret in zip(folds, ("counted", "secret"), strict=True):
        assert secret in inside and secret not in open_page and "guess" in open_page
    # The answer folds itself.
    assert page.count("<summary>The answer</summary>") == 1 and "forty-two" not in open_page


def test_a_figure_is_shown_once_with_its_name_and_an_explorer_has_a_place(built):
    page = (built / "notebooks/00_first.html").read_text()
    assert page.count("data:image/svg+xml") == page.count('<img alt="A line that rises from one') == 1
    assert '<div class="cs336kit-explorer" data-explorer="bits"><div class="cs336kit-still">' in page
    assert '<a href="../explorers.html#bits">' in page


def test_home_cards_and_papers_follow_from_the_clone(built):
    home, cards = ((built / f"{name}.html").read_text() for name in ("index", "cards"))
    assert "What is first?" in home and 'href="CHANGELOG.html"' in home and 'href="planner.html"' in home
    assert not re.search(r"\{\w+\}", re.sub(r"<script.*?</script>", "", home, flags=re.S))
    assert "half of" in cards and "Discuss" not in cards and "two lines" in cards


def test_pages_say_what_was_written_and_offer_no_more_than_they_have(built):
    """What settings.SETTINGS asks of Sphinx and of its theme."""
    names, cards, lesson = (
        (built / f"{name}.html").read_text() for name in ("api/teach.explorers", "cards", "notebooks/00_first")
    )
    assert "sig-prename" not in names and names.count('href="#cs336kit.teach.explorers.bits"') == 1
    assert '<span class="pre">EIGHT</span>' in names, "defaults have their own words"
    assert "the &quot;rest&quot; -- all of it" in cards and '"enableMenu": false' in cards
    assert not re.search("Download this page|Fullscreen mode", lesson) and not [*built.glob("_sources/*")]


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
    ours = {n for n, v in values.items() if getattr(v, "__module__", "").startswith("cs336") or n.isupper()}
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


def test_a_signature_shows_no_address_and_no_factory():
    told = "(a=<factory>, b=<function f at 0x7f00>, c=<b>)", "None"
    assert settings._readable(None, "function", "f", None, None, *told) == ("(a=..., b=..., c=<b>)", "None")
    assert settings._readable(None, "class", "C", None, None, "()", None) == ("()", None)


def test_a_folded_cell_says_what_is_in_it_and_an_explorer_which_one_it_is(clone, tmp_path):
    cells = json.loads(prepared(clone / "notebooks/00_first.ipynb"))["cells"]
    folded = [(cell["metadata"]["tags"], cell["metadata"]["mystnb"]) for cell in cells if "mystnb" in cell["metadata"]]
    assert folded == [
        (["answer", "hide-input"], {"code_prompt_show": "The code"}),
        (["solution", "hide-cell"], {"code_prompt_show": "The solution"}),
    ]
    shown = {
        name: (kind.source(cell), cell["outputs"])
        for name in ("solution", "answer")
        for cell in cells
        if name in kind.tags(cell)
    }
    answer = shown["answer"][1][0]["data"]["text/html"]
    assert shown["solution"][0] == SOLUTION and answer.startswith("<details><summary>The answer")
    assert re.findall(r"nowrap;[^>]*>([^<]*)<", answer) == ["forty-two"]
    (still,) = (cell for cell in cells if "bits(" in kind.source(cell))
    shown = still["outputs"][0]["data"]
    assert shown["text/html"].startswith(
        '<div class="cs336kit-explorer" data-explorer="bits"><div class="cs336kit-still">'
    )
    assert shown["text/html"].endswith("page of explorers</a></p></div>") and shown["text/plain"]
    # One that no page has does not lead there, and what is no picture of an explorer is left as it is.
    path = tmp_path / "00_other.ipynb"
    outputs = [new_output("display_data", {"text/html": html}) for html in (shown["text/html"], "<b>4</b>")]
    path.write_text(writes(new_notebook(cells=[new_code_cell("teach.explorers.other(1)", outputs=outputs)])))
    first, second = (kind.joined(out["data"]["text/html"]) for out in json.loads(prepared(path))["cells"][0]["outputs"])
    assert first.startswith('<div class="cs336kit-explorer" data-explorer="other">') and second == "<b>4</b>"
    assert first.count("page of explorers") == 1, "of the one inside"


def test_home_begins_with_the_first_lesson_and_lists_what_there_is():
    lessons = [(Path(f"{n:02}_lesson.ipynb"), [new_markdown_cell(f"# {n:02} · A\n\n**Why?**")]) for n in (0, 1, 6, 21)]
    page = written.home(lessons, {"planner", "other", "TEACHING"})
    assert "begin with [00 Lesson](notebooks/00_lesson.ipynb)" in page
    found = [tree.split("```")[0].split() for tree in page.split(":caption: ")[1:]]
    assert found == [
        ["Look", "up", "planner", "cards", "words", "claims", "other"],
        ["Numbers", "and", "tensors", "notebooks/00_lesson", "notebooks/01_lesson"],
        ["Work", "and", "time", "notebooks/06_lesson"],
        ["Whole", "models,", "on", "many", "machines,", "for", "many", "users", "notebooks/21_lesson"],
        ["The", "kit", *(f"api/{room}" for room in names.ROOMS)],
        ["About", "TEACHING"],
    ]
    assert "- {doc}`planner`: name a model" in page and "- {doc}`other`\n" in page
    assert all(f"- {{doc}}`{name}`: {about}\n" in page for name, about in names.rooms().items())


def test_a_room_is_told_in_the_first_line_of_its_docstring():
    import cs336kit.lm

    told = names.rooms()
    assert told["api/lm"] == cs336kit.lm.__doc__.splitlines()[0] and all(told.values())
    lines = names.page(cs336kit.lm).splitlines()
    assert lines[:4] == ["lm", "==", "", ""] and lines[4] == as_rst(told["api/lm"]) and lines[-1]


def test_cards_stand_under_their_lessons_without_what_follows_them():
    lessons = [(Path("00_first.ipynb"), [new_markdown_cell("# 00 · A"), new_markdown_cell(CARD)])]
    lessons += [(Path("01_second.ipynb"), [new_markdown_cell("# 01 · B")])]
    *_, card = written.cards(lessons).split("\n\n## ")
    assert card == "[00 First](notebooks/00_first.ipynb)\n\ntwo lines\n\n" + CARD.split("\n", 1)[1].split("\n\n")[0]


def test_a_site_replaces_a_site_or_nothing_and_its_pages_are_counted(clone, tmp_path, monkeypatch):
    def run(source, into):
        for name, size in (
            ("index.html", 10**6),
            ("api/lm.html", 10**6),
            ("_static/page.html", 10**6),
            (".buildinfo", 0),
        ):
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            (into / name).write_bytes(b" " * size)

    monkeypatch.setattr(site, "write_source", lambda source, root: None)
    monkeypatch.setattr(site, "run_sphinx", run)
    into = tmp_path / "a" / "new" / "my site"
    said = f"{into}: 2 pages, 3 MB. To view it: python -m http.server -b 127.0.0.1 -d '{into}'"
    assert site.build(into, clone) == site.build(into, clone) == said
    empty = tmp_path / "empty"
    empty.mkdir()
    assert site.build(empty, clone).startswith(f"{empty}: 2 pages")
    (tmp_path / "file").touch()
    for other in (tmp_path / "file", tmp_path):
        with pytest.raises(ValueError, match="contains something other than a site"):
            site.build(other, clone)


def test_a_page_ships_what_it_loads_and_says_how_much_that_is(clone, tmp_path):
    (clone / pyodide.PYODIDE / pyodide.LOADED[0]).write_bytes(b" " * 1000)
    (tmp_path / "explorers.md").write_text(
        '# The explorers\n\n<div class="cs336kit-explorer" data-explorer="bits"></div>\n'
    )
    for _ in range(2):
        pyodide.ship(tmp_path, clone)
    folder = tmp_path / "_static" / "pyodide"
    assert {path.name for path in folder.iterdir()} == {*pyodide.SHIPPED, "kit.zip", "offers.json"}
    told = json.loads((folder / "offers.json").read_text())
    assert told["bytes"] == 1000 + (folder / "kit.zip").stat().st_size and told["models"] and told["options"]
    assert "cs336kit-still" in (tmp_path / "explorers.md").read_text()
    # The zero of zip's clock: files of the same content are the same file, whenever they were packed.
    packed = zipfile.ZipFile(folder / "kit.zip").infolist()
    assert {entry.date_time for entry in packed} == {(1980, 1, 1, 0, 0, 0)}
    (clone / pyodide.PYODIDE / pyodide.LOADED[0]).write_text("")
    (tmp_path / "explorers.md").unlink()
    pyodide.ship(tmp_path / "other", clone)
    assert not (tmp_path / "other" / "explorers.md").exists()


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


@pytest.mark.proof
def test_a_warning_of_sphinx_is_an_error_and_the_old_site_stays(built, clone, monkeypatch):
    monkeypatch.setattr(names, "ROOMS", {"teach.explorers": "cs336kit.teach.explorers"})
    monkeypatch.setattr(site, "PAGES", clone / "pages")
    paper = clone / "CONTRIBUTING.md"
    paper.write_text("# Contributing\n\n[nowhere](nowhere.md)\n")
    try:
        with pytest.raises(ValueError, match=r"CONTRIBUTING\.md:3.*nowhere\.md") as caught:
            site.build(built, clone)
        # And nothing else, although it is the second site of this process.
        assert len(str(caught.value).splitlines()) == 2
    finally:
        paper.unlink()
    assert (built / "index.html").is_file() and not [*clone.glob(".site-*")]


def test_what_cannot_be_is_said(tmp_path, clone, monkeypatch, capsys):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="contains something other than a site"):
        site.build(tmp_path, clone)
    with pytest.raises(ValueError, match=r"tex-svg-full\.js, which shows the formulas, is missing.*make site"):
        site.build(tmp_path / "new", tmp_path)
    monkeypatch.setattr(site, "find_spec", lambda name: None)
    assert main(["lessons", "site", "--into", str(tmp_path / "new")]) == 2
    assert 'pip install "cs336kit[lab,site]"' in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.chdir(clone)
    assert main(["lessons", "site", "--into", str(tmp_path / "thesis.txt" / "new")]) == 2
    assert "cannot be read or written" in capsys.readouterr().err

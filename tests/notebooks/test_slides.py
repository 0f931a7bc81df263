"""The lessons as slides, without a browser: what is on which slide, what is left out, and what the speaker is told."""

import re
import sys
from urllib.parse import urlsplit

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from cs336kit.cli import main
from cs336kit.course import cells as kind
from cs336kit.course import lessons, pages, roles, slide_cells, slides

TABLE = (
    "<table><thead><tr><th>n</th></tr></thead>\n<tbody>\n"
    + "\n".join(f"<tr><td>row {i}</td></tr>" for i in range(40))
    + "</tbody></table>"
)
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="{}pt" height="{}pt"></svg>'


def text(source, *tags):
    return new_markdown_cell(source, metadata={"tags": [*tags]})


def code(source, *tags, **data):
    outputs = [new_output("display_data", {f"{k.replace('_', '/')}": v for k, v in data.items()})] if data else []
    return new_code_cell(source, metadata={"tags": [*tags]}, outputs=outputs)


def figure(width, height):
    drawn = {"image/svg+xml": SVG.format(width, height), "text/html": '<img alt="It rises." style="x" src="data:,">'}
    return new_code_cell("draw()", outputs=[new_output("display_data", drawn | {"text/plain": "Figure"})])


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A clone with one small lesson, and with npm's packages, all empty."""
    monkeypatch.chdir(tmp_path)
    for name, files in slides.SHIPPED.items():
        for file in (*files, "package.json"):
            (tmp_path / "node_modules" / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "node_modules" / name / file).touch()
    cells = [
        text("# 09 · A toy\n\n**Why six?**\n\n5 minutes, 8 more for exercises · no GPU"),
        code("import torch"),
        text("A word in private."),
        text("## 1 · Begin\n\nSee [another](08_other.ipynb#here).\n\n**It is** $x^2$."),
        code("x = 'public'", text_html=TABLE),
        text("### Exercise 09.1 ★ 8 min · build it"),
        code("def mine():\n    return ...", "exercise", text_plain="waiting"),
        code("secret = 2", "solution", text_plain="revealed"),
        text("**Discuss**\n- Why so?"),
        text("## Further"),
        code("beyond()"),
    ]
    (tmp_path / "notebooks").mkdir()
    nbformat.write(new_notebook(cells=cells), tmp_path / "notebooks" / "09_toy.ipynb")
    return tmp_path


def test_a_deck_says_all_that_is_core_and_asks_no_other_host(course, capsys):
    assert main(["lessons", "slides", "9"]) == 0
    assert "09 Toy" in capsys.readouterr().out
    page = (course / "build/slides/09_toy.html").read_text()
    assert "Why six?" in page and "public" in page and "def</span>" in page.replace('<span class="k">', "")
    for left_out in ("secret", "revealed", "waiting", "beyond", "5 minutes", "import</span>"):
        assert left_out not in page.replace('<span class="kn">', "")
    assert 'href="08_other.html"' in page
    listed = (course / "build/slides/index.html").read_text()
    assert 'href="09_toy.html"' in listed and "Why six?" in listed
    for html in (page, listed):
        asked = re.findall(r"<(?!a\b)[^>]*?\b(?:src|href)=\"([^\"]*)\"", html)
        assert asked and {urlsplit(url).netloc for url in asked} == {""}
        assert {urlsplit(url).scheme for url in asked} <= {"", "data"} and "import " not in html.split("<main")[0]
        for url in asked:
            assert url.startswith("data:") or (course / "build/slides" / url).exists()
    styles = (course / "build/slides/slides.css").read_text()
    used, defined = re.findall(r"var\((--\w+)\)", styles), re.findall(r"(--\w+):", styles)
    assert "url(" not in styles and f"--code: {roles.CODE}px" in styles and {*used} <= {*defined}


def test_the_speaker_is_told_the_prose_the_minutes_and_what_to_discuss(course):
    page = slide_cells.notebook(course / "notebooks/09_toy.ipynb")
    notes = [cell.source for cell in page.cells if cell.metadata.slideshow.slide_type == "notes"]
    assert notes == [
        "**Minute 0 of 1**, and 0 of 8 minutes of exercises.\n\nA word in private.\n\n**Discuss**\n- Why so?",
        "**Minute 0 of 1**, and 0 of 8 minutes of exercises.\n\nSee [another](08_other.html).",
    ]


def test_no_deck_of_the_course_gives_a_solution_or_verdict_away_and_each_asks_its_question():
    for path, cells in lessons.every():
        told = slide_cells.notebook(path).cells
        first = [cell.source for cell in told if cell.metadata.slideshow.slide_type != "notes"][:2]
        shown = {line for cell in told for line in cell.source.splitlines()}
        assert first == [kind.source(cells[0]).splitlines()[0], f"**{pages.question(cells)}**"]
        assert any(line.startswith("**Discuss**") for line in shown) and pages.FURTHER not in shown
        kept, secret = set(), set()
        for cell in cells:
            given_away = {"solution", "verdict"} & {*kind.tags(cell)}
            (secret if given_away else kept).update(kind.source(cell).splitlines())
        assert secret - kept and not (secret - kept) & shown


def parts(cell):
    return [(roles.code_of(part), len(part["outputs"])) for part in slide_cells.parts(cell)]


def test_what_does_not_fit_below_its_code_has_a_slide_of_its_own():
    assert parts(figure(576, 200)) == [("draw()", 1)]
    assert parts(figure(576, 500)) == [("draw()", 0), ("", 1)]
    assert parts(code("x", text_plain="y\n" * 30)) == [("x", 0), ("", 1)]
    assert parts(code("x", "exercise", text_plain="y\n" * 30)) == [("x", 0)]
    apart = list(slide_cells.parts(code("x", text_html=TABLE)))[1:]
    html = [part["outputs"][0]["data"]["text/html"] for part in apart]
    assert len(html) > 1 and all("<thead>" in one and one.endswith("</table>") for one in html)
    assert re.findall(r"row \d+", "".join(html)) == [f"row {i}" for i in range(40)]
    assert all(roles.tall(part) <= roles.ROOM for part in apart)


@pytest.mark.parametrize(
    ("size", "drawn"), [((576, 200), (960, 333)), ((576, 500), (735, 638)), ((900, 200), (1168, 260))]
)
def test_figures_are_as_large_as_their_slide_allows(size, drawn):
    *_, last = slide_cells.parts(figure(*size))
    assert f'alt="It rises." style="width:{drawn[0]}px;height:{drawn[1]}px"' in last["outputs"][0]["data"]["text/html"]


def test_text_is_larger_where_little_is_said():
    assert roles.magnified([code("x = 1")]) == max(roles.LARGER)
    assert roles.magnified([code("x" * 88)]) == 1 == roles.magnified([code("x\n" * 15, text_plain="y\n" * 6)])
    assert roles.magnified([figure(576, 100)]) == 1


def test_a_fragment_waits_only_below_something_that_is_seen():
    cells = [text("# 09 · A"), code("import torch"), code("a"), text("## 1 · B"), code("c"), code("d"), text("**e.**")]
    assert roles.roles(cells) == ["slide", "skip", "subslide", "slide", "-", "fragment", "fragment"]


def test_what_ends_with_a_colon_stands_above_the_code_that_it_announces_if_one_slide_holds_both():
    def below(said, *code_lines):
        first, then = (code("\n".join(["x"] * count)) for count in code_lines)
        return roles.roles([text("# 09 · A"), code("import torch"), first, text(said), then])[3:]

    assert below("> **Trap.** See:", 10, 10) == ["subslide", "fragment"]
    assert below("> **Trap.** See.", 10, 10) == ["fragment", "subslide"]
    assert below("> **Trap.** See:", 10, 4) == ["fragment", "fragment"]
    assert below("> **Trap.** See:", 10, 16) == ["fragment", "subslide"]


def test_the_readers_own_guesses_are_on_no_slide():
    cells = [
        text("# 09 · A"),
        code("import torch"),
        code("a"),
        code("teach.calibration()", text_plain="There are none."),
    ]
    assert roles.roles(cells) == ["slide", "skip", "subslide", "skip"]


def test_what_cannot_be_is_said_in_a_sentence(course, capsys, monkeypatch):
    def said(*arguments):
        assert main(["lessons", "slides", *arguments]) == 2
        return capsys.readouterr().err

    assert "no lesson '44' in notebooks; there are 09_toy" in said("44")
    (course / "build").write_text("in the way")
    assert "build" in (err := said()) and "cannot be read or written" in err
    (course / "build").unlink()
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "nbconvert", None)
        assert said() == 'The slides need nbconvert: pip install -c constraints.txt -e ".[site]"\n'
    (course / "node_modules/mathjax/package.json").unlink()
    assert said() == "The slides ship with mathjax, which are not in node_modules/: make slides installs them.\n"

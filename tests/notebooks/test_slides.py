"""The lessons as slides, without a browser: what is on which slide, what is left out, and what the speaker is told."""

import re
import shutil
import sys
from pathlib import Path
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


def text(source, *tags):
    return new_markdown_cell(source, metadata={"tags": [*tags]})


def code(source, *tags, **data):
    outputs = [new_output("display_data", {f"{k.replace('_', '/')}": v for k, v in data.items()})] if data else []
    return new_code_cell(source, metadata={"tags": [*tags]}, outputs=outputs)


def figure():
    drawn = {"image/svg+xml": "<svg></svg>", "text/html": '<img alt="It rises." src="data:,">'}
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
        new_code_cell("1 + 3", outputs=[new_output("execute_result", {"text/plain": "4"}, execution_count=3)]),
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
    for _ in range(2):
        assert main(["lessons", "slides", "9"]) == 0
        assert "09 Toy" in capsys.readouterr().out
    assert "The slides of 09 Toy are written" in slides.write(["9", "9"])
    page = (course / "build/slides/09_toy.html").read_text()
    assert "Why six?" in page and "public" in page and "def</span>" in page.replace('<span class="k">', "")
    for left_out in ("secret", "revealed", "waiting", "beyond", "5 minutes", "import</span>", "Prompt"):
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
    assert "url(" not in styles and {*used} - {*defined} == {"--by"}  # which slides.js defines


def test_the_speaker_is_told_the_prose_the_minutes_and_what_to_discuss(course):
    page = slide_cells.notebook(course / "notebooks/09_toy.ipynb")
    nbformat.validate(page)
    assert (page.nbformat, page.nbformat_minor) == (4, 5) and page.metadata.title == "09 Toy · slides"
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


def test_a_heading_that_stands_alone_opens_its_part_and_every_slide_says_where_it_is():
    cells = [text("# 09 · A"), code("import torch"), text("Private."), text("## 1 · One"), text("Prose.")]
    cells += [text("## 2 · Two"), code("x = 1"), text("**Discuss**\n- So?")]
    told = [cell for cell in slide_cells._told(cells, cells, "09 Toy") if cell["metadata"]["slideshow"].get("data")]
    assert [(cell["source"], *cell["metadata"]["slideshow"]["data"].values()) for cell in told] == [
        ("# 09 · A", "09 Toy", "opening"),
        ("## 1 · One", "09 Toy  ·  1 · One", "opening"),
        ("## 2 · Two", "09 Toy  ·  2 · Two", ""),
        ("**Discuss**\n- So?", "09 Toy  ·  2 · Two", ""),
    ]


def test_the_speaker_knows_how_many_minutes_have_passed():
    lesson = [text("# 09 · A"), text("word " * 360), text("### Exercise 09.1 ★ 8 min · build it"), text("## 2 · B")]
    lesson += [text("word " * 180), text("### Exercise 09.2 ★ 5 min · decide")]
    assert slide_cells._minutes(lesson) == "**Minute 0 of 3**, and 0 of 13 minutes of exercises."
    assert slide_cells._minutes(lesson, "## 2 · B") == "**Minute 2 of 3**, and 8 of 13 minutes of exercises."


def test_a_heading_and_what_follows_it_are_pieces_and_a_list_is_one():
    def pieces(source):
        return [piece["source"] for piece in slide_cells.parts(text(source))]

    assert pieces("## 1 · A\nand more\n\nB\nc") == ["## 1 · A", "and more", "B\nc"] and pieces("# 09 · A") == [
        "# 09 · A"
    ]
    assert pieces("- one\n- two\n\n- three") == ["- one\n- two\n\n- three"]


def test_a_table_is_cut_into_parts_of_the_same_number_of_rows():
    def rows(count, word="y"):
        (output,) = code("x", text_html=f"<table><tbody>{f'<tr><td>{word}</td></tr>' * count}</tbody></table>").outputs
        return ["".join(part["data"]["text/html"]).count("<tr>") for part in slide_cells._rows_apart(output)]

    assert (rows(18), rows(19), rows(37)) == ([18], [10, 9], [13, 13, 11])
    # A row that breaks counts for its lines.
    assert rows(10, "y" * 81) == [5, 5]


def parts(cell):
    return [(roles.code_of(part), len(part["outputs"])) for part in slide_cells.parts(cell)]


def test_what_does_not_fit_below_its_code_has_a_slide_of_its_own():
    assert parts(figure()) == [("draw()", 1)]
    assert parts(figure() | {"source": "draw(\n\n\n)"}) == [("draw(\n\n\n)", 0), ("", 1)]
    assert parts(code("x", text_plain="y\n" * 30)) == [("x", 0), ("", 1)]
    assert parts(code("x", "exercise", text_plain="y\n" * 30)) == [("x", 0)]
    apart = list(slide_cells.parts(code("x", text_html=TABLE)))[1:]
    html = [part["outputs"][0]["data"]["text/html"] for part in apart]
    assert len(html) > 1 and all("<thead>" in one and one.endswith("</table>") for one in html)
    assert re.findall(r"row \d+", "".join(html)) == [f"row {i}" for i in range(40)]
    assert all(roles.tall(part) <= roles.ROOM for part in apart)
    assert parts(code("x", text_html='<img alt="It rises." src="data:,">' + TABLE)) == [("x", 0), ("", 1)]


LINES = {
    "prose": (text("x" * 80 + "\n\ntwo\nthree"), 3),
    "prose that breaks": (text("x" * 81), 2),
    "code": (code("x = 1\ny = 2"), 2),
    "code that prints": (code("x", text_plain="a\nb\n"), 3),
    "a table": (code("x", text_html=TABLE), 1 + 41),
    "a figure": (figure(), 1 + 15),
    "a figure above a table": (code("x", text_html='<img alt="It rises." src="data:,">' + TABLE), 1 + 15 + 41),
    "an exercise that waits": (code("x", "exercise", text_plain="a"), 1),
}


@pytest.mark.parametrize("name", LINES)
def test_a_cell_takes_the_lines_that_are_seen(name):
    cell, lines = LINES[name]
    assert roles.tall(cell) == lines


def test_a_slide_has_15_lines_of_code_and_18_of_everything():
    def roles_of(*cells):
        return roles.roles([text("# 09 · A"), code("import torch"), text("## 1 · B"), *cells])[3:]

    assert roles_of(code("x\n" * 8), code("x\n" * 7)) == ["-", "fragment"]
    assert roles_of(code("x\n" * 8), code("x\n" * 8)) == ["-", "subslide"]
    # The heading and the code take a line each.
    assert roles_of(code("x", text_plain="y\n" * 16)) == ["-"]
    assert roles_of(code("x", text_plain="y\n" * 17)) == ["subslide"]


def test_what_stands_on_a_slide_by_its_first_letters():
    shown = ["> A trap.", "**Bold.**", "- item", "$$x$$", "# Title", "### Heading", "| a | b |", "1. first"]
    assert all(map(roles.on_slide, shown)) and not any(map(roles.on_slide, ["A word.", "*so*", "-1 is", "2. second"]))


def test_a_fragment_waits_only_below_something_that_is_seen():
    cells = [text("# 09 · A"), code("import torch"), code("a"), text("## 1 · B"), code("c"), code("d"), text("**e.**")]
    assert roles.roles(cells) == ["slide", "skip", "subslide", "slide", "-", "fragment", "fragment"]
    # Also where there is no title.
    assert roles.roles([code("import torch"), code("a"), code("b")]) == ["skip", "-", "fragment"]
    assert roles.roles([code("import torch"), code("x\n" * 16)]) == ["skip", "-"]


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
    for old, code in (("mine", 2), ("slides", 0)):
        folder = course / old
        folder.mkdir()
        (folder / "index.html").write_text("my page")
        if old == "slides":
            (folder / "slides.css").touch()
        assert main(["lessons", "slides", "--into", str(folder)]) == code
        assert ((folder / "index.html").read_text() == "my page") == bool(code)
    assert "has an index.html that is not of slides" in capsys.readouterr().err
    shutil.copy(course / "notebooks/09_toy.ipynb", course / "notebooks/10_toy.ipynb")
    assert "The slides of 2 lessons are written" in slides.write([])
    (course / "notebooks/10_toy.ipynb").unlink()
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "nbconvert", None)
        assert said() == 'The slides need nbconvert: pip install -c constraints.txt -e ".[site]"\n'
    (course / "node_modules/mathjax/package.json").unlink()
    assert said() == "The slides come with mathjax, missing from node_modules/: make slides installs what is missing.\n"


def test_outputs_that_leave_their_code_stay_together_if_one_slide_holds_them():
    def printed(*counts):
        cell = code("x")
        cell.outputs = [new_output("stream", text="y\n" * count) for count in counts]
        return parts(cell)

    assert printed(9, 8) == [("x", 2)] and printed(9, 9) == [("x", 0), ("", 2)]
    assert printed(9, 10) == [("x", 0), ("", 1), ("", 1)]


def test_a_slide_ends_where_the_next_cell_would_run_over():
    def roles_of(*cells):
        return roles.roles([code("import torch"), *cells])[1:]

    # Without a heading, too: 8 + 7 lines are 15.
    assert roles_of(code("x\n" * 8), code("x\n" * 7)) == ["-", "fragment"]
    # The trap and the code it announces need not hold what comes after.
    below = roles_of(code("x\n" * 7), text("> See:"), code("y\n" * 4), code("z\n" * 9))
    assert below == ["-", "fragment", "fragment", "subslide"]


def test_a_page_lists_the_decks_that_are_there_by_part_with_their_minutes():
    cells = [text("# 06 · A toy\n\n**Why?**"), text("word " * 540)]
    page = slides._listing([(Path(f"{number}_toy.ipynb"), cells) for number in ("05", "06", "09")])
    order = [page.index(part) for part in ("Numbers and tensors", "05_toy.html", "Work and time", "06_toy", "09_toy")]
    assert order == sorted(order) and "Training" not in page and page.count("3 min") == 3 and "Why?" in page


def test_the_colors_of_code_leave_the_page_its_background():
    colors = slides._colors()
    assert ".highlight .k" in colors and ".dark .highlight .k" in colors
    assert not re.search(r"^(?:\.dark )?\.highlight *\{[^}]*background", colors, re.M)

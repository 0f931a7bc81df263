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
    assert "url(" not in styles and f"--code: {roles.CODE}px" in styles and {*used} <= {*defined}


def test_the_style_sheet_has_the_lengths_that_are_counted_with():
    root, larger, large, *_ = slides._lengths().splitlines()
    pixels = {"width": 1280, "height": 720, "side": 56, "top": 28, "bottom": 44, "text": 26, "code": 21, "printed": 20}
    pixels |= {"table": 22, "dense": 18, "gap": 10, "row": 3.5, "box": 10, "inset": 14, "h1": 52, "h2": 38, "h3": 32}
    assert root == f":root {{ {''.join(f'--{name}: {size}px; ' for name, size in pixels.items())}--leading: 1.35; }}"
    assert (
        'data-size="1.3"' in larger and "--text: 33.8px; --code: 27.3px; --printed: 26.0px; --table: 28.6px;" in larger
    )
    assert 'data-size="1.15"' in large and "--text: 29.9px;" in large and "--printed: 23.0px; --table: 25.3px;" in large


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
        ("## 2 · Two", "09 Toy  ·  2 · Two", "1.3"),
        ("**Discuss**\n- So?", "09 Toy  ·  2 · Two", "1.3"),
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
    def rows(count):
        (output,) = code(
            "x", text_html=f"<table><tbody>{''.join(f'<tr><td>{i}</td></tr>' for i in range(count))}</tbody></table>"
        ).outputs
        return ["".join(part["data"]["text/html"]).count("<tr>") for part in slide_cells._rows_apart(output)]

    # Smaller letters: a row takes 8 + 18 · 1.35 = 32.3 pixels, and 19 of them with the space around 623.7 of 648.
    assert (rows(19), rows(20), rows(30)) == ([19], [10, 10], [15, 15])
    # With 15 in a hundred to spare: 35 rows take 1314 pixels, which is three slides.
    assert (rows(34), rows(35)) == ([17, 17], [12, 12, 11])


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


def table(*rows):
    return "<table>" + "".join(f"<tr><td>{row}</td></tr>" for row in rows) + "</table>"


#: A line of prose in letters of 26 pixels, and 10 around every block.
LINE = 26 * 1.35
HEIGHTS = {
    "a line of prose": (text("x" * 77), LINE + 10),  # letters are 0.58 as wide as high: 77 take 1162 pixels of 1168
    "one that wraps": (text("x" * 78), 2 * LINE + 10),
    "lines of a paragraph are joined": (text("one\ntwo"), LINE + 10),
    "but for two blanks": (text("one  \ntwo"), 2 * LINE + 10),
    "paragraphs": (text("one\n\ntwo\n\n\nthree"), 3 * (LINE + 10)),
    "items": (text("- one\n- two"), 2 * (LINE + 10)),
    "numbered items": (text("1. one\n2. two"), 2 * (LINE + 10)),
    "a title": (text("# One"), 52 * 1.35 + 10),
    "a heading": (text("## One\nand"), 38 * 1.35 + 10),
    "a heading below it": (text("### One"), 32 * 1.35 + 10),
    "a heading of two lines": (text("# " + "x" * 38), 2 * 52 * 1.35 + 10),
    "an address and marks are not seen": (text("[" + "x" * 60 + "](a_long_address) **`and`** $\\frac$"), LINE + 10),
    "a formula": (text("$$x$$"), 2.5 * LINE + 2 * 10),
    "a table in prose": (text("| a |\n|---|\n| 1 |\n| 2 |"), 3 * (22 * 1.35 + 7 + 1) + 10),
    "code": (code("x = 1\ny = 2"), 2 * 21 * 1.35 + 2 * 10 + 10),
    "code that prints": (code("x", text_plain="a\nb\n"), 21 * 1.35 + 30 + 2 * 20 * 1.35 + 10),
    "96 letters of a typewriter fill a line": (code("x", text_plain="y" * 96), 21 * 1.35 + 30 + 20 * 1.35 + 10),
    "97 take two": (code("x", text_plain="y" * 97), 21 * 1.35 + 30 + 2 * 20 * 1.35 + 10),
    "a table": (code("x", text_html=table("a", "b")), 21 * 1.35 + 30 + 2 * (7 + 1 + 22 * 1.35) + 10),
    "a row of nine tenths": (code("x", text_html=table("y" * 82)), 21 * 1.35 + 30 + 7 + 1 + 22 * 1.35 + 10),
    "a row that breaks": (code("x", text_html=table("y" * 83)), 21 * 1.35 + 30 + 7 + 1 + 2 * 22 * 1.35 + 10),
    "one that breaks twice": (code("x", text_html=table("y" * 110)), 21 * 1.35 + 30 + 7 + 1 + 3 * 22 * 1.35 + 10),
    "a long table, smaller": (code("x", text_html=table(*range(17))), 21 * 1.35 + 30 + 17 * (7 + 1 + 18 * 1.35) + 10),
    "a figure": (figure(576, 150), 21 * 1.35 + 30 + 150 / 0.75 * 1.25 + 10),
    "an exercise that waits": (code("x", "exercise", text_plain="a"), 21 * 1.35 + 30),
}


@pytest.mark.parametrize("name", HEIGHTS)
def test_heights_follow_from_the_sizes_of_letters(name):
    cell, pixels = HEIGHTS[name]
    assert roles.tall(cell) == pytest.approx(pixels)


def test_a_table_is_set_smaller_where_it_would_run_over():
    def size(rows, beside=""):
        (output,) = code("x", text_html=table(*range(rows)) + beside).outputs
        return roles.table_size(output)

    # A row takes 8 + 22 · 1.35 pixels of 648, and a figure of 240 takes 300, with 10 around each.
    assert (size(16), size(17)) == (22, 18)
    drawn = '<svg width="320" height="240"></svg>'
    assert (size(8, drawn), size(9, drawn)) == (22, 18)


def test_a_figure_has_the_pixels_of_its_points():
    (points,), (pixels,) = figure(576, 150).outputs, code("x", text_html='<svg width="96" height="48"></svg>').outputs
    assert roles.figure_size(points) == (768, 200) and roles.figure_size(pixels) == (96, 48)
    assert roles.figure_size(code("x", text_plain="4").outputs[0]) is None
    # A figure that stands alone is as large as its slide.
    assert roles.enlarged((768, 200), by=9) == (1168, pytest.approx(200 * 1168 / 768))
    assert roles.enlarged((100, 200), by=9) == (319, 638) and roles.enlarged((100, 200), room=110) == (50, 100)


@pytest.mark.parametrize(
    ("cells", "larger"),
    [
        # 21 · 0.605 pixels a letter and 14 at each side of code: 68 letters have room at 1.3 times the size, 77 at 1.15.
        *((code("x" * n), by) for n, by in ((68, 1.3), (69, 1.15), (77, 1.15), (78, 1))),
        # A line of code is 28.35 pixels high, and 30 stand around it: 12 lines at 1.3² times the height, 16 at 1.15².
        *((code("x\n" * n), by) for n, by in ((12, 1.3), (13, 1.15), (16, 1.15), (17, 1))),
        # Rows have letters of 22 · 0.58 pixels.
        *((code("x", text_html=table("y" * n)), by) for n, by in ((70, 1.3), (71, 1.15), (79, 1.15), (80, 1))),
    ],
)  # fmt: skip
def test_text_is_as_large_as_its_slide_allows(cells, larger):
    assert roles.magnified([cells]) == larger


def test_a_slide_has_15_lines_and_648_pixels():
    def roles_of(*cells):
        return roles.roles([text("# 09 · A"), code("import torch"), text("## 1 · B"), *cells])[3:]

    assert roles_of(code("x\n" * 8), code("x\n" * 7)) == ["-", "fragment"]
    assert roles_of(code("x\n" * 8), code("x\n" * 8)) == ["-", "subslide"]
    # The heading takes 61.3 pixels, a line of code 58.35, and 19 lines that are printed 27 each and 10.
    assert roles_of(code("x", text_plain="y\n" * 19)) == ["-"] and roles_of(code("x", text_plain="y\n" * 20)) == [
        "subslide"
    ]


def test_a_slide_is_full_to_its_last_pixel():
    def role_of(points):
        return roles.roles([text("# 09 · A"), code("import torch"), text("## 1 · B"), figure(100, points)])[-1]

    # The heading takes 61.3 pixels, the line of code 58.35, and the figure 10 and 1.25 / 0.75 for each point.
    assert (role_of(310.7), role_of(311.1)) == ("-", "subslide")


def test_what_stands_on_a_slide_by_its_first_letters():
    shown = ["> A trap.", "**Bold.**", "- item", "$$x$$", "# Title", "### Heading", "| a | b |", "1. first"]
    assert all(map(roles.on_slide, shown)) and not any(map(roles.on_slide, ["A word.", "*so*", "-1 is", "2. second"]))


def test_text_is_larger_where_little_is_said():
    assert roles.magnified([code("x = 1")]) == max(roles.LARGER)
    assert roles.magnified([code("x" * 88)]) == 1 == roles.magnified([code("x\n" * 15, text_plain="y\n" * 6)])
    assert roles.magnified([figure(576, 100)]) == 1


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


def test_what_fits_exactly_fits(monkeypatch):
    assert roles._fits(15, 648) and not roles._fits(16, 648) and not roles._fits(15, 648.1)
    drawn = figure(576, 100)
    drawn.outputs *= 2
    for height, pieces in (
        (roles.tall(drawn), [("draw()", 2)]),
        (2 * roles.output_height(drawn.outputs[0]), [("draw()", 0), ("", 2)]),
        (2 * roles.output_height(drawn.outputs[0]) - 0.1, [("draw()", 0), ("", 1), ("", 1)]),
    ):
        monkeypatch.setattr(roles, "ROOM", height)
        assert parts(drawn) == pieces
    (output,) = code("x", text_html=TABLE).outputs
    monkeypatch.setattr(roles, "ROOM", roles.output_height(output))
    assert list(slide_cells._rows_apart(output)) == [output]


def test_what_is_not_seen_takes_no_place():
    (alone,) = (part for part in slide_cells.parts(figure(576, 500)) if roles.alone(part))
    assert roles.code_height(alone) == 0 and roles.tall(alone) == pytest.approx(500 / 0.75 * 735 / 768 + 10, abs=1)
    assert not roles.alone(code("x", text_plain="4")) and not roles.alone(text(""))
    assert roles.output_height(code("x", text_plain="").outputs[0]) == 0


def test_a_piece_says_how_large_it_is_set():
    def tags(cell):
        return [kind.tags(part) for part in slide_cells.parts(cell)]

    assert tags(code("x", "mine", text_html=table(*range(15)))) == [["mine"]]
    assert tags(code("x", "mine", text_html=table(*range(17)))) == [["mine", "dense"]]
    assert tags(figure(576, 200)) == [[]] and tags(figure(576, 500)) == [[], ["alone"]]


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
    *_, colors = slides._lengths().split("</style>")
    assert ".highlight .k" in colors and ".dark .highlight .k" in colors
    assert not re.search(r"^(?:\.dark )?\.highlight *\{[^}]*background", colors, re.M)

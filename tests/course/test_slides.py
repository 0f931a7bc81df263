"""The lessons as slides, without a browser: what is on which slide, what is left out, and what the speaker is told."""

import re
import shutil
import sys
from pathlib import Path
from urllib.parse import urlsplit

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from cs336course import cells as kind
from cs336course import lessons, pages, refresh, roles, slide_cells, slides, student, titles
from cs336kit.command import main
from cs336kit.teach import exercises

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
    page = slides.notebook(course / "notebooks/09_toy.ipynb")
    nbformat.validate(page)
    assert (page.nbformat, page.nbformat_minor) == (4, 5) and page.metadata.title == "09 Toy · slides"
    notes = [cell.source for cell in page.cells if cell.metadata.slideshow.slide_type == "notes"]
    assert notes[:2] == [
        "**Minute 0 of 1**, and 0 of 8 minutes of exercises.\n\nA word in private.\n\n**Discuss**\n- Why so?",
        "**Minute 0 of 1**, and 0 of 8 minutes of exercises.\n\nSee [another](08_other.html).",
    ]
    mistakes = [sentence for exercise in [exercises.load("09.1")] for sentence in exercise.mistakes.values()]
    # The table is on several slides.
    assert {*notes[2:-2]} == {notes[1]} and notes[-1] == "**Minute 1 of 1**, and 8 of 8 minutes of exercises."
    assert notes[-2].startswith("**8 minutes.** ") and {f"- {each}" for each in mistakes} <= {*notes[-2].splitlines()}


def test_no_deck_of_the_course_gives_a_solution_or_verdict_away_and_each_asks_its_question():
    for path, cells in lessons.every():
        told = slides.notebook(path).cells
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
    cells += [text("## 2 · Two"), entitled(code("x = 1"), title="It is"), text("## 3 · Three")]
    cells += [text("**The card**\n- a"), text("**Discuss**\n- So?")]
    told = [cell for cell in slides._written(cells, "09 Toy") if cell["metadata"]["slideshow"].get("data")]
    assert [(cell["source"], *cell["metadata"]["slideshow"]["data"].values()) for cell in told] == [
        ("# 09 · A", "09 Toy", "opening"),
        ("## 1 · One", "09 Toy  ·  1 · One", "opening"),
        ("## 2 · Two", "09 Toy  ·  2 · Two", "opening"),
        ("### It is", "09 Toy  ·  2 · Two", ""),
        # The card is the only thing that stands below a heading.
        ("## 3 · Three", "09 Toy  ·  3 · Three", ""),
        ("### Discuss", "09 Toy  ·  3 · Three", ""),
    ]


def told_on(*cells):
    """The title of every slide, whether it continues the one before, and its notes without the minutes."""
    found = slide_cells.slides([text("# 09 · A"), code("import torch"), *cells])
    return [(one.title, one.continued, [n for n in one.notes if "**Minute" not in n]) for one in found[1:]]


def entitled(cell, **words):
    cell.metadata.slideshow = words
    return cell


def test_a_slide_is_titled_by_a_heading_by_its_author_or_by_what_it_asks_for():
    cells = [text("## 1 · One"), entitled(code("x\n" * 16), title="A is B"), code("# y\n" * 16)]
    cells += [text("**Your prediction.** How many?"), code("guess = ...", "prediction")]
    cells += [text("### Exercise 09.1 ★ 8 min · build it"), text("**The card** · of A\n- a"), text("**Discuss**\n- b")]
    found = ["1 · One", "A is B", "", "Your prediction", "Exercise 09.1 ★ 8 min · build it", "The card", "Discuss"]
    assert [title for title, _, _ in told_on(*cells)] == found
    cells[:1] = [text("# 09 · A"), code("import torch"), cells[0]]
    written = [cell["source"] for cell in slides._written(cells, "09 Toy") if cell["cell_type"] == "markdown"]
    # A name in bold is not repeated below the title that it gives.
    assert {"### A is B", "### Your prediction", "How many?", "### The card", "of A\n- a", "- b"} <= {*written}
    own = entitled(text("**Your prediction.** How many?"), title="A question")
    written = [cell["source"] for cell in slides._written([text("## 1 · One"), code("x"), code("y"), own], "09 Toy")]
    assert written[-2:] == ["### A question", "**Your prediction.** How many?"]


def test_what_is_continued_on_a_slide_repeats_its_title_and_its_notes():
    table = entitled(code("x", text_html=TABLE), title="It rises")
    # Code and a third of the table are on one slide, the rest on two, with the notes of the first.
    found = told_on(text("## 1 · One\n\nFirst."), table)
    assert found == [("1 · One", False, []), ("It rises", False, ["First."])] + [("It rises", True, ["First."])] * 2
    assert told_on(text("## 1 · One\n\nFirst."), table, text("It rises."))[-1] == ("It rises", True, ["It rises."])
    cells = [text("# 09 · A"), code("import torch"), text("## 1 · One"), table]
    written = [cell for cell in slides._written(cells, "09 Toy") if cell["source"] == "### It rises"]
    where = [cell["metadata"]["slideshow"]["data"]["where"] for cell in written]
    assert where == ["09 Toy  ·  1 · One"] + ["09 Toy  ·  1 · One  ·  continued"] * 2
    # A heading's own text may need a second slide, too.
    assert [one[:2] for one in told_on(text("## 1 · One\n\n" + "\n".join(["- a"] * 18)))] == [
        ("1 · One", False),
        ("1 · One", True),
    ]


LONG = "x\n" * 16


@pytest.mark.parametrize(
    ("said", "behind", "introduction"),
    [
        (["A.\n\nB."], ["A."], ["B."]),
        (["A.", "B.", "C."], ["A.", "B."], ["C."]),
        (["A."], ["A."], []),
        (["A:"], [], ["A:"]),
        (["A.", "```\nx\n\ny\n```"], ["A."], ["```\nx\n\ny\n```"]),
        (["A.", kind.FOLD + "B." + kind.FOLD_END], ["A.", "B."], []),
    ],
)
@pytest.mark.parametrize("shown", [code(LONG), text("**Your prediction.** How?")])
def test_the_last_paragraph_before_a_slide_introduces_it(said, behind, introduction, shown):
    found = told_on(text("## 1 · One"), entitled(code("z\n" * 16), title="Z"), *map(text, said), shown)
    assert [notes for _, _, notes in found[1:]] == [behind, introduction]


def test_a_single_paragraph_introduces_a_slide_if_the_one_before_has_notes():
    first = entitled(code("z\n" * 16), notes="Say this.")
    cells = [text("## 1 · One"), first, text("A."), code(LONG), text("B."), text("> **Trap.** " + "x" * 800)]
    # A trap introduces itself, as a heading does.
    assert [notes for _, _, notes in told_on(*cells)][1:] == [["Say this."], ["A.", "B."], []]
    cells = [text("## 1 · One"), first, text("A."), text("B."), text("## 2 · Two")]
    assert [notes for _, _, notes in told_on(*cells)][1:] == [["Say this.", "A.", "B."], []]


def test_what_follows_an_exercise_is_about_the_next_slide():
    cells = [text("## 1 · One"), text("### Exercise 09.1 ★ 8 min · build it"), code("...", "exercise")]
    found = told_on(*cells, code("secret", "solution"), text("A."), text("B."), code(LONG))
    assert found[-1] == ("", False, ["A.", "B."]) and "mistakes" in found[-2][2][0]
    # The kit does not check this one.
    assert told_on(text("### Exercise 98.1 ★ 8 min · build it"))[-1][2] == ["**8 minutes.**"]


def test_a_heading_for_readers_ends_a_slide_and_is_on_none():
    cells = [text("## 1 · One"), code("a"), text("A."), text("B."), text("### A clock\n\nC.\n\nD."), code("b")]
    found = told_on(*cells)
    assert found == [("1 · One", False, []), ("", False, ["A.", "B."]), ("", False, ["C.", "D."])]
    assert roles.roles(cells[4:]) == ["notes", "skip"]


def test_slides_without_title_or_notes_are_named_and_titles_without_a_slide():
    cells = [text("# 09 · A"), code("import torch"), text("## 1 · One"), entitled(code("# y\n" * 16), title="A is B")]
    assert [*slide_cells.untitled(cells)] == ["cell of code ('# y') begins slide 3, which has no notes"]
    cells[3:] = [code("y\n" * 16), entitled(text("Prose."), title="Lost"), text("So.\n\n**Your prediction.** How?")]
    assert [*slide_cells.untitled(cells)] == [
        "cell of code ('y') begins slide 3, which has no title",
        "cell of text ('Prose.') has a title or notes for a slide but begins none",
        "cell of text ('So.') asks for a prediction further down, which slides do not show: begin a cell with it",
    ]


def test_titles_are_edited_as_text_and_stay_when_a_lesson_is_stored(course, capsys):
    path = course / "notebooks/09_toy.ipynb"
    refresh.rewrite(path)

    def edit(*arguments):
        code = main(["lessons", "titles", "9", *arguments])
        return code, "".join(capsys.readouterr())

    code, shown = edit()
    lines = [line for line in shown.splitlines() if line and not line.startswith("#")]
    # The output is too long for the slide of its code, and on its slide and the next.
    assert code == 0 and [line[12:] for line in lines] == [" title: "] * len(lines) != []
    file = course / "titles.txt"
    file.write_text(shown.replace(" title: ", " title: It rises"))
    assert edit("--from", str(file)) == (0, "stored in 09_toy.ipynb\n")
    assert edit("--from", str(file)) == (0, "nothing has changed\n")
    assert not [*slide_cells.untitled(lessons.read(path))] and edit()[1].count("title: It rises\n") == len(lines)
    stored = refresh.normalize(nbformat.read(path, as_version=4))
    assert sum("slideshow" in cell.metadata for cell in stored.cells) == len(lines)
    # What a slide says may be an answer.
    assert "It rises" not in str(student.without_answers(lessons.read(path), []))
    file.write_text(f"{lines[0]}")
    assert edit("--from", str(file))[0] == 0 and edit()[1].count("title: It rises") == len(lines) - 1
    id = lines[0][:12]
    for wrong, why in {
        "nonsense": "has a line that is not",
        "0123456789ab title: A": "names the cell 0123456789ab",
        f"{id} title: {'A' * 71}": "has a title of 71 characters",
    }.items():
        file.write_text(f"{id} title: Not stored\n{wrong}\n")
        before = path.read_bytes()
        assert edit("--from", str(file))[0] == 2 and path.read_bytes() == before
        with pytest.raises(ValueError, match=why):
            titles.edit(["9"], file)


def test_the_speaker_knows_how_many_minutes_have_passed():
    lesson = [text("# 09 · A"), text("word " * 400), text("### Exercise 09.1 ★ 8 min · build it"), text("## 2 · B")]
    lesson += [text("word " * 200), text("### Exercise 09.2 ★ 5 min · decide")]
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

    assert roles_of(code("x\n" * 8), code("x\n" * 7)) == ["subslide", "fragment"]
    assert roles_of(code("x\n" * 8), code("x\n" * 8)) == ["subslide", "subslide"]
    # Each code takes a line.
    assert roles_of(code("x"), code("x", text_plain="y\n" * 16)) == ["subslide", "fragment"]
    assert roles_of(code("x"), code("x", text_plain="y\n" * 17)) == ["subslide", "subslide"]


def test_what_stands_on_a_slide_by_its_first_letters():
    shown = ["> A trap.", "**Bold.**", "- item", "$$x$$", "# Title", "### Heading", "| a | b |", "1. first"]
    assert all(map(roles.on_slide, shown)) and not any(map(roles.on_slide, ["A word.", "*so*", "-1 is", "2. second"]))


def test_a_fragment_waits_only_below_something_that_is_seen():
    cells = [text("# 09 · A"), code("import torch"), code("a"), text("## 1 · B"), code("c"), code("d"), text("**e.**")]
    assert roles.roles(cells) == ["slide", "skip", "subslide", "slide", "subslide", "fragment", "fragment"]
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


def test_the_page_of_all_decks_lists_those_of_earlier_commands_and_no_lesson_without_one(course):
    for number in ("10", "11"):
        shutil.copy(course / "notebooks/09_toy.ipynb", course / f"notebooks/{number}_toy.ipynb")
    for number in ("9", "10"):
        slides.write([number])
    listed = (course / "build/slides/index.html").read_text()
    assert re.findall(r'href="(\w+)\.html"', listed) == ["09_toy", "10_toy"]


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

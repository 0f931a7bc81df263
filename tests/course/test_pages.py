"""What is written on a lesson's page by machine: its times, its neighbors, the map, its slides and its folds."""

from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from cs336course import pace, pages, plans

# Not those of this clone, which is a fork with links in its headers, perhaps.
NAMES = [
    Path("elsewhere/notebooks") / name
    for name in ("00_napkin_math.ipynb", "08_graphs.ipynb", "09_gradient_flops.ipynb")
]
TITLE = "# 09 · Gradient FLOPs\n\n**Why six?**"
TABLE = new_output("display_data", data={"text/html": "<table>", "text/plain": "t"})
DRAWN, SAID = (new_output("display_data", data={kind: "x"}) for kind in ("image/svg+xml", "text/plain"))


LINES = new_output("stream", name="stdout", text="1\n2\n3\n")


def text(source, *tags):
    return new_markdown_cell(source, metadata={"tags": list(tags)})


def code(source, *tags, outputs=()):
    return new_code_cell(source, metadata={"tags": list(tags)}, outputs=list(outputs))


def prediction(answer="teach.reveal(guess, of='it', counted=4)"):
    return [text("**Your prediction.** How many?"), code("guess = ...   # FLOPs", "prediction"), code(answer, "answer")]


def page(cells, path=NAMES[-1]):
    """A notebook with its generated parts, and the lessons around it."""
    notebook = new_notebook(cells=cells)
    lessons = [(name, [text(f"# {name.name[:2]} · X\n\n**What of {name.stem}?**")]) for name in NAMES if name != path]
    pages.write(notebook, path, sorted([*lessons, (path, notebook.cells)]))
    return notebook


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([text("word " * 400)], (2, 0, 0)),
        ([code("\n".join(["x = 1"] * 8 + [""]))], (2, 0, 0)),
        # Nobody stops at an import, a comment, or a bracket.
        ([code("import os\nfrom a import b\n# why\n)\n" * 9)], (0, 0, 0)),
        ([code("", outputs=[TABLE] * 3)] * 2, (2, 0, 0)),
        # An answer's code is folded; a prediction takes 90 seconds, or 180 with a pencil.
        (prediction("x\n" * 70)[1:] * 2, (3, 0, 0)),
        ([code("guess = ...", "prediction", "pencil"), code("x", "answer")], (3, 0, 0)),
        # To the second: 89 are a minute, and 90 are two.
        ([text("word " * 297)], (1, 0, 0)), ([text("word " * 300)], (2, 0, 0)), ([code("x\n" * 5)], (1, 0, 0)),
        ([code("x", outputs=[TABLE] * 3)], (1, 0, 0)), ([text("word " * 197), prediction()[1]], (2, 0, 0)),
        ([code("", outputs=[DRAWN] * 3)] * 2, (2, 0, 0)),
        # Printed text is looked at as a table is if it has three lines.
        ([code("", outputs=[SAID] * 9)], (0, 0, 0)), ([code("", outputs=[LINES] * 3)], (1, 0, 0)),
        ([text("word " * 200), text("## Further"), text("word " * 2000)], (1, 0, 10)),
        ([text("### Exercise 09.1 ★★ 10 min · a"), code("x\n" * 99, "exercise"), code("y\n" * 9, "solution")], (0, 10, 0)),
        ([text("### Exercise 09.1 ★ 5 min · a"), code("x", "exercise"), text("word " * 200)], (1, 5, 0)),
        ([text("### Drills 5 min\n" + "word " * 99), *[code("x\n" * 9, "drill")] * 2, text("word " * 200)], (1, 5, 0)),
        # The line of times itself, with a pause or without.
        ([text("45 minutes with a pause after 29, 9 more for exercises and 11 for *Further* · " + "word " * 300)], (0, 0, 0)),
        ([text("45 minutes, 9 more for exercises · " + "word " * 300)], (0, 0, 0)),
        ([text("$$ " + "a " * 900 + "$$ [word](notebook_with_a_long_name.ipynb)")], (0, 0, 0)),
    ],
)  # fmt: skip
def test_times_follow_from_what_there_is_to_read_and_do(cells, expected):
    assert pace.minutes(cells) == expected


def test_the_line_of_times_of_a_lesson_with_a_pause_is_written_once():
    cells = [text(TITLE), text("word " * 290), text("**Pause.** Enough."), text("## 2 · More\n" + "word " * 290)]
    notebook = page(cells)
    once = notebook.cells[0].source
    assert "minutes with a pause after 1, 0 more" in once
    assert page(notebook.cells).cells[0].source == once


def test_the_halves_of_a_lesson_add_up_to_it():
    task = [text("### Exercise 09.1 ★ 5 min · a"), code("x", "exercise")]
    cells = [
        text("word " * 290),
        *task,
        text("**Pause.** Enough."),
        text("word " * 290),
        *task,
        text("## Further"),
        *task,
    ]
    before, after = pace.halves(cells)
    assert before == (1, 5, 0) and after == (2, 5, 0) and pace.minutes(cells) == (3, 15, 0)
    assert pace.halves(cells[:1]) == [(1, 0, 0)]
    assert pages.times(cells) == "3 minutes with a pause after 1, 15 more for exercises"
    assert all(pace.HEADER.fullmatch(f"{pages.times(part)} · no GPU") for part in (cells, cells[:1]))
    assert pages.times([text("## Further"), text("word " * 200)]) == (
        "0 minutes, 0 more for exercises and 1 for *Further*"
    )


def test_paths_for_less_time_say_what_they_take_and_are_left_out_where_a_lesson_is_missing():
    task = [text("### Exercise {0}.4 ★ 5 min · a"), code("x", "exercise")]
    lessons = [
        (
            Path(f"{number:02}_x.ipynb"),
            [text("word " * 12000), *[text(t.source.format(f"{number:02}")) for t in task[:1]]],
        )
        for number in range(22)
    ]
    assert pages.paths(lessons[:-2]) == "" and pages.paths([]) == ""
    some = plans.Shorter("Some", "you can", ("00", "02"), ("02.4",), ("03",))
    assert plans.minutes(some, {path.name[:2]: cells for path, cells in lessons}) == (122, 5, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "PATHS", (some, plans.Shorter("All", "you want", ("01",))))
        assert pages.paths(lessons, "n/").splitlines()[2:] == [
            "- **Some**, if you can: [00](n/00_x.ipynb), [02](n/02_x.ipynb), and the cards of [03](n/03_x.ipynb). 2 hours, and "
            "0.1 for exercises 02.4.",
            "- **All**, if you want: [01](n/01_x.ipynb). 1 hours, and 0.1 for all their exercises.",
        ]
        assert "All 22 lessons take 22 hours to read and predict, 1.8 for their exercises, and 0 for" in pages.paths(
            lessons
        )


def test_a_page_is_written_once_and_then_stays():
    notebook = page([text(TITLE + "\n\nSome more."), code("import torch")])
    first, footer = notebook.cells[0].source, notebook.cells[-1].source
    assert first.startswith(
        TITLE + "\n\n0 minutes, 0 more for exercises · no GPU · follows [08 Graphs](08_graphs.ipynb)\n\nSome"
    )
    assert footer == "[← 08 Graphs](08_graphs.ipynb) · [Map of the course](00_napkin_math.ipynb#Map-of-the-course)"
    assert page(notebook.cells) == notebook
    asked_again = page([text(TITLE + "\n\nOnce more: **Why six?**")]).cells[0].source
    assert asked_again.endswith("(08_graphs.ipynb)\n\nOnce more: **Why six?**")


def test_where_to_go_on_is_not_folded_away_with_further_and_the_map_is_last():
    cells = [text("# 00 · Napkin math\n\n**How long?**"), text("## Further"), text("More.")]
    shown = [cell.source.split("\n")[0] for cell in page(cells, NAMES[0]).cells[1:]]
    assert shown == [
        pages.footer(NAMES[0], NAMES),
        "## Further",
        "More.",
        "## Map of the course",
        "## Symbols and words",
    ]


def test_the_first_lesson_has_the_map_and_every_question():
    notebook = page([text("# 00 · Napkin math\n\n**How long?**")], NAMES[0])
    shown = notebook.cells[-2].source
    assert "| [09 · Gradient FLOPs](09_gradient_flops.ipynb) | What of 09_gradient_flops? |" in shown
    assert "| How long? | 0 | – |" in shown and notebook.cells[0].source.endswith("next [08 Graphs](08_graphs.ipynb)")


def test_every_lesson_stands_in_its_part_of_the_map():
    lessons = [(Path(f"{number:02}_x.ipynb"), [text("# X\n\nA promise.")]) for number in range(22)]
    parts = pages.course_map(lessons, "notebooks/").split("\n\n**")
    assert [part.strip("*").split("**")[0] for part in parts] == [
        "Numbers and tensors", "Work and time", "Training", "Memory and precision",
        "Whole models, on many machines, for many users",
    ]  # fmt: skip
    found = [[int(line.split("(notebooks/")[1][:2]) for line in part.splitlines()[4:]] for part in parts]
    assert found == [[*range(6)], [*range(6, 10)], [*range(10, 14)], [*range(14, 17)], [*range(17, 22)]]
    assert pages.course_map(lessons[:6]) == parts[0].replace("notebooks/", "") and pages.course_map([]) == ""


def test_a_lesson_names_those_before_and_after_it():
    cells = [text(TITLE), code("x", "gpu")]
    first, middle, last = (pages.header(cells, path, NAMES) for path in NAMES)
    said = "0 minutes, 0 more for exercises · no GPU needed, one cell runs only on one"
    assert (
        first == f"{said} · next [08 Graphs](08_graphs.ipynb)"
        and last == f"{said} · follows [08 Graphs](08_graphs.ipynb)"
    )
    before, after = "[00 Napkin math](00_napkin_math.ipynb)", "[09 Gradient FLOPs](09_gradient_flops.ipynb)"
    assert middle == f"{said} · follows {before} · next {after}"
    assert "no GPU needed, a few cells run only on one ·" in pages.header([*cells, code("y", "gpu")], NAMES[0], NAMES)
    assert "exercises · no GPU ·" in pages.header(cells[:1], NAMES[0], NAMES)
    assert pages.footer(NAMES[0], NAMES) == "[08 Graphs →](08_graphs.ipynb)"
    assert pages.footer(NAMES[1], NAMES).startswith(
        "[← 00 Napkin math](00_napkin_math.ipynb) · [Map of the course](00_"
    )
    assert pages.footer(NAMES[1], NAMES).endswith(" · [09 Gradient FLOPs →](09_gradient_flops.ipynb)")
    assert (
        pages.promise([text("# 09 · A\n\n What is it about.\nMore.")]) == "What is it about."
        and pages.promise([]) == ""
    )
    assert pages.promise([text("# 09 · A\nWhat it is.\nMore.")]) == "What it is."


def test_a_question_stands_on_one_slide_and_its_answer_on_the_next():
    cells = [text(TITLE), code("import torch"), text("## 1 · One"), text("Prose."), code("x\n" * 9), code("y\n" * 9)]
    cells += [*prediction(), code("z", "verdict"), text("### Exercise 09.1 ★ 5 min · a"), code("e", "exercise")]
    cells += [code("s", "solution"), code("a", "aside"), text("## Further"), code("f")]
    assert pages.roles(cells) == [
        *("slide", "skip", "slide", "notes", "subslide", "subslide", "subslide", "-", "subslide"),
        *("skip", "subslide", "-", "skip", "skip", "skip", "skip"),
    ]


def test_answers_solutions_and_further_are_folded():
    cells = [text(TITLE), *prediction(), code("v", "verdict"), code("w", "verdict"), code("solution = 1", "solution")]
    notebook = page([*cells, text("## Further")])
    folds = [{k: v for k, v in cell.metadata.items() if k not in ("tags", "slideshow")} for cell in notebook.cells]
    code_alone = {"jupyter": {"source_hidden": True}, "cellView": "form"}
    whole = {"jupyter": {"outputs_hidden": True, "source_hidden": True}, "cellView": "form"}
    assert folds == [{}, {}, {}, code_alone, {}, {}, whole, {}, {"jp-MarkdownHeadingCollapsed": True}]


def test_code_that_a_lesson_is_not_about_is_folded_and_takes_no_time():
    cells = [text(TITLE), code("x = 1\n" * 15), code("y = 1\n" * 30, "aside")]
    assert pages.metadata(cells)[2]["jupyter"] == {"source_hidden": True}
    assert pace.minutes(cells) == pace.minutes(cells[:2]) == (4, 0, 0)


def test_what_a_run_has_left_stays_in_measured_cells_alone():
    cells = [code("a", "measured:time"), code("b", "measured:time"), code("c")]
    cells[1].metadata["run"] = cells[2].metadata["run"] = "0"
    assert [data.get("run") for data in pages.metadata(cells)] == [None, "0", None]
    assert "jupyter" not in pages.metadata([code("v", "verdict")])[0], "there is nothing that it gives away"

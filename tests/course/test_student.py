"""The lessons for students: nothing of a solution and nothing of a run is left, and what is left works."""

import ast
import gc
import html
import json
import os
import re
from pathlib import Path

import checked_here
import nbformat
import pytest

from cs336course import cells as kind
from cs336course.lessons import every
from cs336course.student import CHECK, FOLDER, leaks, without_answers, write
from cs336kit import teach
from cs336kit.command import main
from cs336kit.teach.exercises import load

ROOT = Path(__file__).parents[2]
LESSONS = dict(every(ROOT / "notebooks"))


def tagged(cells, tag):
    return [cell for cell in cells if tag in kind.tags(cell)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """All lessons, written once."""
    into = tmp_path_factory.mktemp("student")
    said = list(write([], ROOT / "notebooks", into))
    assert len(said) == len(LESSONS) + 1 and said[-1].endswith("without solutions and without stored outputs.")
    return into


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_no_solution_and_no_output_is_left_and_all_else_is(path, folder):
    lesson, text = LESSONS[path], (folder / path.name).read_text()
    student = nbformat.reads(text, as_version=4).cells
    nbformat.validate(nbformat.reads(text, as_version=4))
    others = "\n".join(kind.source(cell) for cell in lesson if "solution" not in kind.tags(cell))
    lines = {line.strip() for cell in tagged(lesson, "solution") for line in kind.source(cell).splitlines()}
    only_there = {line for line in lines if len(line) > 5 and line not in others}
    assert len(only_there) >= len(tagged(lesson, "solution"))
    told = "\n".join(kind.source(cell) for cell in student) + json.dumps([cell.metadata for cell in student])
    assert not [line for line in only_there if line in told]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in student if cell.cell_type == "code")
    assert not [word for word in ("text/plain", "image/", "<svg", "SOLUTION", '"run"', "attachments") if word in text]
    kept = [kind.source(cell) for cell in lesson if "solution" not in kind.tags(cell)]
    now = [re.sub(r"\A# .*to do.*\n# For help.*\n", "", cell.source) for cell in student]
    assert now == kept and leaks(student, lesson) == []


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_links_lead_to_a_lesson_in_the_folder_and_to_a_heading_of_it(path, folder):
    text = "\n".join(cell.source for cell in nbformat.read(folder / path.name, 4).cells if cell.cell_type == "markdown")
    targets = re.findall(r"\]\((?!https?:)([^)\s#]+\.\w+)(?:#([^)]+))?\)", text)
    assert targets
    for name, anchor in targets:
        assert (folder / name).exists(), name
        headings = [kind.source(cell) for cell in LESSONS[ROOT / "notebooks" / name]]
        assert not anchor or any(text.startswith(f"## {anchor.replace('-', ' ')}") for text in headings)


def stub(cell):
    """The parts of a stub that need nothing of the lesson: the answer, and the expression that checks it."""
    tree = ast.parse(kind.source(cell))
    own = [n for n in tree.body if isinstance(n, ast.FunctionDef) or ast.unparse(n).startswith("answer =")]
    return ast.unparse(ast.Module(own, [])), ast.unparse(tree.body[-1])


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_every_stub_waits_and_passes_once_it_is_filled(path, monkeypatch):
    checked_here.use(monkeypatch)
    gc.freeze()  # 12.1 looks at all objects: those of pytest are none of its own
    student = without_answers(LESSONS[path], [])
    stubs = tagged(student, "exercise")
    assert len(stubs) == len(tagged(LESSONS[path], "solution"))
    for cell in stubs:
        id, name = CHECK.search(kind.source(cell)).groups()
        assert kind.source(cell).startswith(f"# {id}, to do: ") and f'teach.exercises.hint("{id}")' in kind.source(cell)
        names, (answer, check) = {"teach": teach}, stub(cell)
        exec(answer, names)
        waiting = eval(check, names)
        assert waiting.state == "waiting" and "replace the ..." in waiting.message
        assert len(teach.exercises.hint(id, 1).text) > 15
        found = load(id)
        names[name] = found.reference() if found.decision else found.reference
        assert eval(check, names).passed


LINE = "    return width * height + 2 * (width + height)"
CELLS = {
    "first": ("markdown", [], "# 98 · A toy\n\n**How large?**\n\nnext [99 Another](99_another.ipynb)"),
    "code": ("code", [], "def around(width, height):\n    return 2 * (width + height)"),
    "task": ("markdown", [], "### Exercise 01.1 ★ 5 min · build it: area\n\nWrite `area`."),
    "stub": (
        "code",
        ["exercise"],
        'def area(width, height):\n    return ...\n\n\nteach.exercises.check("01.1", area)',
    ),
    "solution": (
        "code",
        ["solution"],
        f"def solution(width, height):\n    ### BEGIN SOLUTION\n    # both at once: width < height, {{}}\n{LINE}\n"
        "    ### END SOLUTION\n\n\n"
        'teach.exercises.check_solution("01.1", solution)',
    ),
    "text": ("markdown", [], "And so on. ![a rectangle that is wide](wide.png)"),
}


def toy():
    """A lesson with one exercise; outputs, counts and whatever else a run leaves."""
    made = {}
    for name, (cell_type, tags, source) in CELLS.items():
        made[name] = {"cell_type": cell_type, "metadata": {"tags": tags, "run": "0"} if tags else {}, "source": source}
        if cell_type == "code":
            made[name] |= {"outputs": [{"output_type": "stream", "name": "stdout", "text": "6"}], "execution_count": 1}
    return made


def planted(how):
    """A change of one cell that shows a line of the solution."""
    return {
        "comment": lambda c: c["stub"].update(source=c["stub"]["source"] + "\n# " + LINE.strip()),
        "code": lambda c: c["stub"].update(source=c["stub"]["source"].replace("    return ...", LINE)),
        "quoted": lambda c: c["text"].update(source=f"`{LINE.replace(' ', '')}` it is"),
        "escaped": lambda c: c["text"].update(source=html.escape("# both at once: width < height, {}") + "&nbsp;"),
        "alt text": lambda c: c["text"].update(source=f"![{LINE}](wide.png)"),
    }[how]


@pytest.mark.parametrize("how", ["comment", "code", "quoted", "escaped", "alt text"])
def test_a_line_of_a_solution_in_another_cell_is_found(how):
    lesson = toy()
    assert leaks(without_answers([*lesson.values()], []), [*lesson.values()]) == []
    planted(how)(lesson)
    [found] = leaks(without_answers([*lesson.values()], []), [*lesson.values()])
    assert "shows a part of the solution of 01.1" in found and ("of code" in found or "of text" in found)


@pytest.mark.parametrize(
    ("cell", "change", "words"),
    [
        ("stub", {"metadata": {"tags": [LINE.strip()]}}, "part of the solution of 01.1"),
        ("stub", {"metadata": {LINE.strip(): 1}}, "part of the solution of 01.1"),
        ("stub", {"metadata": {"jupyter": {"note": [LINE[:20], LINE[20:]]}}}, "part of the solution of 01.1"),
        ("stub", {"metadata": {"run": "0"}}, "has the metadata run"),
        ("code", {"outputs": [{"output_type": "stream", "name": "stdout", "text": [LINE]}]}, "of the solution of 01.1"),
        ("code", {"outputs": [{"output_type": "stream", "name": "stdout", "text": "12"}]}, "stores the outputs of a run"),
        ("code", {"execution_count": 3}, "stores the outputs of a run"),
        ("text", {"attachments": {"a.png": {"image/png": "aGVsbG8="}}}, "has an attachment"),
        ("text", {"source": "![it](attachment:a.png)"}, "has an attachment"),
    ],
)  # fmt: skip
def test_what_is_planted_beside_the_source_is_found(cell, change, words):
    lesson = toy()
    student = without_answers([*lesson.values()], [])
    place = [name for name in lesson if name != "solution"].index(cell)
    student[place].update(change)
    assert any(words in found for found in leaks(student, [*lesson.values()]))


@pytest.mark.parametrize(("line", "found"), [("total=a*b+c*d+e", True), ("total=a*b+c*dd", False)])
def test_a_line_of_fifteen_letters_is_a_solutions_own(line, found):
    lesson = toy()
    lesson["solution"]["source"] = lesson["solution"]["source"].replace(LINE, f"    {line}\n{LINE}")
    lesson["text"]["source"] = f"`{line.replace('=', ' = ')}`"
    assert bool(leaks(without_answers([*lesson.values()], []), [*lesson.values()])) == found


def test_a_lesson_that_runs_its_own_solution_above_the_exercise_is_found():
    lesson = toy()
    lesson["code"]["source"] = f"# both at once: width < height, {{}}\ndef area(width, height):\n{LINE}"
    student = without_answers([*lesson.values()], [])
    [found] = leaks(student, [*lesson.values()])
    assert found.startswith("all of the solution of 01.1 is shown above its exercise or said in its task: also ask for")


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A folder with the toy and a lesson beside it."""
    monkeypatch.chdir(tmp_path)
    Path("notebooks").mkdir()
    for name, cells in (("98_toy", [*toy().values()]), ("99_another", [toy()["first"]])):
        Path(f"notebooks/{name}.ipynb").write_text(json.dumps({"cells": cells}))
    Path("notebooks/wide.png").write_bytes(b"png")
    return tmp_path


def test_the_command_says_what_it_has_written_and_can_be_repeated(clone, capsys):
    for _ in range(2):
        assert main(["lessons", "student"]) == 0
        assert capsys.readouterr().out.splitlines() == [
            "98_toy.ipynb: 1 exercise",
            "99_another.ipynb: 0 exercises",
            "Written to build/student/: 2 lessons with 1 exercise, without solutions and without stored outputs.",
        ]
    made = json.loads((FOLDER / "98_toy.ipynb").read_text())
    assert (made["nbformat"], made["nbformat_minor"]) == (4, 5)
    assert {path.name for path in FOLDER.iterdir()} == {"98_toy.ipynb", "99_another.ipynb", "wide.png"}


def test_a_link_to_a_lesson_that_is_not_handed_out_is_its_text(clone, capsys):
    assert main(["lessons", "student", "98", "--into", "out"]) == 0
    assert "next 99 Another" in Path("out/98_toy.ipynb").read_text()
    assert (
        main(["lessons", "student", "99", "--into", "out"]) == main(["lessons", "student", "98", "--into", "out"]) == 0
    )
    assert "next [99 Another](99_another.ipynb)" in Path("out/98_toy.ipynb").read_text()


def refused(capsys, *arguments):
    assert main(["lessons", "student", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    return said.err


def test_a_leaking_lesson_is_refused_with_its_name_and_cell_and_nothing_is_written(clone, capsys):
    lesson = toy()
    planted("comment")(lesson)
    Path("notebooks/98_toy.ipynb").write_text(json.dumps({"cells": [*lesson.values()]}))
    said = refused(capsys)
    assert said.startswith("98_toy.ipynb is not handed out: cell of code ('# 01.1, to do") and not FOLDER.exists()


@pytest.mark.parametrize("work", ["edited", "ran", "not a notebook"])
def test_somebody_s_work_is_never_overwritten(clone, capsys, work):
    main(["lessons", "student"])
    capsys.readouterr()
    path = FOLDER / "98_toy.ipynb"
    notebook = json.loads(path.read_text())
    # What JupyterLab writes when it merely opens a file is no work.
    notebook["metadata"]["kernelspec"]["display_name"] = "Python 3 (ipykernel)"
    path.write_text(json.dumps(notebook))
    assert main(["lessons", "student"]) == 0
    capsys.readouterr()
    notebook["cells"][1].update({"edited": {"source": "1 + 1"}, "ran": {"execution_count": 1}}.get(work, {}))
    path.write_text("half a {" if work == "not a notebook" else json.dumps(notebook))
    before = path.read_bytes()
    assert "build/student/98_toy.ipynb has somebody's work" in refused(capsys) and path.read_bytes() == before


def test_bad_inputs_are_a_sentence(clone, capsys):
    assert "no lesson '42' in notebooks; there are 98_toy, 99_another" in refused(capsys, "42")
    Path("a file").touch()
    assert refused(capsys, "--into", "a file") == "a file cannot be read or written: File exists.\n"
    os.chdir("/")
    assert "there are no lessons here, nor in a folder above" in refused(capsys)


def test_into_belongs_to_what_writes_there(clone, capsys):
    with pytest.raises(SystemExit):
        main(["lessons", "verify", "--into", "x"])
    assert "--into is for student, assignment, slides, site" in capsys.readouterr().err


def test_what_the_task_says_is_no_leak_and_a_long_line_is_told_in_part():
    lesson = toy()
    lesson["task"]["source"] += f"\n\nIn one line: `{LINE.strip()}`."
    assert leaks(without_answers([*lesson.values()], []), [*lesson.values()]) == []
    lesson = toy()
    long = "x" * 58 + "=1+2+3"
    lesson["solution"]["source"] = lesson["solution"]["source"].replace(LINE, f"    {long}\n{LINE}")
    lesson["text"]["source"] = f"`{long}`"
    [found] = leaks(without_answers([*lesson.values()], []), [*lesson.values()])
    assert found.endswith("of 01.1: " + "x" * 58 + "=1")


def test_images_are_copied_into_the_folders_that_the_text_names(clone):
    lesson = toy()
    for name in ("drawn/by/hand.png", "drawn/by/machine.png"):
        Path("notebooks", name).parent.mkdir(parents=True, exist_ok=True)
        Path("notebooks", name).write_bytes(b"png")
        lesson["text"]["source"] += f" ![a ★]({name})"
    Path("notebooks/98_toy.ipynb").write_text(json.dumps({"cells": [*lesson.values()]}))
    assert main(["lessons", "student", "98", "--into", "a/new/folder"]) == 0
    assert Path("a/new/folder/drawn/by/hand.png").exists() and Path("a/new/folder/drawn/by/machine.png").exists()
    text = Path("a/new/folder/98_toy.ipynb").read_text(encoding="utf-8")
    assert "★" in text and text.endswith("}\n")

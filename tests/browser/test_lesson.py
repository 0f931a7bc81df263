"""What a reader's hands do in a lesson: a guess opens an answer, an exercise is answered, and a solution touches nothing."""

import subprocess
import sys

import nbformat
import pytest
from jupyter_browser import opened, serving

from cs336course.refresh import refresh
from cs336kit.teach import exercises

LESSON = """
# 99 · A toy

**How many?**
---
from cs336kit import teach
---
**Your prediction.** How many eggs are in a dozen?
--- prediction
guess = ...   # eggs
--- answer
teach.reveal(guess, of="eggs in a dozen", counted=12)
---
def {name}(*args):
    return "the reader's"
--- exercise
def {name}(*args):
    return ...


teach.exercises.check("{id}", {name})
--- solution
# Solution of {id}
from cs336kit.teach.exercises import load
solution = load("{id}").reference
teach.exercises.check_solution("{id}", solution)
---
{name}()
"""


@pytest.fixture(scope="module")
def exercise():
    """The first exercise of the course whose answer is a function."""
    return next(found for id in exercises.known_ids() if not (found := exercises.load(id)).decision)


@pytest.fixture(scope="module")
def page(browser, exercise, tmp_path_factory):
    """A toy lesson with a prediction and an exercise, trusted and open."""
    folder = tmp_path_factory.mktemp("course")
    cells = []
    for part in LESSON.format(id=exercise.id, name="mine").split("---"):
        tags, _, source = part.partition("\n")
        code = not source.lstrip().startswith(("#  ", "# 99", "**"))
        new = nbformat.v4.new_code_cell if code else nbformat.v4.new_markdown_cell
        cells.append(new(source.strip(), metadata={"tags": tags.split()}))
    path = folder / "99_toy.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    refresh(path)
    subprocess.run([sys.executable, "-m", "nbformat.sign", str(path)], check=True, capture_output=True)
    with serving(folder, CS336KIT_GUESSES=str(folder / "guesses.json")) as address:
        page = opened(browser, address, path.name)
        yield page
        page.close()


def cell(page, number):
    """The code cell of this number, counted from 0."""
    return page.locator(".jp-CodeCell").nth(number)


def run(page, number, text=None):
    """Replace a cell's text, if one is given, run it, and return the cell when it has run."""
    found = cell(page, number)
    # The prompt is there also where the code is folded.
    found.locator(".jp-InputPrompt" if text is None else ".cm-content").first.click()
    if text is not None:
        page.keyboard.press("ControlOrMeta+a")
        page.keyboard.insert_text(text)
    # The number of a cell may be the same as the stored one: what counts is that it went through [*].
    prompt = found.locator(".jp-InputPrompt").first.element_handle()
    prompt.evaluate(
        "e => new MutationObserver(() => { if (e.innerText.includes('*')) e.dataset.ran = 1 })"
        ".observe(e, {childList: true, characterData: true, subtree: true})"
    )
    page.keyboard.press("Control+Enter")
    page.wait_for_function("e => e.dataset.ran && /\\d/.test(e.innerText)", arg=prompt)
    prompt.evaluate("e => delete e.dataset.ran")
    return found


def test_a_stored_answer_is_folded_and_running_it_opens_it_beside_the_guess(page):
    answer = cell(page, 2)
    assert answer.locator("summary").inner_text() == "The answer" and not answer.locator("table").is_visible()
    assert answer.locator(".jp-InputPlaceholder").count() == 1
    run(page, 0)
    run(page, 1)
    assert not run(page, 2).locator("table").is_visible()
    run(page, 1, "guess = 6   # eggs")
    table = run(page, 2).locator("table")
    assert table.is_visible() and "2 × too low" in table.inner_text()


def test_an_exercise_is_answered_wrong_and_then_right(page, exercise):
    found = run(page, 4, f'def mine(*args):\n    return "nonsense"\n\nteach.exercises.check("{exercise.id}", mine)')
    assert f"{exercise.id} not yet:" in found.locator(".jp-OutputArea").inner_text()
    right = f"from cs336kit.teach.exercises import load\nmine = load('{exercise.id}').reference\n"
    found = run(page, 4, right + f"teach.exercises.check('{exercise.id}', mine)")
    assert f"{exercise.id} passed:" in found.locator(".jp-OutputArea").inner_text()


def test_a_solution_is_folded_says_whose_it_is_and_leaves_the_readers_function_alone(page, exercise):
    solution = cell(page, 5)
    assert solution.inner_text().strip() == f"# Solution of {exercise.id}"
    run(page, 3)
    solution.locator(".jp-InputPlaceholder").click()
    said = run(page, 5).locator(".jp-OutputArea").inner_text()
    assert f"{exercise.id}, the course's answer, passed:" in said
    assert "the reader's" in run(page, 6).locator(".jp-OutputArea").inner_text()

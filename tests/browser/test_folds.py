"""What tells an answer is closed before a guess and open after it, in every front end: JupyterLab (trusted or not), Notebook 7,
a plain page of nbconvert. (Site and slides have tests of their own.)"""

import json

import nbformat
import pytest
from jupyter_browser import PATIENCE, TOKEN, files, opened, serving
from nbformat.sign import NotebookNotary

from cs336course.cells import FOLD, FOLD_END
from cs336course.refresh import refresh

TOLD = FOLD + "It is a **dozen**, `4 * 3`, or $3 \\cdot 4$.\n\n- as a list" + FOLD_END
CELLS = [
    ("markdown", "", "# 99 · A toy\n\n**How many?**"),
    ("code", "", "from cs336kit import teach"),
    ("markdown", "", "**Your prediction.** How many eggs are in a box?"),
    ("code", "prediction", "guess = ...   # eggs"),
    ("code", "answer", 'teach.reveal(guess, of="eggs in a box", counted=12)'),
    ("code", "", 'teach.folded("That is more than ten.", "The verdict")'),
    ("code", "", 'teach.folded(teach.figures.three_products(N=3, D=2, F=4, layer_input="x"), "The picture")'),
    ("markdown", "", TOLD),
    ("markdown", "", "This is open, and tells nothing."),
]
#: What is closed, by the line that opens it → how to find what it holds.
FOLDS = {"The answer": "table", "The verdict": "p", "The picture": "img", "What it says": "strong"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the toy lesson, run and stored as lessons are."""
    folder = tmp_path_factory.mktemp("folds")
    cells = []
    for name, tag, source in CELLS:
        new = nbformat.v4.new_code_cell if name == "code" else nbformat.v4.new_markdown_cell
        cells.append(new(source, metadata={"tags": [tag]} if tag else {}))
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "99_toy.ipynb")
    refresh(folder / "99_toy.ipynb")
    return folder


@pytest.fixture(scope="module")
def address(folder, tmp_path_factory):
    """JupyterLab on that folder, which trusts what is signed there."""
    signatures = tmp_path_factory.mktemp("signatures")
    stored = nbformat.read(folder / "99_toy.ipynb", as_version=4)
    guessed = json.loads(json.dumps(stored).replace("guess = ...   # eggs", "guess = 10   # eggs"))
    for name, notebook in (("99_trusted.ipynb", stored), ("99_guess.ipynb", nbformat.from_dict(guessed))):
        notebook.metadata["name"] = name  # another signature than that of the file that is not trusted
        nbformat.write(notebook, folder / name)
        NotebookNotary(data_dir=str(signatures)).sign(notebook)
    options = (f"--NotebookNotary.data_dir={signatures}", "--ServerApp.jpserver_extensions=notebook=True")
    with serving(folder, *options, CS336KIT_GUESSES=str(folder / "guesses.json")) as address:
        yield address


def state(page):
    """For each fold: whether what it holds is visible."""
    found = {}
    for name, inside in FOLDS.items():
        fold = page.locator(f"details:has(> summary:text-is('{name}'))")
        fold.wait_for()
        found[name] = fold.locator(inside).first.is_visible()
    return found


def check_closed_then_opened_by_a_click(page):
    page.locator("p:text-is('This is open, and tells nothing.')").wait_for()
    assert state(page) == dict.fromkeys(FOLDS, False)
    for name in FOLDS:
        page.locator(f"summary:text-is('{name}')").click()
    assert state(page) == dict.fromkeys(FOLDS, True)
    # Markdown inside is Markdown, and mathematics is drawn.
    inside = page.locator("details:has(> summary:text-is('What it says'))")
    assert inside.locator("code").inner_text() == "4 * 3" and inside.locator("li").inner_text() == "as a list"
    assert "$" not in inside.inner_text()


def ran(page):
    """Run all cells, and wait for the last one."""
    page.click(".lm-MenuBar-itemLabel:text-is('Run')")
    page.click(".lm-Menu-itemLabel:text-is('Run All Cells')")
    page.wait_for_selector("text=| Busy")
    page.wait_for_selector("text=| Idle")


def test_in_jupyterlab_everything_is_closed_until_a_click(browser, address):
    page = opened(browser, address, "99_trusted.ipynb")
    page.locator(".jp-mod-trusted[data-mime-type='text/html']").first.wait_for()
    check_closed_then_opened_by_a_click(page)
    # The code that finds the answer is folded, too.
    assert page.locator(".jp-InputPlaceholder").count() == 1
    page.close()


def test_in_jupyterlab_running_all_opens_nothing_without_a_guess_and_the_answer_with_one(browser, address):
    for name, open_ones in (("99_trusted.ipynb", []), ("99_guess.ipynb", ["The answer"])):
        page = opened(browser, address, name)
        ran(page)
        assert state(page) == {fold: fold in open_ones for fold in FOLDS}, name
        page.close()


def test_in_jupyterlab_a_notebook_that_is_not_trusted_is_closed_too(browser, address):
    page = opened(browser, address, "99_toy.ipynb")
    check_closed_then_opened_by_a_click(page)
    assert page.locator(".jp-mod-trusted[data-mime-type='text/html']").count() == 0
    page.close()


def test_in_notebook_7(browser, address):
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    page.set_default_timeout(PATIENCE)
    page.goto(f"{address}/notebooks/99_trusted.ipynb?token={TOKEN}")
    check_closed_then_opened_by_a_click(page)
    page.close()


@pytest.mark.parametrize("template", ["lab", "classic", "basic"])
def test_in_a_plain_page(browser, folder, template):
    from nbconvert import HTMLExporter

    page, _ = HTMLExporter(template_name=template, mathjax_url="").from_filename(str(folder / "99_toy.ipynb"))
    (folder / "plain.html").write_text(page, encoding="utf-8")
    with files(folder) as address:
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        page.goto(f"{address}/plain.html")
        assert state(page) == dict.fromkeys(FOLDS, False)
        for name in FOLDS:
            page.locator(f"summary:text-is('{name}')").click()
        assert state(page) == dict.fromkeys(FOLDS, True)
        page.close()

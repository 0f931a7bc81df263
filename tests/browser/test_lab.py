"""The course as a newcomer sees it: JupyterLab opens a lesson, runs it, and an exercise answers.

Everything stays on this machine.
"""

import shutil
import urllib.request
from pathlib import Path

import pytest
from jupyter_browser import opened, serving

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The address of a JupyterLab on a copy of the first lesson, with a token."""
    folder = tmp_path_factory.mktemp("course")
    shutil.copy(ROOT / "notebooks/00_napkin_math.ipynb", folder)
    with serving(folder) as address:
        yield address


@pytest.fixture(scope="module")
def page(lab, browser):
    """The lesson, open in a browser, its kernel idle."""
    page = opened(browser, lab, "00_napkin_math.ipynb")
    yield page
    page.close()


def test_the_lab_asks_for_its_token(lab):
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"{lab}/api/contents", timeout=30)


def test_the_lesson_shows_what_was_stored_before_anything_runs(page):
    page.wait_for_selector("h1:has-text('00 ·')")
    assert page.locator(".jp-OutputArea-output table").count() > 0


def test_run_all_runs_to_the_end_without_an_error(page):
    page.click(".lm-MenuBar-itemLabel:text-is('Run')")
    page.click(".lm-Menu-itemLabel:text-is('Run All Cells')")
    page.wait_for_selector("text=| Busy")
    page.wait_for_selector("text=| Idle")
    assert page.locator("[data-mime-type='application/vnd.jupyter.stderr']").count() == 0
    assert page.locator(".jp-RenderedText[data-mime-type='application/vnd.jupyter.error']").count() == 0

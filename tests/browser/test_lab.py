"""The course as a newcomer sees it: JupyterLab opens a lesson, runs it, and an exercise answers.

Skipped, with that reason, where no Chromium is installed; everything stays on this machine.
"""

import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
PATIENCE = 120_000  # milliseconds; a loaded machine is slow, and slowness is no failure

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, and none is installed")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The address of a JupyterLab on a copy of the first lesson, with a token."""
    folder = tmp_path_factory.mktemp("course")
    shutil.copy(ROOT / "notebooks/00_napkin_math.ipynb", folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = ["--no-browser", "--ip=127.0.0.1", f"--port={port}", "--IdentityProvider.token=course", "--allow-root"]
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", *settings, f"--ServerApp.root_dir={folder}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + PATIENCE / 1000
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/api/status?token=course", timeout=5)
                break
            except OSError:
                time.sleep(0.3)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(30)


@pytest.fixture(scope="module")
def page(lab):
    """The lesson, open in a browser, its kernel idle."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        page.set_default_timeout(PATIENCE)
        page.goto(f"{lab}/lab/tree/00_napkin_math.ipynb?token=course&reset")
        page.wait_for_selector("text=| Idle")
        yield page
        browser.close()


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

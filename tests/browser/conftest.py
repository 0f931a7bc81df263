"""A browser for these tests, and a desk to work at; they are skipped, with that reason, where no Chromium is installed."""

import json
import os
import urllib.request
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest
from filelock import FileLock
from jupyter_browser import CHROMIUM, PATIENCE, QUIET, TOKEN, files, serving
from nbformat.sign import NotebookNotary

KERNEL = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}


def pytest_collection_modifyitems(items):
    """Everything here needs a browser."""
    if CHROMIUM is None:
        for item in items:
            if item.path.parent.name == "browser":
                item.add_marker(pytest.mark.skip(reason="needs Chromium, and none is installed"))


@pytest.fixture(scope="session")
def browser():
    """Chromium, driven by playwright."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


@dataclass
class Desk:
    """A running JupyterLab and a browser."""

    folder: Path
    address: str
    browser: Any
    notary: NotebookNotary

    def write(self, name: str, *sources: str, shown: Sequence[dict] = (), trusted: bool = True) -> None:
        """A notebook of code cells that were never run; `shown` is what the first one stores as outputs."""
        cells = [nbformat.v4.new_code_cell(source) for source in sources]
        for data in shown:
            cells[0].outputs.append(nbformat.v4.new_output("display_data", data))
        notebook = nbformat.v4.new_notebook(cells=cells, metadata=KERNEL)
        nbformat.write(notebook, self.folder / name)
        if trusted:
            self.notary.sign(notebook)

    def ask(self, method: str, path: str) -> list:
        """A request to the server's REST interface."""
        request = urllib.request.Request(
            f"{self.address}/api/{path}", method=method, headers={"Authorization": f"token {TOKEN}"}
        )
        return json.loads(urllib.request.urlopen(request, timeout=60).read() or "[]")

    def end_kernels(self) -> None:
        """Shut every kernel down, as closing JupyterLab does."""
        for session in self.ask("GET", "sessions"):
            self.ask("DELETE", f"sessions/{session['id']}")

    @contextmanager
    def page(self, name: str, width: int = 1280):
        """The notebook in a window of its own, open."""
        page = self.browser.new_page(viewport={"width": width, "height": 1800})
        page.set_default_timeout(PATIENCE)
        page.goto(f"{self.address}/lab/tree/{name}?token={TOKEN}&reset")
        page.wait_for_selector(".jp-Notebook .jp-CodeCell")
        yield page
        page.close()

    @staticmethod
    def run_all(page) -> None:
        """Run every cell and wait for the last one."""
        page.wait_for_selector("text=| Idle")
        page.click(".lm-MenuBar-itemLabel:text-is('Run')")
        page.click(".lm-Menu-itemLabel:text-is('Run All Cells')")
        done = "[...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')].every(e => /\\d/.test(e.textContent))"
        page.wait_for_function(done)

    @staticmethod
    def save(page) -> None:
        """Save the notebook and wait until it is."""
        page.keyboard.press("Control+s")
        page.wait_for_function("!document.querySelector('.jp-mod-dirty')")


@pytest.fixture(scope="module")
def desk(browser, tmp_path_factory):
    """JupyterLab on an empty folder, with its own signatures."""
    folder, signatures = tmp_path_factory.mktemp("desk"), tmp_path_factory.mktemp("signatures")
    with serving(folder, f"--NotebookNotary.data_dir={signatures}") as address:
        yield Desk(folder, address, browser, NotebookNotary(data_dir=str(signatures)))


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The address of the whole site, built anew; test processes that run side by side share one."""
    from cs336course.site import build

    mine = tmp_path_factory.getbasetemp()
    # Side by side each process has a folder of its own, inside of this run's.
    shared = (mine.parent if "PYTEST_XDIST_WORKER" in os.environ else mine) / "site"
    with FileLock(f"{shared}.lock"):
        if not shared.exists():
            build(shared)
    with files(shared) as address:
        yield address

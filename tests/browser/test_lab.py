"""The course as a newcomer sees it: JupyterLab opens a lesson, runs it, and an exercise answers.

Everything stays on this machine.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from jupyter_browser import PATIENCE

from cs336course.copies import content

ROOT = Path(__file__).parents[2]
LESSON = "notebooks/00_napkin_math.ipynb"


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A clone of the course with its first lesson alone."""
    folder = tmp_path_factory.mktemp("course")
    (folder / "notebooks").mkdir()
    for name in ("Makefile", ".gitignore", LESSON):
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(ROOT / ".jupyter", folder / ".jupyter")
    for command in (["init"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", "course"]):
        subprocess.run(["git", *command], cwd=folder, check=True, capture_output=True)
    return folder


def answers(address):
    """Whether somebody listens there, whatever the answer."""
    try:
        urllib.request.urlopen(address, timeout=30).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def lab(clone, tmp_path_factory):
    """The address that `make lab` prints, once JupyterLab answers; it saves every two seconds instead of every two minutes."""
    settings = tmp_path_factory.mktemp("settings")
    (settings / "@jupyterlab/docmanager-extension").mkdir(parents=True)
    saving = settings / "@jupyterlab/docmanager-extension/plugin.jupyterlab-settings"
    saving.write_text(json.dumps({"autosaveInterval": 2}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = f"--no-browser --port={port}"
    printed = clone.parent / f"{clone.name}.log"
    with printed.open("w") as log:
        server = subprocess.Popen(
            ["make", "lab", f"PY={sys.executable}", f"LAB={options}"],
            cwd=clone,
            env={**os.environ, "JUPYTERLAB_SETTINGS_DIR": str(settings), "PYTHONPATH": str(ROOT)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + PATIENCE / 1000
        while not (found := re.search(rf"http://127\.0\.0\.1:{port}/\S+", printed.read_text())):
            assert server.poll() is None and time.monotonic() < deadline, printed.read_text()
            time.sleep(0.3)
        # It prints its address a moment before it listens there.
        while not answers(found[0]):
            assert server.poll() is None and time.monotonic() < deadline, printed.read_text()
            time.sleep(0.3)
        yield found[0]
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(120)


@pytest.fixture(scope="module")
def page(lab, browser):
    """What a browser shows at the printed address, once a kernel is idle there."""
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    page.set_default_timeout(PATIENCE)
    page.goto(lab)
    page.wait_for_selector("text=| Idle")
    yield page
    page.close()


def saved(page, path, before):
    """Wait until JupyterLab has written the file by itself."""
    deadline = time.monotonic() + PATIENCE / 1000
    while path.read_bytes() in (before, b""):  # empty for a moment, while it is written
        assert time.monotonic() < deadline, f"{path} was not saved"
        page.wait_for_timeout(300)


def changed(clone):
    """What git says has changed."""
    return subprocess.run(
        ["git", "status", "--porcelain"], cwd=clone, check=True, capture_output=True, text=True
    ).stdout


def test_the_lab_asks_for_its_token(lab):
    address = urllib.parse.urlsplit(lab)
    assert address.path == f"/lab/tree/my/{Path(LESSON).name}" and "token=" in address.query
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(address._replace(path="/api/contents", query="").geturl(), timeout=30)


def test_the_printed_address_opens_the_reader_s_copy_of_the_first_lesson(page, clone):
    page.wait_for_selector(f".lm-TabBar-tab.lm-mod-current:has-text('{Path(LESSON).name}')")
    assert page.locator(".jp-Launcher").count() == 0
    # What nbgrader adds is a lecturer's.
    assert page.get_by_text(re.compile("nbgrader|Validate|Create Assignment", re.I)).count() == 0
    assert (clone / "my" / Path(LESSON).name).exists()


def test_a_copy_that_was_opened_and_saved_is_untouched_and_git_is_clean(page, clone):
    mine = clone / "my" / Path(LESSON).name
    saved(page, mine, (clone / LESSON).read_bytes())
    assert content(mine) == content(clone / LESSON)
    assert changed(clone) == ""


def test_the_lesson_shows_what_was_stored_before_anything_runs(page):
    page.wait_for_selector("h1:has-text('00 ·')")
    # Cells are drawn one after the other: what is stored appears, and so does what is folded.
    page.wait_for_selector(".jp-OutputArea-output")
    answer = page.locator("details:has(> summary:text-is('The answer'))").first
    answer.wait_for()
    assert not answer.locator("table").is_visible()


def test_run_all_runs_to_the_end_without_an_error(page):
    page.click(".lm-MenuBar-itemLabel:text-is('Run')")
    page.click(".lm-Menu-itemLabel:text-is('Run All Cells')")
    page.wait_for_selector("text=| Busy")
    page.wait_for_selector("text=| Idle")
    assert page.locator("[data-mime-type='application/vnd.jupyter.stderr']").count() == 0
    assert page.locator(".jp-RenderedText[data-mime-type='application/vnd.jupyter.error']").count() == 0


def test_a_copy_that_was_run_is_the_reader_s_and_git_is_clean(page, clone):
    mine = clone / "my" / Path(LESSON).name
    page.keyboard.press("Control+S")
    deadline = time.monotonic() + PATIENCE / 1000
    while content(mine) == content(clone / LESSON) and time.monotonic() < deadline:
        page.wait_for_timeout(300)
    assert content(mine) != content(clone / LESSON)
    assert changed(clone) == ""


def test_a_terminal_knows_the_command(lab, clone):
    """The shell that JupyterLab starts has the folder of its Python first, whatever a login shell would make of that."""
    address = urllib.parse.urlsplit(lab)
    query = f"?{address.query}"
    ask = urllib.request.Request(
        address._replace(path="/api/terminals", query="").geturl() + query, data=b"", method="POST"
    )
    with urllib.request.urlopen(ask, timeout=60):
        pass
    started = []
    for process in (Path("/proc") / name for name in os.listdir("/proc") if name.isdecimal()):
        with contextlib.suppress(OSError):
            told = (process / "environ").read_text(errors="replace").split("\0")
            if f"JUPYTER_SERVER_ROOT={clone}" in told:
                path = next(line.removeprefix("PATH=") for line in told if line.startswith("PATH="))
                started.append((path.split(":"), (process / "cmdline").read_text().split("\0")))
    assert started and all("-l" not in words for _, words in started)
    # What the shell starts by itself has the folder, too, wherever the reader's own settings put it.
    assert all(str(Path(sys.executable).parent) in path for path, _ in started)

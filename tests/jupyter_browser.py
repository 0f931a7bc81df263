"""JupyterLab or plain files on a loopback address, for a browser: what the tests in tests/browser share."""

import contextlib
import functools
import http.server
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from typing import ClassVar

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
TOKEN = "course"


@contextlib.contextmanager
def serving(folder, *options, **environment):
    """The address of a JupyterLab on this folder, with a token, on this machine only."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = ["--no-browser", "--ip=127.0.0.1", f"--port={port}", f"--IdentityProvider.token={TOKEN}", "--allow-root"]
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", *settings, f"--ServerApp.root_dir={folder}", *options],
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + PATIENCE / 1000
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/api/status?token={TOKEN}", timeout=5)
                break
            except OSError:
                time.sleep(0.3)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def opened(browser, address, name, **view):
    """A notebook, open in the browser, its kernel idle."""
    page = browser.new_page(viewport={"width": 1280, "height": 1000}, **view)
    page.set_default_timeout(PATIENCE)
    page.goto(f"{address}/lab/tree/{name}?token={TOKEN}&reset")
    page.wait_for_selector("text=| Idle")
    return page


class _Files(http.server.SimpleHTTPRequestHandler):
    """Files with the types that a browser insists on, and no word of each request."""

    extensions_map: ClassVar = {
        **http.server.SimpleHTTPRequestHandler.extensions_map,
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }

    def log_message(self, format, *args):
        pass


@contextlib.contextmanager
def files(folder):
    """The address under which a browser on this machine sees the files of a folder."""
    handler = functools.partial(_Files, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()

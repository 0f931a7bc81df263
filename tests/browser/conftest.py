"""A browser for these tests; they are skipped, with that reason, where no Chromium is installed."""

import pytest
from jupyter_browser import CHROMIUM, QUIET


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

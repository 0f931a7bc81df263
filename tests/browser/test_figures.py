"""Figures as a reader meets them: with a name, no wider than the page, also in a notebook that is not trusted."""

from pathlib import Path

import pytest
from jupyter_browser import serving
from nbformat.sign import NotebookNotary

from cs336course import lab
from cs336kit import teach

ROOT = Path(__file__).parents[2]

NAME = "A loss that falls from five to three in eight steps, a little more slowly at the end."


@pytest.fixture(scope="module")
def shown():
    """What a wide figure and a wide table leave in a notebook."""
    figure, ax = teach.figures.axes(width=12)
    ax.plot([5, 4, 3.4, 3])
    drawn, _ = teach.figures.show(figure, alt=NAME)._repr_mimebundle_()
    table = teach.table([f"column {i}" for i in range(40)], [range(40)], caption="Forty columns.")
    return [drawn, {"text/plain": repr(table), "text/html": table._repr_html_()}]


def test_a_figure_has_a_name_and_is_no_wider_than_the_page(desk, shown):
    desk.write("figures.ipynb", "1", shown=shown)
    with desk.page("figures.ipynb") as page:
        figure = page.get_by_role("img", name=NAME, exact=True)
        figure.wait_for()
        trusted = page.locator(".jp-mod-trusted[data-mime-type='text/html']")
        trusted.nth(1).wait_for()
        assert trusted.count() == 2
        wide = "e => e.scrollWidth > e.clientWidth"
        sizes = []
        for width in (1280, 900, 853):  # 853 pixels are what is left of 1280 at a zoom of 150 %
            page.set_viewport_size({"width": width, "height": 900})
            # The page is laid out anew some time after its window has changed.
            inside = "width => document.querySelector('.jp-NotebookPanel').getBoundingClientRect().right <= width"
            page.wait_for_function(inside, arg=width)
            sizes.append(figure.evaluate("e => e.clientWidth"))
            assert not any(area.evaluate(wide) for area in page.locator(".jp-OutputArea-output").all())
            assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
        assert sizes == sorted(sizes, reverse=True) and len({*sizes}) == 3 and sizes[-1] > 200
        table = page.get_by_role("table", name="Forty columns.")
        assert table.locator("xpath=..").evaluate(wide)  # it scrolls in a box of its own
        assert table.get_by_role("columnheader").count() == 40 and table.get_by_role("rowheader").count() == 1


def test_a_figure_is_seen_and_named_where_the_notebook_is_not_trusted(desk, shown):
    desk.write("untrusted.ipynb", "2", shown=shown, trusted=False)
    with desk.page("untrusted.ipynb") as page:
        figure = page.get_by_role("img", name=NAME, exact=True)
        figure.wait_for()
        assert figure.evaluate("e => e.naturalWidth") > 0
        assert page.locator(".jp-mod-trusted[data-mime-type='text/html']").count() == 0


@pytest.fixture(scope="module")
def dark(desk, tmp_path_factory):
    """JupyterLab with its dark theme and what `make lab` gives it, on an empty folder."""
    folder, settings = tmp_path_factory.mktemp("dark"), tmp_path_factory.mktemp("settings")
    theme = settings / "@jupyterlab/apputils-extension/themes.jupyterlab-settings"
    theme.parent.mkdir(parents=True)
    theme.write_text('{"theme": "JupyterLab Dark"}')
    own = {"JUPYTERLAB_SETTINGS_DIR": str(settings), "JUPYTER_PATH": lab.settings(ROOT)["JUPYTER_PATH"]}
    signatures = tmp_path_factory.mktemp("signatures")
    with serving(folder, f"--NotebookNotary.data_dir={signatures}", **own) as address:
        yield type(desk)(folder, address, desk.browser, NotebookNotary(data_dir=str(signatures)))


def test_where_the_lab_is_dark_so_are_figures(desk, dark, shown):
    for one, filtered in ((desk, "none"), (dark, "invert(0.93) hue-rotate(180deg)")):
        one.write("themes.ipynb", "3", shown=shown)
        with one.page("themes.ipynb") as page:
            figure = page.get_by_role("img", name=NAME, exact=True)
            figure.wait_for()
            themed = "([name, css]) => [...document.images].some((e) => e.alt === name && getComputedStyle(e).filter === css)"
            page.wait_for_function(themed, arg=[NAME, filtered])

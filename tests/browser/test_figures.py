"""Figures as a reader meets them: with a name, no wider than the page, also in a notebook that is not trusted."""

import nbformat
import pytest

NAME = "A loss that falls from five to three in eight steps, a little more slowly at the end."
DRAW = f"""\
from cs336kit import teach
figure, ax = teach.figures.axes(width=12)
ax.plot([5, 4, 3.4, 3])
teach.figures.show(figure, alt={NAME!r})"""
TABLE = "teach.table([f'column {i}' for i in range(40)], [range(40)], caption='Forty columns.')"


@pytest.fixture(scope="module")
def notebook(desk):
    """A notebook with a wide figure and a wide table, run and saved."""
    desk.write("figures.ipynb", DRAW, TABLE)
    with desk.page("figures.ipynb") as page:
        desk.run_all(page)
        page.get_by_role("img", name=NAME).wait_for()
        desk.save(page)
    return desk.folder / "figures.ipynb"


# 853 pixels are what is left of 1280 at a zoom of 150 %.
@pytest.mark.parametrize("width", [1280, 900, 853])
def test_a_figure_has_a_name_and_is_no_wider_than_the_page(desk, notebook, width):
    with desk.page(notebook.name, width) as page:
        figure = page.get_by_role("img", name=NAME, exact=True)
        figure.wait_for()
        inside = "e => [e.clientWidth, e.naturalWidth, e.closest('.jp-OutputArea-output').clientWidth]"
        shown, natural, room = figure.evaluate(inside)
        assert 0 < shown == min(natural, shown) <= room
        wide = "e => e.scrollWidth > e.clientWidth"
        assert not any(area.evaluate(wide) for area in page.locator(".jp-OutputArea-output").all())
        assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
        table = page.get_by_role("table", name="Forty columns.")
        assert table.locator("xpath=..").evaluate(wide)  # it scrolls in a box of its own
        assert table.get_by_role("columnheader").count() == 40 and table.get_by_role("rowheader").count() == 1


def test_a_figure_is_seen_and_named_where_the_notebook_is_not_trusted(desk, notebook):
    changed = nbformat.read(notebook, as_version=4)
    changed.cells[0].source = f"# from elsewhere\n{changed.cells[0].source}"
    changed.metadata.pop("signature", None)
    for output in changed.cells[0].outputs:
        output.metadata["from"] = "elsewhere"  # what was signed was another output
    nbformat.write(changed, desk.folder / "untrusted.ipynb")
    with desk.page("untrusted.ipynb") as page:
        assert page.locator(".jp-mod-trusted[data-mime-type='text/html']").count() == 0
        figure = page.get_by_role("img", name=NAME, exact=True)
        figure.wait_for()
        assert figure.evaluate("e => e.naturalWidth") > 0

"""The site as a reader meets it: found by search, folded, on a phone, in the dark, and by ear."""

import re
from contextlib import contextmanager
from pathlib import Path

import pytest
from jupyter_browser import PATIENCE, files
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output, writes

from cs336course import cells as kind
from cs336course.pages import metadata
from cs336course.site import build, names
from cs336kit import teach

ROOT = Path(__file__).parents[2]
AXE = ROOT / "node_modules/axe-core/axe.min.js"
LESSON = "notebooks/02_rounding.html"
KINDS = ("index.html", LESSON, "cards.html", "claims.html", "api/measure.html", "search.html?q=roofline")
# The first of these tests builds the site, which a busy machine does slowly.
pytestmark = [pytest.mark.filterwarnings("ignore::PendingDeprecationWarning"), pytest.mark.timeout(900)]


@pytest.fixture
def opened(browser, site):
    """Opens a page of the site; whatever it asks of another host, misses or complains about fails the test."""
    complaints = []

    @contextmanager
    def opened(name, **view):
        page = browser.new_page(**{"viewport": {"width": 1280, "height": 1000}, **view})
        page.set_default_timeout(PATIENCE)
        page.on("request", lambda asked: _ours(asked.url) or complaints.append(f"asks {asked.url}"))
        page.on("response", lambda got: got.status < 400 or complaints.append(f"{got.status} {got.url}"))
        page.on("console", lambda said: said.type in ("error", "warning") and complaints.append(said.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(name if "://" in name else f"{site}/{name}")
        page.wait_for_load_state("networkidle")
        yield page
        page.close()

    def _ours(url):
        return url.startswith(("http://127.0.0.1:", "data:"))

    yield opened
    assert complaints == []


def test_search_finds_the_roofline_and_leads_to_its_lesson(opened):
    with opened("index.html") as page:
        page.get_by_role("searchbox", name="Search").locator("visible=true").fill("roofline")
        page.keyboard.press("Enter")
        page.get_by_role("link", name="07 · Time and roofline").locator("visible=true").last.click()
        page.get_by_role("heading", name="07 · Time and roofline").wait_for()


@pytest.fixture(scope="module")
def folds(tmp_path_factory):
    """The address of a lesson's page with all that a lesson folds, and formulas inside and outside of it."""
    clone = tmp_path_factory.mktemp("folds")
    (clone / "node_modules").symlink_to(ROOT / "node_modules")
    (clone / "notebooks").mkdir()
    answer = teach.reveal(..., of="bits", counted=32)
    said = {"text/html": answer._repr_html_(), "text/plain": repr(answer)}
    cells = [
        new_markdown_cell("# 00 · Folds\n\n**What is folded?**\n\nFirst $2^5$."),
        new_code_cell("guess = ...   # bits", metadata={"tags": ["prediction"]}),
        new_code_cell("teach.reveal(guess)", metadata={"tags": ["answer"]}, outputs=[new_output("display_data", said)]),
        new_markdown_cell(f"{kind.FOLD}It is $2^5$, as **above**.{kind.FOLD_END}"),
        new_code_cell("solution = 32", metadata={"tags": ["solution"]}),
    ]
    for cell, data in zip(cells, metadata(cells), strict=True):
        cell.metadata = data
    (clone / "notebooks/00_folds.ipynb").write_text(writes(new_notebook(cells=cells)), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(names, "ROOMS", {})
        patch.setattr("cs336course.site.PAGES", clone)
        build(clone / "site", clone)
    with files(clone / "site") as address:
        yield f"{address}/notebooks/00_folds.html"


def fold(page, name):
    """The fold of this name, and what is in it."""
    found = page.locator(f"main details:has(> summary:text-is('{name}'))")
    assert found.count() == 1
    return found.locator("> summary"), found.locator("table, pre, p").first


def test_an_answer_is_one_fold_that_opens_by_keyboard_beside_its_folded_code(opened, folds):
    with opened(folds) as page:
        summary, answer = fold(page, "The answer")
        assert summary.is_visible() and not answer.is_visible() and not fold(page, "The code")[1].is_visible()
        summary.focus()
        page.keyboard.press("Enter")
        assert answer.is_visible() and not fold(page, "The code")[1].is_visible()
        # None of them is in another.
        assert page.locator("main details details").count() == 0 and page.locator("main details").count() == 4


def test_a_formula_in_prose_that_was_folded_is_as_large_as_any_other(opened, folds):
    with opened(folds) as page:
        summary, prose = fold(page, "What it says")
        page.wait_for_selector("main details mjx-container svg", state="attached")
        assert not prose.is_visible()
        summary.click()
        assert prose.locator("strong").is_visible()
        sizes = page.locator("main mjx-container svg").evaluate_all(
            "all => all.map((e) => e.getBoundingClientRect().height)"
        )
        assert len(sizes) == 2 and sizes[0] > 8 and sizes[1] == pytest.approx(sizes[0], rel=0.05)


@pytest.mark.parametrize("scripts", [True, False])
def test_on_paper_everything_folded_is_open_and_then_folded_again(opened, folds, scripts):
    with opened(folds, java_script_enabled=scripts) as page:
        inside = [fold(page, name)[1] for name in ("The answer", "The code", "What it says", "The solution")]
        assert not any(one.is_visible() for one in inside)
        fold(page, "The answer")[0].click()
        for media, seen in (("print", "visible"), ("screen", "hidden")):
            page.emulate_media(media=media)
            for one in inside[1:]:
                one.wait_for(state=seen)
            assert inside[0].is_visible(), "what the reader has opened stays open"


def test_no_line_of_code_is_cut_on_paper(opened):
    # A4 with margins of a centimeter.
    with opened(LESSON, viewport={"width": 718, "height": 1047}) as page:
        page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
        page.emulate_media(media="print")
        wide = "all => all.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.innerText)"
        assert page.locator("main pre").evaluate_all(wide) == []
        # Code that scrolls is never divided, so its frame must not be, either: it would stay on the page before, empty.
        divided = "all => all.filter((one) => getComputedStyle(one).breakInside !== 'avoid').length"
        assert page.locator("main .cell_input").evaluate_all(divided) == 0


@pytest.mark.parametrize("name", KINDS)
def test_on_a_phone_no_page_scrolls_sideways(opened, name):
    with opened(name, viewport={"width": 390, "height": 844}) as page:
        page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert page.get_by_role("heading", level=1).is_visible()


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_serious_is_in_the_way_of_anyone(opened, name, scheme):
    with opened(name, color_scheme=scheme) as page:
        page.evaluate("document.querySelectorAll('main details').forEach((fold) => { fold.open = true; })")
        page.evaluate(AXE.read_text(encoding="utf-8"))
        # The dark changes colors, and nothing else.
        found = page.evaluate("only => axe.run(only)", {"runOnly": ["color-contrast"]} if scheme == "dark" else {})
        assert found["passes"]
        serious = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
        assert [(one["id"], one["nodes"][0]["html"]) for one in serious] == []


def test_the_dark_is_a_choice_that_stays(opened):
    ground = "getComputedStyle(document.body).backgroundColor"
    with opened("index.html", color_scheme="light") as page:
        bright = page.evaluate(ground)
        page.get_by_role("button", name="Color mode").locator("visible=true").click()
        page.locator("[data-mode=dark] >> visible=true").click()
        assert page.evaluate(ground) != bright
        page.goto(page.url.replace("index.html", LESSON))
        assert page.evaluate(ground) != bright
        figure = page.locator(".cell_output img[src^='data:image/svg']").first
        assert "invert" in figure.evaluate("e => getComputedStyle(e).filter") and figure.get_attribute("alt")


def test_formulas_are_set_without_another_host(opened):
    with opened(LESSON) as page:
        page.wait_for_selector("mjx-container svg")


def test_claims_are_chosen_by_topic_verdict_and_words_and_the_address_keeps_it(opened):
    with opened("claims.html") as page:
        seen = page.locator("#claims li:visible")
        status = page.locator("#claims-filter output")
        every = int(re.match(r"(\d+) of \1 claims", status.inner_text())[1])
        page.get_by_label("topic").select_option("floats")
        floats = seen.count()
        page.get_by_label("verdict").select_option("wrong")
        assert 0 < seen.count() < floats < every
        assert status.inner_text() == f"{seen.count()} of {every} claims"
        assert {text for text in page.locator("#claims li:visible > b").all_inner_texts()} == {"wrong"}
        chosen = seen.all_inner_texts()
        page.reload()
        assert seen.all_inner_texts() == chosen
        page.get_by_label("contains").fill("nothing says this")
        assert seen.count() == 0 and status.inner_text().startswith("0 of")
        # A link that somebody sent, pasted where the page is already open.
        page.evaluate("location.hash = '#topic=floats'")
        page.wait_for_function("document.querySelector('#claims-filter [name=text]').value === ''")
        assert seen.count() == floats and page.url.endswith("#topic=floats")

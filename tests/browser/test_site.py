"""The site as a reader meets it: found by search, folded, on a phone, in the dark, and by ear."""

import re
from contextlib import contextmanager
from pathlib import Path

import pytest
from jupyter_browser import PATIENCE

AXE = Path(__file__).parents[2] / "node_modules/axe-core/axe.min.js"
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
        page.goto(f"{site}/{name}")
        page.wait_for_load_state("networkidle")
        yield page
        page.close()

    def _ours(url):
        return url.startswith((site, "data:"))

    yield opened
    assert complaints == []


def test_search_finds_the_roofline_and_leads_to_its_lesson(opened):
    with opened("index.html") as page:
        page.get_by_role("searchbox", name="Search").locator("visible=true").fill("roofline")
        page.keyboard.press("Enter")
        page.get_by_role("link", name="07 · Time and roofline").locator("visible=true").last.click()
        page.get_by_role("heading", name="07 · Time and roofline").wait_for()


def test_an_answer_opens_by_keyboard_and_stays_off_paper_until_it_is_open(opened):
    with opened(LESSON) as page:
        fold = page.locator("details.fold:has(> summary:text-is('The answer'))").first
        answer, summary = fold.locator(".cell_output"), fold.locator("summary")
        assert summary.is_visible() and not answer.is_visible()
        page.emulate_media(media="print")
        assert not summary.is_visible()
        page.emulate_media(media="screen")
        summary.focus()
        page.keyboard.press("Enter")
        assert answer.is_visible()
        page.emulate_media(media="print")
        assert answer.is_visible()


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
        page.evaluate("document.querySelectorAll('details.fold').forEach((fold) => { fold.open = true; })")
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

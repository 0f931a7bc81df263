"""Every slide of every lesson in Chromium: nothing runs over, everything can be read, and no other host is asked."""

import re
from pathlib import Path

import pytest
from jupyter_browser import PATIENCE, files

from cs336course import lessons, roles, slides

#: No letter on a slide has fewer pixels, and no slide is drawn at a smaller multiple of its normal size; a page of a slide.
READABLE, SMALLEST = 16, 0.75
WIDTH, HEIGHT, SIDE, BOTTOM = 1280, 720, 56, 44
AXE = Path("node_modules/axe-core/axe.min.js")
#: All slides of a deck are laid out at once, and the edges of what is on each of them are measured.
LAYOUT = """slides => {
  const style = document.createElement("style");
  style.textContent = `.reveal .slides section, .reveal .slides .fragment
    { display: block !important; visibility: visible !important; opacity: 1 !important; transform: none !important; }`;
  document.head.append(style);
  // The parts of a drawing are reported where they would be without its transformations.
  const unseen = "aside, mjx-assistive-mml, script, style, svg *";
  const measured = [...document.querySelectorAll(slides)].map((slide) => {
    const box = slide.getBoundingClientRect();
    const found = { left: 999, right: 0, bottom: 0, letters: 999, lines: 0, broken: 0, scrolls: 0 };
    found.text = slide.innerText.slice(0, 80);
    const title = slide.dataset.size ? null : slide.querySelector("h2, h3");
    found.title = title && [title.getBoundingClientRect().top - box.top, getComputedStyle(title).fontSize];
    found.by = parseFloat(getComputedStyle(slide).getPropertyValue("--by"));
    const take = (node) => node.nodeType === 1 && node.matches(unseen) ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT;
    const walk = document.createTreeWalker(slide, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT, take);
    for (let node = walk.nextNode(); node; node = walk.nextNode()) {
      const text = node.nodeType === 3;
      if (text && !node.data.trim()) continue;
      const range = document.createRange();
      range.selectNode(node);
      for (const edge of range.getClientRects()) {
        found.left = Math.min(found.left, edge.left - box.left);
        found.right = Math.max(found.right, edge.right - box.left);
        found.bottom = Math.max(found.bottom, edge.bottom - box.top);
      }
      if (!text) {
        found.scrolls += node.scrollWidth > node.clientWidth + 1 && getComputedStyle(node).overflowX !== "visible";
        continue;
      }
      found.letters = Math.min(found.letters, parseFloat(getComputedStyle(node.parentElement).fontSize));
    }
    for (const code of slide.querySelectorAll(".jp-InputArea-editor pre")) {
      const lines = code.textContent.trimEnd().split("\\n").length;
      found.lines += lines;
      found.broken += code.clientHeight > (lines + 0.5) * parseFloat(getComputedStyle(code).lineHeight);
    }
    found.figures = [...slide.querySelectorAll("img")].map((img) =>
      ({ alt: img.alt, width: img.naturalWidth, height: img.naturalHeight, scale: img.clientWidth / img.naturalWidth }));
    return found;
  });
  style.remove();
  return measured;
}"""
SLIDES, PRINTED = ".slides > section > section", ".pdf-page > section"
#: The fixture writes every deck, and one test opens all of them.
pytestmark = pytest.mark.timeout(900)
READY = "window.Reveal && Reveal.isReady()"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The slides of all lessons."""
    if not (slides.MODULES / "reveal.js").exists():
        pytest.skip("needs the packages of package.json: make node_modules/.ready")
    into = tmp_path_factory.mktemp("slides")
    slides.write([], into)
    return into


@pytest.fixture(scope="module")
def address(folder):
    with files(folder) as found:
        yield found


@pytest.fixture
def page(browser, address):
    """A page as large as a slide; what asks another host, and whatever the console complains about, fails the test."""
    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
    page.set_default_timeout(PATIENCE)
    wrong = []

    def route(asked):
        ours = asked.request.url.startswith((address, "file:"))
        if not ours:
            wrong.append(asked.request.url)
        asked.continue_() if ours else asked.abort()

    page.context.route("**/*", route)
    page.on("console", lambda said: said.type in ("error", "warning") and wrong.append(said.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    yield page
    page.context.close()
    assert wrong == []


def opened(page, address, path, query=""):
    page.goto(f"{address}/{slides.deck(path)}{query}")
    page.wait_for_function(READY)


def lesson(number):
    return lessons.find([number])[0]


def runs_over(slide):
    """Whether something lies in the margins; in half of one, a blank may hang at the end of a line."""
    left, right = slide["left"] < SIDE - 1, slide["right"] > WIDTH - SIDE / 2
    return left or right or slide["bottom"] > HEIGHT - BOTTOM + 1


def turn_to(page, selector):
    """Turn to the first slide with such an element."""
    page.evaluate(
        """selector => {
          const slide = document.querySelector(selector).closest("section");
          const at = Reveal.getIndices(slide);
          Reveal.slide(at.h, at.v);
        }""",
        selector,
    )


def test_nothing_runs_over_a_slide_and_everything_can_be_read(page, address):
    found, sizes, titles = [], [], set()
    for path in lessons.find([]):
        opened(page, address, path)
        assert page.locator("mjx-merror").count() == 0
        for number, slide in enumerate(page.evaluate(LAYOUT, SLIDES), 1):
            where = f"{path.stem}, slide {number}, {slide['text']!r}"
            sizes.append(slide["by"])
            titles |= {tuple(slide["title"])} if slide["title"] else set()
            if runs_over(slide):
                found.append(f"{where} runs over: {slide['right']:.0f} × {slide['bottom']:.0f}")
            if slide["by"] < SMALLEST or slide["letters"] < READABLE:
                found.append(f"{where} is drawn at {slide['by']}, with letters of {slide['letters']} pixels")
            if slide["scrolls"] or slide["broken"]:
                found.append(f"{where} has parts that scroll, or breaks lines of code")
            if slide["lines"] > roles.SLIDE_LINES and "Exercise" not in slide["text"]:
                found.append(f"{where} has {slide['lines']} lines of code")
            for figure in slide["figures"]:
                if not figure["alt"] or not figure["width"] or figure["scale"] < SMALLEST:
                    found.append(f"{where} has a figure that is not seen: {figure}")
    assert found == [] and len(sizes) > 20 * len(lessons.find([]))
    # Except where a part opens, a title has one place and one size.
    assert len(titles) == 1
    # What has room is larger than normal: more than half of the slides.
    assert sorted(sizes)[len(sizes) // 2] > 1.1


def seen(page, tag):
    """How many cells with this tag can be seen."""
    look = "cells => cells.filter(e => e.checkVisibility({opacityProperty: true, visibilityProperty: true})).length"
    return page.locator(f".celltag_{tag}").evaluate_all(look)


def test_a_key_turns_to_the_next_slide_and_the_answer_waits_there(page, address):
    opened(page, address, lesson("03"))
    turn_to(page, ".celltag_prediction")
    assert (seen(page, "prediction"), seen(page, "answer")) == (1, 0)
    before = page.locator(".slide-number").inner_text()
    page.keyboard.press("ArrowRight")
    page.locator("section.present section.present .celltag_answer").wait_for()
    assert (seen(page, "prediction"), seen(page, "answer")) == (0, 1)
    assert page.locator(".slide-number").inner_text() != before


def test_formulas_are_drawn_and_money_is_not(page, address):
    opened(page, address, lesson("19"))
    drawn = page.locator("section section > .jp-MarkdownCell mjx-container > svg, .fragment mjx-container > svg")
    assert drawn.count() > 1
    turn_to(page, "section section .jp-MarkdownCell mjx-container[display=true]")
    page.evaluate("Reveal.navigateFragment(99)")  # all that waits for a key
    drawn.locator("visible=true").first.wait_for()
    assert page.locator(".jp-OutputArea mjx-container").count() == 0
    left = page.locator(".slides").evaluate("e => (e.textContent.match(/\\$\\$|\\\\frac/g) || []).length")
    assert left == 0


@pytest.mark.parametrize("how", ["served", "from the disk"])
def test_the_speaker_sees_notes_and_minutes(page, address, folder, how):
    opened(page, address if how == "served" else folder.as_uri(), lesson("03"))
    with page.expect_popup() as popup:
        page.keyboard.press("s")
    notes = popup.value.locator(".speaker-controls-notes .value")
    notes.get_by_text("Minute 0 of").wait_for()
    assert "Discuss" in notes.inner_text() and notes.locator("li").count() == 3
    page.keyboard.press("Space")
    notes.get_by_text("Nothing in their values tells them apart").wait_for()


def test_slides_can_be_printed(page, address):
    opened(page, address, lesson("07"))
    number = page.evaluate("Reveal.getTotalSlides()")
    opened(page, address, lesson("07"), "?print-pdf")
    page.wait_for_function("number => document.querySelectorAll('.pdf-page').length === number", arg=number)
    assert page.locator(".pdf-page .fragment:not(.visible)").count() == 0
    found = page.evaluate(LAYOUT, PRINTED)
    assert len(found) == number and not any(map(runs_over, found))
    printed = page.pdf(prefer_css_page_size=True)
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) == number


def test_light_and_dark_can_be_told_from_the_ground(page, address):
    opened(page, address, lesson("03"))
    page.add_script_tag(path=str(AXE))
    grounds = set()
    for _ in range(2):
        for selector in (".celltag_prediction", ".celltag_answer", "section section .celltag_exercise"):
            turn_to(page, selector)
            found = page.evaluate("() => axe.run('.slides', {runOnly: ['color-contrast', 'image-alt']})")
            assert [node["html"] for rule in found["violations"] for node in rule["nodes"]] == []
            assert found["passes"]
        grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        page.keyboard.press("d")
    assert len(grounds) == 2


def test_slides_begin_and_darken_where_the_browser_keeps_nothing(page, address):
    page.add_init_script("Object.defineProperty(window, 'localStorage', { get() { throw new Error('no cookies'); } })")
    opened(page, address, lesson("03"))
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.keyboard.press("d")
    dark = page.evaluate(ground)
    page.keyboard.press("d")
    assert dark != light == page.evaluate(ground)


def test_the_list_leads_to_every_deck(page, address, folder):
    page.goto(f"{address}/index.html")
    led = page.locator("li > a").evaluate_all("links => links.map(a => a.getAttribute('href'))")
    assert led == [slides.deck(path) for path in lessons.find([])]
    page.locator("li > a").first.click()
    page.wait_for_function(READY)
    assert all((folder / name).exists() for name in led)

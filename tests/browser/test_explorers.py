"""Explorers as a reader meets them: moved by hand, saved, opened again without their kernel."""

import pytest

NAMES = {"batch", "sequence", "model", "accelerator", "precision", "attention", "checkpointing"}
MISSING = "text=model not found"


@pytest.fixture(scope="module")
def moved(desk):
    """A notebook with two explorers whose controls were used, saved; its window is closed and its kernel runs."""
    desk.write(
        "explorers.ipynb",
        "from cs336kit import teach\nteach.explorers.memory('gpt2', batch=8, sequence=1024)",
        "teach.explorers.bits(0.1, 'fp8_e4m3')",
    )
    with desk.page("explorers.ipynb") as page:
        desk.run_all(page)
        yield desk, page


def picture(page):
    """The alt text of the only picture of the memory explorer that is seen."""
    (seen,) = page.locator("img[alt^='Two stacked bars']:visible").all()
    return seen.get_attribute("alt")


def move(page):
    """Move the slider of the batch one step down; returns the pictures before and after."""
    slider = page.get_by_role("slider", name="batch", exact=True)
    slider.wait_for()
    before = picture(page)
    slider.focus()
    page.keyboard.press("ArrowLeft")
    page.wait_for_function(
        "before => ![...document.images].some(e => e.checkVisibility() && e.alt === before)", arg=before
    )
    return before, picture(page)


def test_controls_have_names_and_move_the_picture(moved):
    _, page = moved
    before, after = move(page)
    assert before != after
    named = {*NAMES}
    for role in ("slider", "combobox", "checkbox"):
        named -= {name for name in named if page.get_by_role(role, name=name, exact=True).count()}
    assert not named


def test_a_bit_flips_when_clicked_and_the_typed_value_outlives_a_coarse_format(moved):
    _, page = moved
    value = page.get_by_role("textbox", name="value")
    page.get_by_role("combobox", name="format").select_option("fp32")
    page.wait_for_selector("text=0.1 becomes this value in fp32 >> visible=true")
    assert value.input_value() == "0.1"
    page.get_by_title("bit 31, sign: flip it").click()
    page.wait_for_function("[...document.querySelectorAll('input')].some(e => e.value === '-0.10000000149011612')")


def test_saved_and_opened_again_it_works_with_its_kernel_and_shows_the_last_picture_without(moved):
    desk, page = moved
    _, last = move(page)
    # The picture that is stored follows the one on the screen.
    page.wait_for_function(
        "last => [...document.querySelectorAll('.cs336kit-still img')].some(e => e.alt === last)", arg=last
    )
    desk.save(page)
    with desk.page("explorers.ipynb") as again:
        again.get_by_role("slider", name="batch").wait_for()
        assert picture(again) == last and move(again)[1] != last
    desk.end_kernels()
    with desk.page("explorers.ipynb") as again:
        again.wait_for_selector(".cs336kit-still >> visible=true")
        again.wait_for_selector(MISSING, state="attached")
        assert not any(error.is_visible() for error in again.locator(MISSING).all())
        assert picture(again) == last and again.get_by_role("slider").count() == 0
        assert again.locator("text=code 3184315597").is_visible()


def test_controls_that_have_lost_their_kernel_make_way_for_the_picture(desk):
    desk.write("lost.ipynb", "from cs336kit import teach\nteach.explorers.bits(0.1, 'fp8_e4m3')")
    with desk.page("lost.ipynb") as page:
        desk.run_all(page)
        page.locator(".widget-box >> visible=true").first.wait_for()
        assert not page.locator(".cs336kit-still").is_visible()
        # What ipywidgets does to a view whose connection has ended; it may draw a broken chain in front of it.
        lost = "boxes => boxes.forEach((box) => box.classList.add('jupyter-widgets-disconnected'))"
        page.locator(".widget-box").evaluate_all(lost)
        page.locator(".cs336kit-still >> visible=true").wait_for()
        assert not any(box.is_visible() for box in page.locator(".jupyter-widgets").all())

"""The planner and the explorers in a browser: the kit's own Python answers, in the page, and nothing else is asked."""

import contextlib
import io
import json
import re
import shutil
from pathlib import Path

import pytest
from jupyter_browser import PATIENCE, files

from cs336course.site import in_page, pyodide
from cs336kit.command import main
from cs336kit.lessons.configs import config_file

ROOT = Path(__file__).parents[2]
SITE = Path(pyodide.__file__).parent
#: A page of the site without its theme.
BARE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{0}</title>'
    "<main><h1>{0}</h1>{1}</main>"
)
#: The page's own function, for one line after the other.
ASKS = """async ([lines, config]) => {
  const { ask } = await import(`${location.origin}/_static/python.js`);
  const found = [];
  for (const line of lines) found.push(await ask("plan", { line: line.split(" "), config }, document.createElement("p")));
  return found;
}"""
#: Models, machines, layouts and options that meet in as few questions as show each of them.
LINES = [
    *(f"{model} --checkpointing" for model in ("gpt2", "mixtral-8x7b", "gemma-2b", "falcon-7b", "Qwen/Qwen3-8B")),
    *(f"llama-3-8b --accelerator {name} --tokens 1T" for name in ("a100-sxm-40gb", "rtx-4090", "mi300x", "tpu-v5p", "l4")),
    *(f"gpt2-xl --precision {name} --batch 3" for name in ("fp32", "autocast", "bf16", "fp16", "mixed-fp32-gradients")),
    *(f"gpt2-medium --optimizer {name} --count 4" for name in ("sgd", "adamw8bit", "adafactor", "muon", "lion")),
    *(f"llama-3-70b --between-nodes 400Gb/s --layout {text}" for text in ("fsdp=64", "fsdp=8,tp=8", "pp=4,dp=4,microbatches=8")),
    "mixtral-8x7b --layout fsdp=8,ep=8 --between-nodes 50GB/s",
    "llama-3-8b --count 16 --find --between-nodes 400Gb/s --tokens 15T",
    "llama-3-8b --count 64 --batch 4 --global-batch 1024 --steps 1000",
    "llama-3-8b --qlora 16 --accelerator rtx-4090 --checkpointing --largest-batch",
    "gpt2 --lora 8 --targets all --attention eager --chunks 4",
    "gpt2 --freeze query,key",
    "gpt2 --replicated --count 8",
    "gpt2 --device cpu",
    "7B --memory 96GB --peak 500TFLOPs --tokens 1T --count 8 --price-per-hour 2.5 --watts 700 --mfu 0.5",
    "gpt2 --tokens 10B --explain --sensitivity --allowance 8% --sequence 512 --accumulate 2",
    "gpt9", "gpt2 --tokens 15X", "gpt2 --layout tp=5", "70B --batch 2",
]  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The address of both pages with all that they load."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(SITE / "static", folder / "_static")
    shutil.copy(SITE / "pages/explorers.md", folder)
    pyodide.ship(folder, ROOT)
    for page in (SITE / "pages/planner.md", folder / "explorers.md"):
        raw = "".join(re.findall(r"```\{raw\} html\n(.*?)```", page.read_text(encoding="utf-8"), re.S))
        (folder / f"{page.stem}.html").write_text(BARE.format(page.stem, raw), encoding="utf-8")
    (folder / "favicon.ico").touch()
    with files(folder) as address:
        yield address


@pytest.fixture(scope="module")
def window(site, browser):
    """Opens a page of the site; afterwards nothing was asked of another host, and nothing was complained of."""
    asked, said, pages = [], [], []

    def opened(name, **view):
        page = browser.new_page(viewport={"width": 1280, "height": 900}, **view)
        page.set_default_timeout(PATIENCE)
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(f"{site}/{name}")
        page.wait_for_selector("main button")
        pages.append(page)
        return page

    yield opened
    for page in pages:
        page.close()
    assert said == [] and {url.split("/")[2] for url in asked if not url.startswith("data:")} == {site.split("/")[2]}


@pytest.fixture(scope="module")
def planner(window):
    """The planner, which has answered its first question."""
    page = window("planner.html")
    compute(page)
    return page


def compute(page):
    page.get_by_role("button", name="Compute").click()
    page.wait_for_function("document.querySelector('#planner section table, #planner [role=alert]:not(:empty)')")


def settled(page, expression):
    """Wait until the answer is one of which this is true."""
    page.wait_for_function(
        f"(() => {{ const said = document.querySelector('#planner section').innerText; {expression} }})()"
    )


def command(line, config):
    """What `cs336kit plan` prints: its values, its text and its sentence, if it refuses."""
    values, text, refused = io.StringIO(), io.StringIO(), io.StringIO()
    words = [str(config) if word == "config.json" else word for word in line.split()]
    with contextlib.redirect_stderr(refused), contextlib.suppress(SystemExit):
        for out, more in ((text, []), (values, ["--json"])):
            with contextlib.redirect_stdout(out):
                main(["plan", *words, *more])
    if refused.getvalue():
        return {"error": refused.getvalue().splitlines()[0]}
    return {"values": json.loads(values.getvalue()), "text": text.getvalue().removesuffix("\n")}


def in_floats(value):
    """JavaScript has one type of numbers."""
    if isinstance(value, dict):
        return {key: in_floats(one) for key, one in value.items()}
    if isinstance(value, list):
        return [in_floats(one) for one in value]
    return float(value) if type(value) is int else value


def test_the_page_answers_as_the_command_does(planner, tmp_path):
    config = tmp_path / "config" / "config.json"  # a file of this name is called by its folder
    config.parent.mkdir()
    config.write_text(Path(config_file("llama-3.1-8b")).read_text(encoding="utf-8"), encoding="utf-8")
    lines = [*LINES, "config.json --count 8 --checkpointing --largest-batch", "config.json --batch 2 --tokens 1T"]
    answers = planner.evaluate(ASKS, [lines, config.read_text(encoding="utf-8")])
    refused = 0
    for line, answer in zip(lines, answers, strict=True):
        assert in_floats(answer) == in_floats(command(line, config)), line
        refused += "error" in answer
    assert len(lines) - refused >= 30 and refused == 4


def test_what_is_chosen_is_computed_and_stands_in_the_address_and_as_a_command(planner):
    assert planner.locator("#planner > form > fieldset > legend").all_inner_texts() == [
        "the model",
        "the run",
        "the machine",
    ]
    planner.get_by_label("count", exact=True).fill("8")
    planner.get_by_label("tokens", exact=True).fill("1T")
    planner.get_by_label("checkpointing").press("Space")
    settled(
        planner,
        "return said.includes('--tokens 1T') && said.includes('--count 8') && said.includes('--checkpointing');",
    )
    line = "llama-3-8b --tokens 1T --checkpointing --count 8"
    wanted = command(line, None)
    shown = planner.locator("#planner section")
    shown.get_by_text("All that the command says").click()
    assert shown.get_by_role("region", name="the command's answer").inner_text().strip() == wanted["text"].strip()
    assert shown.locator("code").inner_text() == f"cs336kit plan {line}"
    cells = dict(re.findall(r"^(.+?)\t([\d.,]+)\t", shown.get_by_role("table").inner_text(), re.M))
    gib = {**wanted["values"]["memory_bytes"], "together": wanted["values"]["total_bytes"]}
    assert {name: cells[name] for name in gib} == {name: f"{size / 2**30:,.2f}" for name, size in gib.items()}
    assert shown.get_by_role("img").get_attribute("aria-label").startswith(cells["together"])
    status = planner.locator("#planner [role=status]").inner_text()
    assert "it fits" in status and status.startswith("time:") and status.split(" · ")[0] in wanted["text"]
    assert planner.url.endswith("#model=llama-3-8b&tokens=1T&checkpointing=on&count=8")


def test_a_bad_value_gets_the_sentence_and_loses_nothing(planner):
    planner.get_by_label("tokens", exact=True).fill("15X")
    compute(planner)
    planner.get_by_role("alert").get_by_text("write 70e9, 70B or 15T").wait_for()
    assert planner.get_by_role("alert").inner_text() == command("gpt2 --tokens 15X", None)["error"]
    assert planner.get_by_label("tokens", exact=True).input_value() == "15X"
    assert not planner.locator("#planner section").is_visible()
    planner.get_by_label("tokens", exact=True).fill("15T")
    compute(planner)
    settled(planner, "return said.includes('--tokens 15T');")
    assert planner.locator("#planner section").is_visible() and planner.get_by_role("alert").count() == 0


def test_an_address_restores_what_was_chosen(window, planner):
    text = Path(config_file("llama-3.1-8b")).read_text(encoding="utf-8")
    planner.get_by_text("A model of your own").click()
    planner.get_by_label("its file").set_input_files(
        {"name": "mine.json", "mimeType": "application/json", "buffer": text.encode()}
    )
    settled(planner, "return said.includes('config.json');")
    again = window("planner.html" + planner.url[planner.url.index("#") :])
    assert again.get_by_label("text of config.json").input_value() == text.strip()
    assert again.get_by_label("model", exact=True).is_disabled() and again.get_by_label("checkpointing").is_checked()
    assert again.get_by_label("tokens", exact=True).input_value() == "15T"
    assert again.get_by_label("precision").input_value() == "mixed"
    settled(again, "return said.includes('config.json') && said.includes('--tokens 15T');")
    again.evaluate("location.hash = '#a-heading'")
    assert again.get_by_label("tokens", exact=True).input_value() == "15T"


def test_an_address_written_by_hand_is_taken_at_its_word(window):
    page = window("planner.html#model=gpt2&accelerator=RTX 4090&largest_batch=on")
    settled(page, "return said.includes(\"--accelerator 'RTX 4090'\");")
    batch = command("gpt2 --accelerator rtx-4090 --largest-batch", None)["values"]["largest_batch"]
    assert page.locator("#planner [role=status]").inner_text().endswith(f"fits: {batch}")


def test_where_a_file_is_missing_it_says_so_and_the_next_question_tries_again(browser, site):
    page = browser.new_page()
    page.set_default_timeout(PATIENCE)
    page.route("**/*.wasm", lambda asked: asked.fulfill(status=404))
    page.goto(f"{site}/planner.html")
    compute(page)
    assert page.get_by_role("alert").inner_text().startswith("Python could not be loaded.")
    page.unroute("**/*.wasm")
    page.get_by_role("button", name="Compute").click()
    settled(page, "return said.includes('cs336kit plan');")
    page.close()


@pytest.fixture(scope="module")
def explorers(window):
    """The explorers, all of them started."""
    page = window("explorers.html")
    stills = page.locator(".cs336kit-still")
    drawn = [still.inner_html() for still in stills.all()]
    for name in in_page.EXPLORERS:
        page.locator(f"[data-explorer={name}]").get_by_role("button", name="Start").click()
    page.wait_for_function("![...document.querySelectorAll('button')].some(e => e.textContent === 'Start')")
    assert [still.inner_html() for still in stills.all()] == drawn  # at first it is the picture that was there
    return page


def test_an_explorer_is_moved_with_the_keyboard(explorers):
    place = explorers.locator("[data-explorer=decoding]")
    slider = place.get_by_role("slider", name="texts at once")
    assert slider.get_attribute("aria-valuetext") == "8"
    slider.press("ArrowRight")
    place.get_by_text("16 texts of 2,048 tokens").wait_for()
    assert slider.get_attribute("aria-valuetext") == "16" and "marked is 16 texts" in place.get_by_role(
        "img"
    ).get_attribute("alt")
    place.get_by_label("model").select_option("gpt2")
    place.get_by_text("gpt2 on").wait_for()


def test_a_refused_choice_says_why_and_goes_back_in_the_page_too(explorers):
    place = explorers.locator("[data-explorer=roofline]")
    place.get_by_label("accelerator").select_option("v100-sxm2-32gb")
    place.get_by_role("status").get_by_text("has no sourced bf16").wait_for()
    assert place.get_by_label("accelerator").input_value() == "h100-sxm"


def test_a_bit_flips_and_a_value_is_typed(explorers):
    place = explorers.locator("[data-explorer=bits]")
    place.get_by_role("button", name="bit 15, sign: flip it").click()
    place.get_by_text("= -0.0999755859375").wait_for()
    place.get_by_label("value").fill("1.5")
    place.get_by_label("value").press("Enter")
    place.get_by_text("= 1.5").wait_for()
    place.get_by_label("format").select_option("fp8_e4m3")
    place.get_by_text("code 60").wait_for()
    assert place.get_by_role("group", name="flip a bit").get_by_role("button").count() == 8


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["planner", "explorers"])
def test_nobody_is_left_out(name, scheme, request):
    page = request.getfixturevalue(name)
    page.emulate_media(color_scheme=scheme)
    page.add_style_tag(content=":root { color-scheme: light dark; }")
    page.locator("details").evaluate_all("every => every.forEach((one) => (one.open = true))")
    if page.evaluate("typeof axe") == "undefined":
        page.add_script_tag(path=ROOT / "node_modules/axe-core/axe.min.js")
    found = page.evaluate(
        "axe.run().then(found => found.violations.map(one => [one.impact, one.id, one.nodes[0].html]))"
    )
    assert [one for one in found if one[0] in ("serious", "critical")] == []
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.set_viewport_size({"width": 1280, "height": 900})

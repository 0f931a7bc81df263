"""What the site's pages ask Python for: it needs the standard library alone, and says what the command says."""

import json
import subprocess
import sys
import zipfile

import pytest

from cs336course.site import in_page, pyodide
from cs336kit.command import main
from cs336kit.predict import MODELS, accelerators
from cs336plan.commands import plan

ASK = "import json, sys; sys.path.insert(0, '.'); from cs336course.site import in_page; print(in_page.call(*sys.argv[1:]))"


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """The folder into which a page unpacks the kit."""
    folder = tmp_path_factory.mktemp("page")
    pyodide.pack(folder / "kit.zip")
    zipfile.ZipFile(folder / "kit.zip").extractall(folder)
    return folder


def ask(folder, function, **given):
    """The answer of a Python that sees neither installed packages nor this clone."""
    command = [sys.executable, "-I", "-S", "-c", ASK, function, json.dumps(given)]
    return json.loads(subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout)


@pytest.mark.parametrize("name", in_page.EXPLORERS)
def test_an_explorer_draws_itself_without_any_package(packed, name):
    answer = ask(packed, "explore", name=name, choices={})
    made = in_page.EXPLORERS[name]()
    assert answer["html"] == made._repr_html_() and answer["error"] == ""
    assert [one["label"] for one in answer["controls"]] == [label for label, _ in made.offers().values()]
    for one in answer["controls"]:
        values = [value for _, value, *_ in one["marks"]]
        assert one["kind"] in ("check", "typed", "buttons") or one["value"] in values


def test_the_command_answers_without_any_package(packed, capsys):
    config = json.dumps({"layers": 2, "d_model": 64, "heads": 4, "vocab": 1000, "context": 128})
    answer = ask(packed, "plan", line=["config.json", "--batch", "4"], config=config)
    assert main(["plan", str(packed / "config.json"), "--batch", "4"]) == 0
    assert answer["text"] + "\n" == capsys.readouterr().out and answer["values"]["model"] == "config"


@pytest.mark.parametrize(
    "line", ["gpt9", "gpt2 --tokens 15X", "gpt2 --batch -1", "70B --batch 2", "gpt2 --layout tp=5", "none.json", ""]
)
def test_what_cannot_be_gets_the_sentence_of_the_command(line, capsys):
    try:
        assert main(["plan", *line.split()]) == 2
    except SystemExit as end:
        assert end.code == 2
    assert in_page.plan(line.split()) == {"error": capsys.readouterr().err.strip()}


def test_buttons_are_offered_with_what_they_say():
    controls = {one["name"]: one for one in in_page.explore("bits", {"format": "fp16", "value": 0.1})["controls"]}
    assert controls["neighbour"]["marks"] == [("next below", -1, "next below"), ("next above", 1, "next above")]
    assert controls["value"]["marks"] == [] and ("bf16", "bf16") in controls["format"]["marks"]


def test_a_refused_choice_changes_nothing_and_says_why():
    before = in_page.explore("roofline", {})
    after = in_page.explore("roofline", {"accelerator": "v100-sxm2-32gb"})
    assert "has no sourced bf16" in after["error"] and {**after, "error": ""} == before
    moved = in_page.explore("roofline", {"m": 1})
    assert moved["error"] == "" and moved["html"] != before["html"]


def test_bits_are_typed_flipped_and_stepped():
    def value(choices):
        controls = {one["name"]: one for one in in_page.explore("bits", choices)["controls"]}
        return controls["value"]["value"], controls["bits"]["value"]

    assert value({"value": "1.0"}) == ("1.0", "0.01111.0000000000")
    assert value({"flip": 15}) == ("-1.0", "1.01111.0000000000")
    assert value({"neighbour": 1})[0] == str(-1 + 2**-11)
    assert value({"format": "bf16"})[0] == str(-1 + 2**-11)  # as it was before any rounding
    assert value({"bits": "0.01111111.1000000"})[0] == "1.5"
    assert "is not a number" in in_page.explore("bits", {"value": "three"})["error"]


def test_the_planner_offers_every_option_of_the_command_with_its_flag_and_default():
    offers = pyodide.offers()
    json.dumps(offers)
    parsed, flags = vars(plan.parser().parse_args(["gpt2"])), plan.parser()._option_string_actions
    options = {option["name"]: option for option in offers["options"]}
    asked = {flag.lstrip("-").replace("-", "_") for flag in flags if flag not in ("-h", "--help")}
    assert asked - {"json", "json_keys", "check", "modules"} == set(options) and len(options) == len(offers["options"])
    assert set(pyodide.FIRST) <= set(options) and offers["models"] == list(MODELS)
    assert options["accelerator"]["choices"] == [device.name for device in accelerators()]
    assert options["precision"]["choices"] and not options["tokens"]["choices"]
    assert options["optimizer"]["help"] == "adamw by default" and options["attention"]["help"].startswith("sdpa")
    assert not [name for name, option in options.items() if "--" in option["help"]]
    for name, option in options.items():
        assert option["flag"] == f"--{name.replace('_', '-')}" and option["help"] and "%%" not in option["help"]
        unsaid = parsed[flags[option["flag"]].dest]
        assert option["switch"] == isinstance(unsaid, bool) and option["first"] == (name in pyodide.FIRST)
        assert option["default"] == (None if option["switch"] else unsaid)
        if option["choices"] and option["default"] is not None:
            assert option["default"] in option["choices"]


def test_every_place_for_an_explorer_is_filled_and_every_explorer_has_one():
    page = (pyodide.Path(pyodide.__file__).parent / "pages/explorers.md").read_text(encoding="utf-8")
    filled = pyodide.with_stills(page)
    for make in in_page.EXPLORERS.values():
        assert filled.count(make()._repr_html_()) == 1
    assert filled.count('class="cs336kit-still"') == len(in_page.EXPLORERS) == page.count("data-explorer=")


def test_where_npm_has_installed_nothing_the_sentence_says_what_to_do(tmp_path):
    with pytest.raises(ValueError, match=r"node_modules/pyodide/pyodide.asm.wasm is missing, .*: run `make site`"):
        pyodide.ship(tmp_path / "site", root=tmp_path)
    assert not (tmp_path / "site").exists()

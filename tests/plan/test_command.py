import argparse
import builtins
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import cs336kit
from cs336course import clone
from cs336course.commands import lessons
from cs336kit import __version__
from cs336kit import command as cli
from cs336kit.command import arguments, main, words
from cs336kit.command.train import _parser
from cs336kit.predict.layouts import AXES, SCHEDULES
from cs336kit.predict.models import model
from cs336kit.predict.names import names
from cs336plan.commands import plan, refusals, serve
from cs336plan.serving.question import ServingQuestion
from cs336plan.training.question import Question
from cs336plan.training.schema import KEYS

ROOT = Path(__file__).parents[2]
MAIN, NEEDS = (Path(cs336kit.__file__).with_name(name) for name in ("__main__.py", "_needs_torch.py"))


def test_a_plan_as_text(capsys):
    assert main(["plan", "llama-3-8b", "--tokens", "15T", "--count", "1024", "--mfu", "0.5"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("llama-3-8b: 8,030,261,248 parameters\ntime: ")
    assert all(len(line) <= 80 for line in out.splitlines()), "as wide as a terminal"
    assert "optimizer state" in out and "largest model" in out and out.endswith("parameters at 20 bytes each\n")


def test_a_plan_as_json(capsys):
    assert main(["plan", "70B", "--tokens", "15e12", "--count", "1024", "--mfu", "0.5", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["parameters"] == 70 * 10**9 and round(answer["days"], 1) == 143.9
    assert answer["total_bytes"] == sum(answer["memory_bytes"].values())
    assert answer["fits"] is True and answer["advice"] == []


def test_units_of_a_chip_that_is_not_in_the_table(capsys):
    for memory, peak in (("80GB", "500TFLOPs"), ("80e9", "0.5PFLOP/s"), ("80000MB", "5e14")):
        run = ["plan", "7B", "--memory", memory, "--peak", peak, "--tokens", "1T", "--json", "--allowance", "10%"]
        assert main(run) == 0
        answer = json.loads(capsys.readouterr().out)
        assert (answer["available_bytes"], answer["peak_flops_per_second"]) == (80 * 10**9, 5e14)
        assert answer["accelerator"] == "given" and answer["allowance_bytes"] == {"as given": 8 * 10**9}
    assert main(["plan", "7B", "--memory", "80GiB", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["available_bytes"] == 80 * 2**30


def test_what_json_means_is_documented(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["plan", "--json-keys"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(KEYS) and lines[0].startswith("schema 4")


@pytest.mark.parametrize("line", ["gpt2 --accelerator a100-sxm-40gb", "llama-3-8b --count 8 --checkpointing"])
def test_the_largest_batch_fits_and_one_more_does_not(line, capsys):
    def asked(*more):
        assert main(["plan", *line.split(), *more, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    most = asked("--largest-batch")["largest_batch"]
    assert most > 1 and asked()["largest_batch"] is None
    assert asked("--batch", str(most))["fits"] and not asked("--batch", str(most + 1))["fits"]
    assert main(["plan", *line.split(), "--largest-batch"]) == 0
    assert capsys.readouterr().out.endswith(f"largest micro-batch that fits: {most:,}\n")


def test_the_largest_batch_may_be_none_and_needs_a_shape(capsys):
    assert main(["plan", "llama-3-70b", "--largest-batch", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["largest_batch"] == 0
    assert main(["plan", "70B", "--largest-batch"]) == 2
    assert "name a model" in capsys.readouterr().err


def test_explanations_follow_the_answer(capsys):
    assert main(["plan", "gpt2", "--tokens", "10B", "--explain", "--sensitivity", "--chunks", "4"]) == 0
    out = capsys.readouterr().out
    assert "where the numbers come from" in out and "what moves the answer" in out and "tokens +10%" in out


def test_a_configuration_from_a_file(tmp_path, capsys):
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps({"layers": 2, "d_model": 64, "heads": 4, "vocab": 1000, "context": 128}))
    assert main(["plan", str(path), "--batch", "4", "--sequence", "128", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["model"], answer["batch"], answer["sequence"]) == ("tiny", 4, 128)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "is not JSON"),
        ("[1]", "an object of names and values, not list"),
        ('{"layers": 2}', "lacks d_model, heads, vocab, context"),
        ('{"n_layer": 2}', "has no model_type: give a config.json of Hugging Face"),
        ('{"layers": 2, "d_model": 64, "heads": 7, "vocab": 9, "context": 8}', "heads=7 does not divide d_model=64"),
        ('{"layers": 2, "layers": 3}', "gives 'layers' twice"),
        ("[" * 100_000, "is not JSON"),
        ('{"layers": "2", "d_model": 64, "heads": 8, "vocab": 9, "context": 8}', "layers must be"),
    ],
)
def test_a_bad_file_gets_a_sentence(tmp_path, capsys, content, sentence):
    path = tmp_path / "model.json"
    path.write_text(content)
    assert main(["plan", str(path)]) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err and captured.out == "" and captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["missing.json"], "missing.json cannot be read"),
        (["llama3"], "no model is called 'llama3'. Did you mean 'llama-3-8b', 'llama-3-70b' or "),
        (["gpt2", "--sequence", "2000"], "longer than context=1024"),
        (["70e9", "--batch", "2"], "batch is about activations"),
        (["70e9", "--mfu", "50"], "divide it by 100"),
        (["gpt2", "--accelerator", "abacus"], "unknown accelerator 'abacus'"),
        (
            ["gpt2", "--accelerator", "abacus"],
            "Any other chip: --memory 128GB --peak 28TFLOPs in place of --accelerator\n",
        ),
        (["gpt2", "--accelerator", "h100"], "with different numbers: name one of them.\n"),
        (["70B", "--days", "30"], "give --tokens (or --steps)"),
        (["-5"], "parameters must be"),
        (["70e9", "--batch", "0"], "batch must be"),
        (["gpt2", "--batch", "0"], "batch must be"),
        (["gpt2", "--tokens", "0"], "tokens must be"),
        (["70"], "'70' without a unit is parameters, too few: did you mean 70B or 70M?"),
        (["gpt2", "--tokens", "1e300"], "give fewer"),
        (["gpt2", "--mfu", "0"], "mfu must be"),
        (["gpt2", "--accelerator", "H100"], "is sold as h100-pcie, h100-sxm and h100-nvl"),
        (["gpt2", "--mfu", "40"], "divide it by 100"),
        (["lama-3-8b"], "Did you mean 'llama-3-8b'"),
        (["gpt2", "--accelerator", "tpu-v5e", "--precision", "fp32", "--tokens", "1B"], "give the peak yourself"),
        (["gpt2", "--lora", "8", "--qlora", "8"], "give one of them"),
        (["gpt2", "--targets", "query"], "give --lora RANK"),
        (["gpt2", "--lora", "8", "--targets", "queri"], "Did you mean 'query'"),
        (["gpt2", "--freeze", "heads"], "unknown component 'heads'"),
        (["gpt2", "--price-per-hour", "2"], "a cost needs a time"),
        (["gpt2", "--allowance", "200GiB"], "leaves nothing"),
        (["gpt2", "--count", "8", "--global-batch", "12"], "not a whole number of micro-batches"),
    ],
)
def test_impossible_input_gets_a_sentence_and_exit_code_2(capsys, arguments, sentence):
    assert main(["plan", *arguments]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "required: command"),
        (["plan"], "required: model"),
        (["plan", "gpt2", "--count", "1.5"], "'1.5' is not a whole number"),
        (["plan", "gpt2", "--tokens", "many"], "'many' is not a number"),
        (["plan", "gpt2", "--mfu", "half"], "'half' is not a number: write 0.4 or 40%"),
        (["plan", "gpt2", "--mfu", "half%"], "'half%' is not a number: write 0.4 or 40%"),
        (["train", "--steps", "1.5"], "--steps: '1.5' is not a whole number"),
        (["plan", "gpt2", "--precision", "fp9"], "invalid choice: 'fp9'"),
        (["plan", "gpt2", "--memory", "80 apples"], "write 80GB"),
        (["plan", "gpt2", "--memory", "GB"], "is no size"),
        (["plan", "gpt2", "--peak", "989TB"], "write 989TFLOPs"),
        (["plan", "gpt2", "--allowance", "120%"], "is no allowance: write 2GiB or 8%"),
        (["plan", "gpt2", "--allowance", "-1GiB"], "'-1GiB' is no allowance: write 2GiB or 8%"),
        (["plan", "gpt2", "--lora", "half"], "'half' is not a number"),
        (["plan", "gpt2", "--xyz", "red"], "there is no option --xyz: --help lists all"),
        (["plot", "gpt2"], "invalid choice: 'plot'"),
        (["lessons", "burn"], "invalid choice: 'burn'"),
        (["lessons", "readme", "2"], "readme is for all lessons"),
    ],
)
def test_arguments_that_argparse_refuses_are_one_sentence_too(capsys, arguments, sentence):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and sentence in error and error.count("\n") == 1


def test_a_precision_of_several_words_has_no_blanks(capsys):
    assert main(["plan", "gpt2", "--precision", "mixed-fp32-gradients"]) == 0
    assert "(mixed-fp32-gradients, adamw" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["plan", "gpt2", "--precision", "mixed, fp32 gradients"])
    assert "invalid choice: 'mixed, fp32 gradients'" in capsys.readouterr().err


def test_a_model_with_experts_says_what_is_assumed_of_its_router(capsys):
    assert main(["plan", "mixtral-8x7b", "--count", "64", "--batch", "2", "--checkpointing"]) == 0
    assert "share the tokens equally" in capsys.readouterr().out
    assert main(["plan", "gpt2"]) == 0
    assert "equally" not in capsys.readouterr().out


def shell(*arguments, **options):
    command = [sys.executable, "-m", "cs336kit", *arguments]
    return subprocess.run(command, **{"capture_output": True, "check": False, **options})


@pytest.mark.parametrize("arguments", [("plan", "gpt2"), ("--help",)])
def test_a_reader_that_closes_the_pipe_early_is_no_error(arguments):
    read, write = os.pipe()
    os.close(read)
    run = shell(*arguments, capture_output=False, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (run.returncode, run.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk that is always full")
@pytest.mark.parametrize("arguments", [("plan", "gpt2"), ("--help",)])
def test_a_full_disk_is_a_sentence(arguments):
    with open("/dev/full", "w") as full:
        run = shell(*arguments, capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert (run.returncode, run.stderr.decode()) == (
        2,
        "The output cannot be read or written: No space left on device.\n",
    )


def test_a_terminal_that_knows_only_ascii_gets_ascii():
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    run = shell("plan", "gpt2", "--batch", "4", "--sequence", "128", env=ascii_only)
    assert run.returncode == 0 and b"batch 4 x 128" in run.stdout
    run = shell("plan", "abacus–×", env=ascii_only)
    assert run.returncode == 2 and b"'abacus-x'" in run.stderr and b"Traceback" not in run.stderr


def test_the_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"cs336kit {__version__}\n"


def test_lessons_are_listed_with_their_questions(capsys):
    assert main(["lessons"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "00 Napkin math" and lines[1] == "     How long will it train, and will it fit?"
    assert main(["lessons", "list", "1"]) == 0
    assert capsys.readouterr().out.startswith("01 Number formats\n")


@pytest.mark.parametrize("action", [name for name in lessons.ACTIONS if name not in lessons.ANYWHERE])
def test_outside_a_clone_an_action_says_where_the_lessons_are(tmp_path, monkeypatch, capsys, action):
    monkeypatch.chdir(tmp_path)
    assert main(["lessons", action]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err == (
        "there are no lessons here, nor in a folder above: they are in a clone of the course, and not in the package. "
        f"This kit comes from the one in {ROOT}: change into it (cd), and run this again.\n"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("noted", [True, False])
def test_an_installed_kit_names_the_clone_that_pip_noted(tmp_path, monkeypatch, capsys, noted):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(clone, "BESIDE", tmp_path)
    url = json.dumps({"url": ROOT.as_uri()}) if noted else None
    monkeypatch.setattr(clone.metadata, "distribution", lambda name: SimpleNamespace(read_text=lambda file: url))
    assert main(["lessons"]) == 2
    end = f"This kit comes from the one in {ROOT}: change" if noted else "Get one (git clone), change"
    assert f"not in the package. {end} into it (cd), and run this again.\n" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["https://host/kit.whl", "file:///no/where", None, 7])
def test_an_origin_that_is_no_clone_is_none(tmp_path, monkeypatch, url):
    monkeypatch.setattr(clone, "BESIDE", tmp_path)
    text = json.dumps({"url": url})
    monkeypatch.setattr(clone.metadata, "distribution", lambda name: SimpleNamespace(read_text=lambda file: text))
    assert clone.origin() is None


def test_inside_a_clone_the_command_works_as_at_its_top(monkeypatch, tmp_path, capsys):
    top = main(["lessons", "list", "1"]), capsys.readouterr().out
    monkeypatch.chdir(ROOT / "cs336course")
    assert (main(["lessons", "list", "1"]), said := capsys.readouterr()) == (0, said) and (0, said.out) == top
    assert said.err == f"In {ROOT}:\n" and Path.cwd() == ROOT / "cs336course"
    monkeypatch.chdir(ROOT / "notebooks")
    for name in ("01_number_formats.ipynb", "./01_number_formats.ipynb", "../notebooks/01_number_formats.ipynb"):
        assert (main(["lessons", "list", name]), capsys.readouterr().out) == top
    given = []
    module = SimpleNamespace(write=lambda names, into: given.append((names, into, Path.cwd())) or "")
    monkeypatch.setitem(sys.modules, "cs336course.student", module)
    monkeypatch.setattr("cs336course.student", module, raising=False)
    assert main(["lessons", "student", "1", "--into", "out"]) == 0
    assert given == [(["1"], ROOT / "notebooks" / "out", ROOT)]


def test_exercise_hands_over_its_arguments(monkeypatch):
    given = []
    module = SimpleNamespace(main=lambda arguments: given.append(arguments) or 3)
    monkeypatch.setitem(sys.modules, "cs336course.exercise", module)
    assert main(["exercise", "try", "--verbose", "07.3", "-x"]) == 3
    assert given == [["try", "--verbose", "07.3", "-x"]]


def test_a_package_that_is_not_installed_is_named_with_its_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "cs336course.exercise", None)
    with pytest.raises(ModuleNotFoundError):
        main(["exercise", "new", "07.3"])
    monkeypatch.delitem(sys.modules, "cs336course.refresh", raising=False)
    monkeypatch.setitem(sys.modules, "nbformat", None)
    assert main(["lessons", "refresh"]) == 2
    assert capsys.readouterr().err == 'This command needs nbformat: pip install "cs336kit[lab,test]"\n'


def test_the_command_line_never_imports_torch():
    code = "import sys; from cs336kit.command import main; main(['plan', 'gpt2']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
    bad = [sys.executable, "-m", "cs336kit", "plan", "70e9", "--mfu", "2"]
    assert subprocess.run(bad, capture_output=True, check=False).returncode == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("plan 7e9 --find --count 8", "a layout divides layers and heads, which a number of parameters does not tell"),
        ("plan gpt2 --find --layout dp=8", "--find looks for a layout, and one is given: leave one of them out"),
        (
            "plan gpt2 --layout fsdp=8 --replicated",
            "--layout says who shares what, and --replicated says it too: leave one",
        ),
        ("models llama-9", "no known model has 'llama-9' in its name or hub id: leave it out to see all"),
        ("plan gpt2 --layout dp=8 --count 4", "the layout dp=8 has 8 ranks, and count is 4: leave --count out"),
        (
            "plan gpt2 --layout pp=2,microbatches=4 --accumulate 3",
            "--accumulate 3 and microbatches=4 of the layout set",
        ),
        ("plan gpt2 --memory 1.2.3GB", "--memory: '1.2.3GB' is no size: write 80GB (10^9 bytes)"),
        ("plan gpt2 --allowance much", "--allowance: 'much' is no allowance: write 2GiB or 8%"),
        ("plan gpt2 --allowance 100%", "--allowance: '100%' is no allowance: write 2GiB or 8%"),
        ("serve gpt2 --latency 50m", "--latency: '50m' is no time: write 50ms or 0.05s"),
    ],
)
def test_what_contradicts_itself_or_has_no_unit_is_a_sentence(capsys, arguments, sentence):
    try:
        assert main(arguments.split()) == 2
    except SystemExit as refused:
        assert refused.code == 2
    assert sentence in capsys.readouterr().err


def test_layouts_are_found_as_text_and_as_json(capsys):
    assert main(["plan", "gpt2", "--find", "--count", "8", "--json"]) == 0
    layouts = json.loads(capsys.readouterr().out)["layouts"]
    likely = [one["step_seconds"]["likely"] for one in layouts]
    assert len(layouts) == 10 and all(one["fits"] for one in layouts)
    assert all(before < 1.06 * after for before, after in zip(likely, likely[1:], strict=False))
    assert main(["plan", "gpt2", "--find", "--count", "8"]) == 0
    assert layouts[0]["layout"] in capsys.readouterr().out
    assert main(["plan", "llama-3.1-405b", "--find", "--count", "2"]) == 0
    out = capsys.readouterr().out
    assert "no layout of 2 accelerators fits: --checkpointing and --chunks 8 need less" in out and "may fit" not in out
    assert main(["plan", "llama-3.1-405b", "--count", "2"]) == 0
    assert "may fit on these 2 accelerators: --checkpointing --find" in " ".join(capsys.readouterr().out.split())


def test_layouts_are_found_for_a_global_batch_that_sharding_over_all_cannot_make(capsys):
    def answered(line):
        assert main(["plan", "gpt2", "--find", "--json", *line.split()]) == 0
        return json.loads(capsys.readouterr().out)

    answer = answered("--count 3 --global-batch 4 --steps 10")
    assert [one["layout"] for one in answer["layouts"]] == ["pp=3,microbatches=4"]
    assert (answer["global_batch"], answer["steps"], answer["tokens"]) == (3, 10, 10 * 4 * 1024)
    said = "the layouts are for a global batch of 4 sequences; 3 accelerators that each work on 1 cannot make it"
    assert any(note.startswith(said) for note in answer["notes"])
    # Tokens that were given stay, and a batch that all of them make is that of the plan.
    assert answered("--count 3 --global-batch 4 --steps 10 --tokens 1M")["tokens"] == 10**6
    answer = answered("--count 4 --global-batch 8")
    assert answer["global_batch"] == 8 and not any("global batch" in note for note in answer["notes"])


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ("", "not a whole number of micro-batches"),
        ("--find --layout dp=3", "not a whole number of micro-batches"),
        ("--find --accumulate 1", "are 3 sequences a step"),
        ("--find --count 0", "count must be"),
    ],
)
def test_a_global_batch_that_cannot_be_is_refused(more, sentence, capsys):
    assert main(["plan", "gpt2", "--count", "3", "--global-batch", "4", *more.split()]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--count 2 --global-batch 2 --checkpointing", "(--count 4, without --global-batch): 2 times the accelerators, and an"),
        ("--count 2 --global-batch 8 --checkpointing", "(--count 4 --accumulate 2): 2 times the accelerators"),
        ("--count 2 --global-batch 6 --checkpointing", "(--count 4 --accumulate 3, without --global-batch)"),
        ("--count 2 --batch 2 --global-batch 8", "--batch 1 --accumulate 4"),
        ("--count 2 --batch 2 --global-batch 8 --optimizer sgd --chunks 2", "(--batch 1 --accumulate 2, without --global-batch)"),
        ("--layout dp=2 --global-batch 2 --checkpointing", "(--layout fsdp=4, without --global-batch)"),
        ("--layout fsdp=2,microbatches=4 --global-batch 8 --checkpointing", "(--layout microbatches=2,fsdp=4 --accumulate 2)"),
        ("--layout fsdp=2,microbatches=3 --global-batch 6 --checkpointing", "(--layout microbatches=3,fsdp=4 --accumulate 3, wi"),
        ("--layout pp=2,fsdp=2 --batch 8 --global-batch 16 --optimizer sgd", "--accumulate 1, without --global-batch)"),
        ("--count 3 --replicated --checkpointing --optimizer adamw8bit", "(--count 6, without --replicated)"),
        ("--count 3 --replicated --global-batch 3 --checkpointing --chunks 8", "without --replicated and --global-batch)"),
        ("--layout tp=8 --batch 4 --sequence 8192", "sequence parallelism (--layout tp=8,sp=true)"),
        ("--layout tp=2,dp=2 --sequence 8192", "over the replicas (--layout zero1=2,tp=2)"),
        ("--count 8 --replicated --checkpointing", "over the replicas (--layout zero1=8, without --replicated)"),
        ("--layout fsdp=2,microbatches=4 --batch 8 --optimizer sgd", "--accumulate 32 --layout microbatches=32,fsdp=2)"),
    ],
)  # fmt: skip
def test_advice_can_be_followed(line, said, capsys):
    """Its options, put in the place of those that were given, are a run that fits; also beside a batch of a step."""

    def advised(options):
        assert (
            main(["plan", "llama-3-8b", "--json", *(word for option in options.items() for word in option if word)])
            == 0
        )
        return json.loads(capsys.readouterr().out)

    def options_of(text):
        return dict(re.findall(r"(--[a-z0-9-]+) ?((?!--)[^ ]+)?", text))

    given = options_of(line)
    answer = advised(given)
    assert not answer["fits"] and any(said in f"{one['change']}: {one['costs']}" for one in answer["advice"])
    for one in answer["advice"]:
        words = " ".join(re.findall(r"\(([^)]*)\)", one["change"]))
        changed, _, out = words.partition(", without ")
        kept = {name: value for name, value in given.items() if name not in out.split(" and ")}
        if changed == "leave --replicated out":
            changed = kept.pop("--replicated") or ""
        followed = advised(kept | options_of(changed))
        assert followed["fits"], one["change"]
        other = "--global-batch" in given and followed["global_batch"] != answer["global_batch"]
        assert other == ("another global batch" in one["costs"] and "--global-batch" in given)


def test_the_claims_are_written_by_the_command(monkeypatch, capsys):
    page = SimpleNamespace(write=lambda: "settled.json: unchanged")
    monkeypatch.setitem(sys.modules, "cs336course.claims_page", page)
    monkeypatch.setattr("cs336course.claims_page", page, raising=False)
    assert main(["lessons", "claims"]) == 0 and capsys.readouterr().out == "settled.json: unchanged\n"


def test_a_share_is_a_fraction_or_a_percentage(capsys):
    assert [arguments.share(text) for text in ("40%", "0.4", "12.5%", "1")] == [0.4, 0.4, 0.125, 1.0]
    for line in ("--mfu 40%", "--mfu 0.4"):
        assert main(["plan", "gpt2", "--tokens", "1B", "--json", *line.split()]) == 0
        assert json.loads(capsys.readouterr().out)["mfu"] == 0.4


def test_names_of_optimizers_are_those_of_torch_in_any_case(capsys):
    assert main(["plan", "gpt2", "--optimizer", "AdamW8bit", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["optimizer"] == "adamw8bit"


def test_products_in_fp8_have_a_peak_of_their_own(capsys):
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    assert "fp8 give their peak, such as --peak 1979TFLOPs" in " ".join(capsys.readouterr().out.split())
    assert main(["plan", "gpt2", "--tokens", "1B", "--peak", "1979TFLOPs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["peak_flops_per_second"] == 1979e12


def test_the_numbers_of_a_training_run_are_read_as_those_of_a_plan():
    line = "--layers 2 --d-model 1e2 --heads 2 --steps 1e3 --batch 1e1 --seed 7"
    read = _parser().parse_args(line.split())
    numbers = read.d_model, read.steps, read.batch, read.seed
    assert numbers == (100, 1000, 10, 7) and all(type(number) is int for number in numbers)


def test_streams_are_left_as_they_were(monkeypatch):
    streams = {name: io.TextIOWrapper(io.BytesIO(), "ascii", errors="strict") for name in ("stdout", "stderr")}
    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, stream)
    for line, code in ((["plan", "gpt2", "--batch", "4"], 0), (["plan", "abacus–×"], 2), (["plan"], None)):
        try:
            assert main(line) == code
        except SystemExit:
            assert code is None
        assert [stream.errors for stream in streams.values()] == ["strict", "strict"]
    assert b"batch 4 x 1024" in streams["stdout"].buffer.getvalue()


def test_an_older_python_is_told_before_anything_is_imported(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    with pytest.raises(SystemExit, match=r"^cs336kit needs Python 3\.11 or newer, and this is 3\.10\.$"):
        exec(compile(MAIN.read_text(encoding="utf-8"), str(MAIN), "exec"), {"__name__": "cs336kit.__main__"})


def test_without_torch_the_rooms_that_need_it_say_what_to_install(monkeypatch):
    needs = compile(NEEDS.read_text(encoding="utf-8"), str(NEEDS), "exec")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModuleNotFoundError, match=r'This part of the kit needs torch: pip install "cs336kit\[torch\]"'):
        exec(needs, {})
    # A torch of which a part is missing says so itself.

    def half_there(*arguments):
        raise ModuleNotFoundError("No module named 'a_part_of_torch'", name="a_part_of_torch")

    with pytest.raises(ModuleNotFoundError, match="No module named 'a_part_of_torch'"):
        exec(needs, {"__builtins__": {**vars(builtins), "__import__": half_there}})


def test_only_what_cannot_be_encoded_is_replaced():
    error = UnicodeDecodeError("ascii", b"\xff", 0, 1, "not in range")
    with pytest.raises(UnicodeDecodeError):
        cli._in_ascii(error)


@pytest.mark.parametrize("suffix", ["M", "B", "T", "b"])
def test_a_number_is_the_one_that_was_written(suffix):
    size = {"M": 10**6, "B": 10**9, "T": 10**12}[suffix.upper()]
    for hundredths in range(1, 10_000):
        read = arguments.number(f"{hundredths // 100}.{hundredths % 100:02d}{suffix}")
        assert read.is_integer() and 100 * int(read) == hundredths * size
    assert arguments.size("8.03GB") == 8_030_000_000 and arguments.rate("8.03TFLOPs") == 8.03e12


def test_ordinary_sizes_are_planned(capsys):
    for given, parameters in (("8.03B", 8_030_000_000), ("4.02B", 4_020_000_000), ("33.3B", 33_300_000_000)):
        assert main(["plan", given, "--tokens", "2.01T", "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert (answer["parameters"], answer["tokens"]) == (parameters, 2_010_000_000_000)


@pytest.mark.parametrize(
    ("text", "bytes_per_second"),
    [
        ("400Gb/s", 50e9), ("400Gbps", 50e9), ("400Gb", 50e9), ("400Gbit/s", 50e9), ("400gb/s", 50e9), ("8Mb/s", 1e6),
        ("3.35Tb", 0.41875e12), ("3.35TB", 3.35e12), ("3.35TB/s", 3.35e12), ("400GBps", 400e9), ("1GiB/s", 2.0**30),
        ("50e9", 50e9), ("50e9/s", 50e9), ("800b/s", 100.0), ("800B/s", 800.0),
    ],
)  # fmt: skip
def test_a_small_b_of_a_bandwidth_is_bits(text, bytes_per_second):
    assert arguments.bandwidth(text) == bytes_per_second


@pytest.mark.parametrize(
    ("read", "text", "sentence"),
    [
        (arguments.size, "80", "'80' without a unit is bytes, too few: did you mean 80GB?"),
        (arguments.size, "80Gb", "'80Gb' is bits, and a size is in bytes: write 80GB if that is meant"),
        (arguments.size, "80Gib", "write 80GiB if that is meant"),
        (arguments.rate, "500", "'500' is FLOP/s, too few: did you mean 500TFLOPs?"),
        (arguments.rate, "500FLOP/s", "did you mean 500TFLOPs?"),
        (arguments.bandwidth, "3.35", "'3.35' is bytes per second, too few: did you mean 3.35TB/s?"),
        (arguments.bandwidth, "400", "did you mean 400GB/s or 400Gb/s (bits)?"),
        (arguments.bandwidth, "400/s", "did you mean 400GB/s or 400Gb/s (bits)?"),
        (arguments.bandwidth, "400G", "'400G' is no bandwidth: write 3.35TB/s"),
        (arguments.allowance, "8", "'8' without a unit is bytes, too few: did you mean 8GB or 8%?"),
        (arguments.allowance, "0.08", "did you mean 8%?"),
        (arguments.allowance, "2Gb", "write 2GB if that is meant"),
        (arguments.tokens, "15", "'15' without a unit is tokens, too few: did you mean 15T or 15B?"),
        (arguments.tokens, "1.4", "did you mean 1.4T or 1.4B?"),
        (arguments.seconds, "20", "'20' has no unit: did you mean 20ms?"),
        (arguments.seconds, "0.05", "did you mean 0.05s?"),
    ],
)
def test_a_number_that_lacks_its_unit_is_refused(read, text, sentence):
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        read(text)
    assert sentence in str(refused.value)


@pytest.mark.parametrize("command", [["plan", "gpt2"], ["optimal"]])
def test_fifteen_tokens_are_not_meant(command, capsys):
    with pytest.raises(SystemExit):
        main([*command, "--tokens", "15"])
    assert capsys.readouterr().err.startswith("--tokens: '15' without a unit is tokens, too few")


def test_numbers_that_are_large_enough_need_no_unit():
    assert arguments.size("80e9") == 80 * 10**9 and arguments.rate("9.89e14") == 9.89e14
    assert arguments.allowance("0") == arguments.allowance("0%") == arguments.size("0") == 0
    assert arguments.allowance("7%") == 0.07 and arguments.allowance("2e9") == 2 * 10**9
    assert arguments.size("80gb") == 80 * 10**9 and arguments.size("100KB") == 100_000
    assert arguments.tokens("15T") == 15e12 and arguments.tokens("0") == 0 and arguments.tokens("1000") == 1000
    assert arguments.seconds("20ms") == 0.02 and arguments.seconds("5us") == 5e-6


def test_a_file_that_cannot_be_written_is_known_before_the_run(tmp_path, monkeypatch):
    assert arguments.to_write(tmp_path / "run.json") == tmp_path / "run.json"
    with pytest.raises(ValueError, match=r"there is no folder .*missing for --out: make it first"):
        arguments.to_write(tmp_path / "missing" / "run.json")
    with pytest.raises(ValueError, match=r"is a folder: name a file in it, such as .*run\.json"):
        arguments.to_write(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ValueError, match="nothing can be written into the folder"):
        arguments.to_write(tmp_path / "run.json")


@pytest.mark.parametrize(
    ("sentence", "said"),
    [
        (
            "lora_rank must be a positive whole number (int), got 0",
            "--lora or --qlora must be a positive whole number, got 0",
        ),
        ("count=8 with optimizer='muon' is not counted", "--count 8 with --optimizer muon is not counted"),
        ("sequence=2048 is longer than context=1024", "--sequence 2048 is longer than context=1024"),
        ("give its memory_bytes and peak_flops_per_second", "give its --memory and --peak"),
        ("(node=1 and between_nodes=25e9)", "(--node 1 and --between-nodes 25e9)"),
        # What is no field of a question stays, and so does a plain word.
        ("tp=5 does not divide 12 heads", "tp=5 does not divide 12 heads"),
        ("the batch of tokens and the count of ranks", "the batch of tokens and the count of ranks"),
        ("microbatches=4 of the layout", "microbatches=4 of the layout"),
    ],
)
def test_errors_are_in_words_of_the_command_line(sentence, said):
    assert refusals.in_options(sentence) == said


def test_help_says_defaults_and_bytes(capsys):
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    said = said.replace("- ", "-")
    # Of a parameter with AdamW: 4 · 4; 2 + 2 + 4 + 8; 2 + 4 + 4 + 8; 4 · 2.
    assert "fp32 (16), autocast (16), bf16 (8)" in said and "mixed (16), mixed-fp32-gradients (18)" in said
    assert "mixed, the default" in said and "lion8bit; adamw by default" in said
    assert "default 0.4" in said and "default 0.8" in said


def test_what_is_asked_for_beside_json_stands_in_it(capsys):
    def values(*more):
        assert main(["plan", "gpt2", "--tokens", "1B", "--json", *more]) == 0
        return json.loads(capsys.readouterr().out)

    plain = values()
    assert plain["explain"] is None is plain["sensitivity"]
    both = values("--explain", "--sensitivity")
    assert list(both) == list(plain) == list(KEYS)
    assert both["explain"]["FLOPs"].endswith(f"= {plain['flops']:.6g}")
    tokens = next(one for one in both["sensitivity"] if one["change"] == "tokens +10%")
    assert tokens == {"change": "tokens +10%", "days": pytest.approx(1.1), "bytes": 1}


def test_the_exit_code_says_whether_it_fits_where_that_is_asked(capsys):
    for name, fits in (("gpt2", True), ("llama-3-70b", False)):
        assert main(["plan", name]) == 0
        assert main(["plan", name, "--check"]) == int(not fits)
        assert main(["plan", name, "--check", "--json"]) == int(not fits)
    capsys.readouterr()


def test_models_are_listed_by_a_part_of_their_names(capsys):
    assert main(["models"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 1 + len(names()) > 150 and max(map(len, rows)) <= 80
    assert rows[1].split() == ["gpt2", "124,439,808", "1,024"]
    assert main(["models", "Qwen3 8B"]) == 0
    assert [row.split() for row in capsys.readouterr().out.splitlines()[1:]] == [
        ["qwen3-8b", "8,190,735,360", "40,960"]
    ]
    # As its authors have it: 46.7 billion, of which 12.9 are used for a token. Source: Mistral AI 2023, "Mixtral of experts".
    assert main(["models", "mixtral-8x7b"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == [
        "mixtral-8x7b",
        "46,702,792,704",
        "12,879,925,248",
        "32,768",
    ]
    assert main(["models", "state-spaces/"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["mamba-2.8b", "cannot", "be", "counted"]
    assert main(["plan", "gpt5"]) == 2
    assert "`cs336kit models gpt2` lists more; or give the path of its config.json, or a" in capsys.readouterr().err


def test_a_folder_with_a_config_json_is_a_model(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("mine", "gpt2"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_layer": 2}))
    read = {}
    for given in ("mine", str(tmp_path / "mine"), "gpt2", "./gpt2"):
        assert main(["plan", given, "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        read[given] = answer["model"], answer["parameters"]
    little = read["mine"][1]
    assert read == {
        "mine": ("mine", little), str(tmp_path / "mine"): ("mine", little), "gpt2": ("gpt2", 124_439_808),
        "./gpt2": ("gpt2", little),
    }  # fmt: skip
    (tmp_path / "empty").mkdir()
    assert main(["plan", "empty"]) == 2
    assert capsys.readouterr().err == "the folder empty has no config.json: give the folder or the file of a model.\n"
    monkeypatch.chdir("mine")
    assert main(["plan", ".", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "mine"


@pytest.mark.parametrize("line", ["plan", "serve", "optimal --model"])
def test_sizes_that_a_file_does_not_give_are_said_by_every_command(line, tmp_path, capsys):
    """The smallest GPT-2, with two layers: 768 wide, with 12 heads, 50,257 tokens, and a context of 1,024."""
    file = tmp_path / "little.json"
    file.write_text(json.dumps({"model_type": "gpt2", "n_layer": 2}))
    left_open = "transformers' defaults: n_embd=768, n_head=12, vocab_size=50257, n_positions=1024"
    for as_json in ([], ["--json"]):
        assert main([*line.split(), str(file), *as_json]) == 0
        assert left_open in " ".join(capsys.readouterr().out.split())
    assert main([*line.split(), "gpt2"]) == 0
    assert "defaults" not in capsys.readouterr().out


OURS = {"layers": 2, "d_model": 64, "heads": 4, "vocab": 100, "context": 64}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32},
            "has no model_type: give a",
        ),
        ({"d_model": 512, "n_layers": 6, "n_heads": 8}, "has no model_type: give a config.json of Hugging Face"),
        (
            {"model_type": "llama", "hidden_size": "4096"},
            "hidden_size='4096' of this llama cannot be counted: give a whole number",
        ),
        ({**OURS, "layer": 2}, "unknown field of a TransformerConfig 'layer'. Did you mean 'layers'?"),
        ({**OURS, "heads": 5}, "heads=5 does not divide d_model=64"),
        ({}, "the configuration lacks layers, d_model, heads, vocab, context"),
        ([1], "a configuration is an object of names and values, not list"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_its_name_and_in_its_words(values, sentence, tmp_path, capsys):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(values))
    assert main(["plan", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"{path}: ") and sentence in said


def test_a_file_may_begin_with_the_mark_of_its_encoding(tmp_path, capsys):
    for values in (OURS, {"model_type": "gpt2"}):
        (tmp_path / "mine.json").write_text(json.dumps(values), encoding="utf-8-sig")
        assert main(["plan", str(tmp_path / "mine.json")]) in (0, 1), capsys.readouterr().err


def refused(line, capsys):
    """The sentence on stderr, of what is refused with exit code 2."""
    try:
        assert main(shlex.split(line)) == 2
    except SystemExit as ended:
        assert ended.code == 2
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1
    return error.rstrip("\n")


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("plan gpt2 --gpus 8", "--count"),
        ("plan --gpus 8 gpt2", "--count"),
        ("plan gpt2 --seq-len 512", "--sequence"),
        ("serve gpt2 --seq-len 512", "--prompt"),
        ("plan gpt2 --gradient-checkpointing", "--checkpointing"),
        ("plan gpt2 --gradient_checkpointing", "--checkpointing"),
        ("plan gpt2 --tp 4", "--layout tp=4"),
        ("plan gpt2 --tensor-parallel-size=4", "--layout tp=4"),
        ("plan gpt2 --pp", "--layout pp=8"),
        ("serve gpt2 --tp 4", "--count"),
        ("plan gpt2 --batch-size 4", "--batch"),
        ("serve gpt2 --dtype fp8", "--weights"),
        ("plan gpt2 --dtype bf16", "--precision"),
        ("plan gpt2 --acumulate 2", "--accumulate"),
        ("optimal --flop 1e24", "--flops"),
        ("models --parts qwen", None),
        ("plan gpt2 --lr 0.1", None),
        ("plan gpt2 --nodes 4", "--count"),
        ("plan gpt2 --zero-stage 3", "--layout"),
        ("train --layers 1 --d-model 8 --heads 1 --steps 1 --model gpt2", "--d-model"),
        ("serve --model gpt2", "the model's name alone, without an option"),
        ("train --layers 1 --d-model 8 --heads 1 --steps 1 --batch-size 2", "--batch"),
    ],
)
def test_an_option_of_another_tool_is_answered_with_the_one_that_is_meant(line, meant, capsys):
    said = refused(line, capsys)
    assert said.startswith("there is no option --") and said.endswith(" --help lists all")
    assert ("Did you mean " + meant + "?" in said) if meant else "Did you mean" not in said


def test_every_word_of_another_tool_leads_to_an_option_that_some_command_has():
    parsers = plan.parser(), serve.parser(), _parser()
    assert {*words._ELSEWHERE} <= {option for parser in parsers for option in parser._option_string_actions}
    assert {*words._OF_LAYOUT.values()} == {*AXES}
    for parser in parsers:  # what is an option is no word of another tool
        assert not {f"--{word}" for known in words._ELSEWHERE.values() for word in known.split()} & {
            *parser._option_string_actions
        } - {"--precision"}


def test_a_word_behind_an_option_without_a_value_is_answered_with_what_the_option_does(capsys):
    said = refused("plan gpt2 --checkpointing selective", capsys)
    assert said == "--checkpointing takes no value, and 'selective' stands behind it: keep only the input of each block"
    assert refused("plan gpt2 8", capsys) == "'8' belongs to no option: --help lists them"


def test_each_word_of_a_layout_is_explained_without_a_model(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["plan", "--layout", "help"])
    out = capsys.readouterr().out
    assert all(len(line) <= 80 for line in out.splitlines())
    said = " ".join(out.split())
    for word, meaning in {**AXES, **{f"schedule={name}": what for name, what in SCHEDULES.items()}}.items():
        assert f"{word} {meaning}" in said and len(meaning) > 15
    assert "HSDP is dp=2,fsdp=8" in said


def test_lengths_are_decimal_unless_they_say_otherwise(capsys):
    texts = {
        "4096": 4096,
        "4k": 4000,
        "4K": 4000,
        "4Ki": 4096,
        "128ki": 131_072,
        "1Mi": 1_048_576,
        "1M": 10**6,
        "4e3": 4000,
    }
    assert {text: arguments.length(text) for text in texts} == texts
    for line in ("plan gpt2 --sequence 1Ki --json", "plan gpt2 --sequence 1024 --json"):
        assert main(line.split()) == 0
        assert json.loads(capsys.readouterr().out)["sequence"] == 1024
    assert main(["serve", "gpt2", "--prompt", "0.5k", "--output", "100", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["prompt"] == 500
    assert "'4KiB' is not a number" in refused("plan gpt2 --sequence 4KiB", capsys)


def test_a_batch_of_a_step_may_be_given_in_tokens(capsys):
    # 2^22 tokens are 4,096 sequences of 2^10.
    assert main(["plan", "gpt2", "--sequence", "1024", "--global-batch", "4Mitokens", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["global_batch"] == 4096
    assert arguments.step_batch("4096") == 4096 and not isinstance(arguments.step_batch("4096"), arguments.Tokens)
    assert arguments.step_batch("100k") == 100_000
    said = refused("plan gpt2 --global-batch 1M", capsys)
    assert "'1M' is a number of sequences, and no step has more than 100,000: for tokens write 1Mtokens" in said
    assert "give --sequence, too" in refused("plan 7B --global-batch 1Mtokens", capsys)
    # Without --sequence they are those that the answer takes: of gpt2 1,024 tokens.
    assert "no whole number of sequences of 1,024" in refused("plan gpt2 --global-batch 1Mtokens", capsys)
    assert main(["plan", "gpt2", "--global-batch", "1Mitokens", "--count", "8"]) == 0
    assert "1,024 sequences, 1,048,576 tokens (global batch)" in capsys.readouterr().out
    # 4e6 / 1024 = 3906.25.
    said = refused("plan gpt2 --global-batch 4Mtokens --sequence 1024", capsys)
    assert "4,000,000 tokens are no whole number of sequences of 1,024" in said and "3,906 or 3,907 sequences" in said
    assert "and 1 sequence" in refused("plan gpt2 --global-batch 1000tokens --sequence 1024", capsys)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("plan gpt2 --tokens -5T", "--tokens must be a positive whole number, such as 7 or 70e9, got -5000000000000."),
        ("plan -7B", "parameters must be a positive whole number, such as 7 or 70e9, got -7000000000."),
        ("plan gpt2 --precision fp8", "--precision: 'fp8' is no policy: for matrix products in fp8 give their peak"),
        ("plan gpt2 --memory -80GB", "--memory: '-80GB' is no size: write 80GB (10^9 bytes), "),
        ("plan gpt2 --watts 700W --tokens 1B", "--watts: '700W' is not a number: write 700"),
        (
            "plan gpt2 --price-per-hour $2.50 --tokens 1B",
            "--price-per-hour: '$2.50' is not a number: write 2.50",
        ),
        ("plan gpt2 --days '30 days'", "--days: '30 days' is not a number: write 30"),
        ("plan gpt2 --tokens 15X", "--tokens: '15X' is not a number: write 70e9, 70B or 15T"),
        ("plan gpt2 --steps 10,000", "--steps: '10,000' is not a number: write 10000"),
        ("plan gpt2 --days 1,5", "--days: '1,5' is not a number: write 70e9, 70B or 15T"),
        ("plan gpt2 --count 2**3", "--count: '2**3' is not a number: write 70e9, 70B or 15T"),
        ("plan gpt2 --batch 4Ki", "--batch: '4Ki' is not a number: write 70e9, 70B or 15T"),
        ("plan gpt2 --tokens '15T tokens'", "--tokens: '15T tokens' is not a number: write 15T"),
        ("plan gpt2 --lora 0", "--lora or --qlora must be a positive whole number, got 0."),
        ("plan gpt2 --tokens 1B --price-per-hour -2", "--price-per-hour must be a finite number above 0, got -2.0."),
        (
            "plan 7B --price-per-hour 2",
            "a cost needs a time, and a time the tokens to train on: give --tokens (or --steps)",
        ),
        ("plan llama-3-8b --count 64 --find", "give --between-nodes, that of one accelerator each way, such as 50e9"),
        ("serve gpt2 --count 0", "--count must be a positive whole number, got 0."),
        ("plan gpt2 --memory 1MB --allowance 2GiB", "--memory counts bytes, such as 80e9"),
    ],
)
def test_errors_speak_of_options_and_say_what_to_type(line, sentence, capsys):
    assert sentence in refused(line, capsys)


def test_every_field_of_a_question_is_an_option_or_the_model():
    options = refusals.options_of_fields()
    assert options["within_days"] == "--days" and options["sharded"] == "--replicated"
    for question, parser in ((Question, plan.parser()), (ServingQuestion, serve.parser())):
        fields = question.__dataclass_fields__.keys() - {"model", "name"}
        assert {
            word for field in fields for word in options[field].split(" or ")
        } <= parser._option_string_actions.keys()


def test_plain_english_is_no_field_of_a_question():
    for sentence in (
        "a batch of 4 sequences: give a smaller batch size",
        "tokens that a rank gets",
        "leave the sequence as it is",
        "optimal.json: layers must be a positive whole number, got 0",
        "/runs/lora_rank/global_batch.json cannot be read: No such file or directory.",
        "unknown field of a TransformerConfig 'global_batch'",
    ):
        assert refusals.in_options(sentence) == sentence


def test_sizes_may_leave_the_b_out_as_kubernetes_does():
    sizes = {"80G": 80 * 10**9, "80Gi": 80 * 2**30, "80g": 80 * 10**9, "1T": 10**12, "512Mi": 2**29, "80GB": 80 * 10**9}
    assert {text: arguments.size(text) for text in sizes} == sizes
    assert arguments.allowance("2Gi") == 2**31


def test_targets_have_pefts_names_too(capsys):
    """PEFT counts 41,943,040 for rank 16 beside all seven matrices of Llama-3-8B, and 3,407,872 for q_proj, v_proj at 8."""

    def adapters(targets, rank=16, name="llama-3-8b"):
        assert main(["plan", name, "--lora", str(rank), "--targets", targets, "--json"]) == 0
        return json.loads(capsys.readouterr().out)["trainable_parameters"]

    assert adapters("q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj") == 41_943_040 == adapters("all-linear")
    assert adapters("q_proj,v_proj", rank=8) == 3_407_872
    deepseek = words.components(["gate_proj"], model("deepseek-v3"))
    assert deepseek == ("dense gate", "mlp gate", "shared gate")
    assert "unknown target of adapters 'gate_proj'. Known: query" in refused(
        "plan gpt2 --lora 8 --targets gate_proj", capsys
    )
    assert words.components(["v_proj"], model("deepseek-v3")) == ("v_proj",)  # its key and value is no v_proj
    assert words.components(["q_proj"], 7e9) == ("q_proj",)


def test_days_without_a_count_are_planned_on_as_many_as_they_ask_for(capsys):
    """6 · 70e9 · 15e12 FLOPs at 0.4 of 989.4 TFLOP/s take 6,142 accelerators 30 days, which stand in 768 nodes of 8."""
    assert -(-6300 * 10**21 // int(989.4e12 * 0.4 * 86400 * 30)) == 6142 <= 8 * 768
    days = ["plan", "70B", "--tokens", "15T", "--days", "30"]
    assert main(days) == 0
    text = capsys.readouterr().out
    assert "on 6,144 × h100-sxm" in text and "all else here is for" not in text
    assert main([*days, "--count", "8"]) == 0
    assert "all else here is for 8, and --count 6144 plans those" in " ".join(capsys.readouterr().out.split())
    # That many make no global batch of 1,024 sequences, which is no reason to say nothing.
    assert main(["plan", "llama-3-70b", *days[2:], "--global-batch", "1024"]) == 0
    assert "(822 nodes of 8) at this MFU; all else here is for 1 micro-batch" in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.mark.parametrize(
    ("name", "context", "sentence"),
    [
        ("moonshotai/Kimi-K2-Thinking", "262,144", "counted as kimi-k2, published in int4-g32-experts"),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "10,485,760", "counted as llama-4-scout"),
        ("mistralai/Mistral-7B-v0.1", "32,768", "counted as mistral-7b"),
    ],
)
def test_models_finds_whatever_plan_takes(name, context, sentence, capsys):
    assert main(["models", name]) == 0
    *_, row, last = capsys.readouterr().out.splitlines()
    assert row.startswith(name) and row.endswith(f" {context}") and last == sentence


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("plan gpt2 --offload", "--optimizer adamw8bit"), ("plan gpt2 --cpu-offload", "--checkpointing"),
        ("serve gpt2 --cpu-offload-gb 8", "--weights int4"), ("plan gpt2 --dpo", "--allowance"),
        ("serve gpt2 --draft gpt2", "predict.speculative_speedup"), ("plan gpt2 --compile", "upper bound"),
        ("plan gpt2 --selective-ac", "--checkpointing"),
    ],
)  # fmt: skip
def test_what_is_not_modelled_is_said_to_be_with_what_to_do_instead(line, instead, capsys):
    said = refused(line, capsys)
    assert said.startswith(line.split()[2] + ": ") and "not modelled" in said and instead in said
    assert "there is no option" not in said
    # An option that is named exists.
    for option in re.findall(r"--[a-z0-9-]+", said.removeprefix(line.split()[2])):
        assert option in {
            name for action in (plan if "plan" in line else serve).parser()._actions for name in action.option_strings
        }


@pytest.mark.parametrize(
    ("theirs", "ours"), [("adamw_8bit", "adamw8bit"), ("paged_adamw_8bit", "adamw8bit"), ("adamw_torch", "adamw")]
)
def test_an_optimizer_of_another_tool_is_answered_with_its_name_here(theirs, ours, capsys):
    assert f"'{theirs}' is called {ours} here: write --optimizer {ours}" in refused(
        f"plan gpt2 --optimizer {theirs}", capsys
    )
    assert main(["plan", "gpt2", "--optimizer", ours]) == 0


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("plan gpt2 --json --batch 0", "--batch must be a positive whole number, got 0."),
        ("plan gpt2 --json --gpus 8", "there is no option --gpus. Did you mean --count? --help lists all"),
        ("serve gpt2 --count 1.5 --json", "--count: '1.5' is not a whole number"),
        ("serve no-such-model --json", "no model is called 'no-such-model'"),
    ],
)
def test_with_json_a_refusal_is_json_on_stdout(line, sentence, capsys):
    """The same sentence and exit code as without it."""
    codes = []
    for typed in (line.split(), [word for word in line.split() if word != "--json"]):
        try:
            codes.append(main(typed))
        except SystemExit as ended:
            codes.append(ended.code)
    out, err = capsys.readouterr()
    (told,) = [json.loads(out)]
    assert codes == [2, 2] and [*told] == ["error"] and told["error"].startswith(sentence)
    assert err == told["error"] + "\n"


def test_a_context_may_be_longer_than_the_trained_one(capsys):
    assert main(["serve", "llama-3-8b", "--context", "32Ki", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["prompt"], answer["output"]) == (32 * 1024 - 512, 512)
    assert answer["cache_bytes"] == 2 * 32 * 8 * 128 * 2 * 32 * 1024
    assert any("a context of 32,768 is beyond the 8,192" in note for note in answer["notes"])
    assert main(["serve", "llama-3-8b", "--context", "4Ki", "--output", "96", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["prompt"], answer["output"]) == (4000, 96) and not any("beyond" in note for note in answer["notes"])
    assert main(["serve", "llama-3-8b", "--context", "4Ki", "--prompt", "4000", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["output"] == 96
    # Half of the context is the answer's, and no more than 512 tokens of it.
    for context, prompt, output in ((300, 150, 150), (1024, 512, 512), (1025, 513, 512)):
        assert main(["serve", "llama-3-8b", "--context", str(context), "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert (answer["prompt"], answer["output"]) == (prompt, output)
    for line, sentence in (
        ("serve gpt2 --context 2Ki", "learned positions end at 1,024"),
        ("serve llama-3-8b --context 4Ki --prompt 5000", "do not go into --context 4096"),
        ("serve llama-3-8b --prompt 32k", "to `cs336kit serve`, --context"),
    ):
        assert main(line.split()) == 2 and sentence in capsys.readouterr().err

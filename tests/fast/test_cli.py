import json
import os
import subprocess
import sys

import pytest

from cs336kit.cli import main


def test_a_plan_as_text(capsys):
    assert main(["plan", "llama-3-8b", "--tokens", "15T", "--count", "1024", "--mfu", "0.5"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("llama-3-8b: 8,030,261,248 parameters\ntime: ")
    assert "optimizer state" in out and "largest model" in out and out.endswith("parameters\n")


def test_a_plan_as_json(capsys):
    assert main(["plan", "70B", "--tokens", "15e12", "--count", "1024", "--mfu", "0.5", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["parameters"] == 70 * 10**9 and round(answer["days"], 1) == 143.9
    assert answer["total_bytes"] == sum(answer["memory_bytes"].values())
    assert answer["fits"] is True and answer["advice"] == []


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
        ('{"n_layer": 2}', "unknown field of a TransformerConfig 'n_layer'"),
        ('{"layers": 2, "d_model": 64, "heads": 7, "vocab": 9, "context": 8}', "heads=7 does not divide d_model=64"),
        ('{"layers": 2, "layers": 3}', "gives layers twice"),
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
        (["llama3"], "unknown model"),
        (["gpt2", "--sequence", "2000"], "longer than context=1024"),
        (["70e9", "--batch", "2"], "batch is about activations"),
        (["70e9", "--mfu", "50"], "divide it by 100"),
        (["gpt2", "--accelerator", "abacus"], "unknown accelerator 'abacus'"),
        (["-5"], "parameters must be"),
        (["70e9", "--batch", "0"], "batch is about activations"),
        (["gpt2", "--batch", "0"], "batch must be"),
        (["gpt2", "--tokens", "0"], "tokens must be"),
        (["gpt2", "--tokens", "1e300"], "give fewer"),
        (["gpt2", "--mfu", "0"], "mfu must be"),
        (["gpt2", "--accelerator", "v100-sxm2-32gb"], "no sourced bf16"),
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
        (["plan", "gpt2", "--mfu", "half"], "'half' is not a number"),
        (["plan", "gpt2", "--precision", "fp9"], "invalid choice: 'fp9'"),
        (["plan", "gpt2", "--colour", "red"], "unrecognized arguments"),
    ],
)
def test_arguments_that_argparse_refuses_are_one_sentence_too(capsys, arguments, sentence):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and sentence in error and error.count("\n") == 1


def test_a_precision_of_several_words_has_a_spelling_without_blanks(capsys):
    answers = []
    for spelling in ("mixed-fp32-gradients", "mixed, fp32 gradients"):
        assert main(["plan", "gpt2", "--precision", spelling]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1] and "mixed, fp32 gradients" in answers[0]


def test_a_model_with_experts_says_what_is_assumed_of_its_router(capsys):
    assert main(["plan", "mixtral-8x7b"]) == 0
    assert "share the tokens equally" in capsys.readouterr().out
    assert main(["plan", "gpt2"]) == 0
    assert "equally" not in capsys.readouterr().out


def test_a_reader_that_closes_the_pipe_early_is_no_error():
    read, write = os.pipe()
    os.close(read)
    run = subprocess.run(
        [sys.executable, "-m", "cs336kit", "plan", "gpt2"], stdout=write, stderr=subprocess.PIPE, check=False
    )
    os.close(write)
    assert (run.returncode, run.stderr) == (0, b"")


def test_the_command_line_never_imports_torch():
    code = "import sys; from cs336kit.cli import main; main(['plan', 'gpt2']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
    bad = [sys.executable, "-m", "cs336kit", "plan", "70e9", "--mfu", "2"]
    assert subprocess.run(bad, capture_output=True, check=False).returncode == 2

"""Whatever the planner advises is tried as its words say it: the command takes it, and what was promised holds."""

import re
import shlex

import pytest
from hypothesis import Phase, assume, example, given, settings
from hypothesis import strategies as st

from cs336plan.commands.plan import answered

pytestmark = pytest.mark.fuzz

MODELS = (
    "gpt2-xl",
    "llama-3.2-1b",
    "llama-3-8b",
    "llama-2-13b",
    "mixtral-8x7b",
    "gemma-2-9b",
    "deepseek-v2-lite",
    "10B",
)
LAYOUTS = (
    "tp=2",
    "fsdp=4,tp=2",
    "dp=8",
    "zero1=4",
    "zero2=8",
    "pp=2,dp=2",
    "pp=2,microbatches=8,fsdp=2",
    "dp=2,fsdp=4",
)


def option(name, *values):
    """The words of an option, or none of them: no value is a flag."""
    given = [f"--{name} {value}" for value in values] or [f"--{name}"]
    return st.sampled_from(["", "", *given])


QUESTIONS = st.tuples(
    st.sampled_from(MODELS),
    option("accelerator", "rtx-4090", "a100-sxm-40gb", "a100-sxm-80gb", "l4", "l40s", "b200-sxm"),
    option("batch", 1, 2, 4, 6, 8, 16), option("sequence", 512, 1024, 2048), option("lora", 8), option("qlora", 16),
    st.one_of(option("count", 2, 8, 64), option("layout", *LAYOUTS)), option("replicated"), option("checkpointing"),
    option("optimizer", "sgd", "muon", "adamw8bit"), option("precision", "bf16", "fp32", "autocast"),
    option("attention", "eager", "flash_attention"), option("global-batch", 16, 64, 256), option("accumulate", 2, 4),
    option("fused"), option("chunks", 4), option("between-nodes", "50GB/s"),
).map(lambda parts: " ".join(filter(None, parts)))  # fmt: skip


def options(line):
    """Option → its value, or True; what stands there twice is said twice."""
    found = {}
    for name, value in re.findall(r"--([a-z-]+)(?: ([^\s,-][^\s]*?)(?=,? |,?$))?", line):
        assert name not in found, f"--{name} is said twice in {line}"
        found[name] = value or True
    return found


def followed(line, change):
    """The line after what stands in brackets of the advice: options to give, and to leave out."""
    model, _, rest = line.partition(" ")
    said = options(rest)
    to_give, to_drop = [], []
    for words in re.findall(r"\(([^()]*--[^()]*)\)", change):
        give, *drop = re.split(r",? ?without |leave | in place of ", words)
        to_give.append(give)
        to_drop += [name for part in drop for name in options(part)]
    new = options(" ".join(to_give))
    if {"layout", "count"} & set(new):
        to_drop.append("count")  # of a layout, it follows
    said = {name: value for name, value in said.items() if name not in to_drop} | new
    return " ".join([model, *(f"--{name}" if value is True else f"--{name} {value}" for name, value in said.items())])


def ask(line):
    return answered(shlex.split(line)).plan


def check(line):
    """Each piece of advice to this question, followed, fits, and costs what it says."""
    try:
        answer = ask(line)
    except (ValueError, SystemExit):
        assume(False)
    for one in answer.advice:
        then = followed(line, one.change)
        after = ask(then)
        assert after.fits, (line, one.change, then)
        assert after.question == ask(then).question
        said = re.match(r"(?:together )?([\d.]+) % more FLOPs|(?:together )?no more FLOPs", one.costs)
        if said:
            more = 100 * (after.recomputed - answer.recomputed)
            assert float(said[1] or 0) == pytest.approx(more, abs=0.15), (line, str(one), more)
        same_batch = "another global batch" not in one.costs and "accelerators" not in one.costs
        if same_batch:
            assert after.question.step_sequences == answer.question.step_sequences, (line, str(one))
        needed = re.findall(r"\(--[^()]*\)", one.change)
        for left_out in needed if len(needed) > 1 else ():
            try:
                without = ask(followed(line, " ".join(words for words in needed if words != left_out)))
            except ValueError:
                continue
            assert not without.fits, (line, one.change, left_out)


@settings(phases=[Phase.explicit])
@given(QUESTIONS)
@example("10B")
@example("llama-3-8b --accelerator a100-sxm-80gb --sequence 2048 --checkpointing --attention flash_attention")
@example("llama-3-8b --accelerator a100-sxm-80gb --precision bf16 --fused")
@example("mixtral-8x7b --accelerator l40s --batch 6 --sequence 512 --layout dp=2,fsdp=4 --optimizer muon")
@example("llama-2-13b --accelerator l40s --batch 4 --sequence 2048 --optimizer muon --global-batch 16")
@example("llama-3-70b --layout tp=8 --sequence 8192")
@example("mixtral-8x7b --batch 16 --sequence 1024 --layout fsdp=4,tp=2 --precision autocast --accumulate 4")
def test_advice_that_was_wrong_once_fits_and_costs_what_it_says(line):
    check(line)


@pytest.mark.proof
@given(QUESTIONS)
def test_advice_that_is_followed_fits_and_costs_what_it_says(line):
    check(line)

"""A step: what it refuses where it is made, and that it is one value, however it is asked for."""

import inspect
import pickle

import pytest

from cs336kit import predict
from cs336kit.predict.decoder.programs import program_of
from cs336kit.predict.decoder.step import Step, StepOptions

GPT2 = predict.model("gpt2")
LLAMA = predict.model("llama-3-8b")


def test_a_misspelled_name_is_answered_with_the_nearest():
    with pytest.raises(TypeError, match="a step has no option precison: did you mean precision?"):
        Step.of(GPT2, batch=1, sequence=8, precison="bf16")
    with pytest.raises(TypeError, match="a step has no option colour; there are attention, base, cache"):
        predict.step_peak(GPT2, batch=1, sequence=8, colour="blue")
    for function in (
        predict.training_flops,
        predict.saved_activation_bytes,
        predict.step_timeline,
        predict.step_allocation,
    ):
        with pytest.raises(TypeError, match="did you mean checkpointing?"):
            function(GPT2, batch=1, sequence=8, checkpoint=True)


def test_names_and_what_they_stand_for_make_the_same_step():
    one = Step.of(GPT2, batch=1, sequence=8, precision="bf16", layout="fsdp=2")
    other = Step.of(GPT2, batch=1, sequence=8, precision=predict.POLICIES["bf16"], layout=predict.Layout(fsdp=2))
    assert one == other and hash(one) == hash(other) and program_of(one) is program_of(other)
    assert "_hash" not in pickle.loads(pickle.dumps(one)).__dict__, "strings have other hashes in another process"
    assert one.at(stage=0) is one and one.at(layout=predict.Layout(fsdp=4)) != one


def test_another_stage_or_layout_is_checked_as_the_first_one_was():
    step = Step.of(LLAMA, batch=1, sequence=64, layout="pp=4")
    assert [step.at(stage=stage).stage for stage in range(4)] == [0, 1, 2, 3]
    for changes, sentence in (
        ({"stage": 4}, "the stages of pp=4 are 0 to 3"),
        ({"layout": predict.Layout(tp=7)}, "tp=7"),
    ):
        with pytest.raises(ValueError, match=sentence):
            step.at(**changes)


def test_what_can_be_said_is_written_once_and_typed_once():
    takes = inspect.signature(Step._checked).parameters
    assert {*takes} == {"config", "batch", "sequence"} | StepOptions.__optional_keys__
    hints = {name: str(parameter.annotation) for name, parameter in takes.items()}
    assert (
        hints["precision"]
        == str(StepOptions.__annotations__["precision"])
        == "str | cs336kit.predict.precision.PrecisionPolicy"
    )


def test_names_of_components_are_checked_where_the_program_is_made():
    step = Step.of(GPT2, batch=1, sequence=8, frozen=["heads"])
    with pytest.raises(ValueError, match="heads"):
        program_of(step)

"""`cs336kit plan`: a training run, its time and its memory."""

import argparse
import dataclasses
import json

from cs336kit.command import arguments as read
from cs336kit.command.arguments import Keys, LayoutText, Parser, add_links, check_listed, in_sequences
from cs336kit.command.words import components
from cs336kit.predict.decoder.step import EVERY_ATTENTION
from cs336kit.predict.devices import DEVICES
from cs336kit.predict.layout_search import FoundLayout
from cs336kit.predict.napkin import NAPKIN_OPTIMIZERS, bytes_per_parameter
from cs336kit.predict.precision import POLICIES
from cs336kit.predict.transformer import TransformerConfig
from cs336plan.commands.model import MODULES, model_of, to_trace
from cs336plan.training.find import as_rows, batch_note, before_layouts, found, found_text, largest_batch
from cs336plan.training.plan import Plan, plan
from cs336plan.training.question import SHAPED_OPTIMIZERS, Question, usual_sequence
from cs336plan.training.schema import KEYS, SCHEMA, formulas
from cs336plan.training.sensitivity import sensitivity, sensitivity_text
from cs336plan.training.text import explanations

PURPOSE = "time, memory and cost of a training or fine-tuning run"
_FP8 = "for matrix products in fp8 give their peak, such as --peak 1979TFLOPs"
_EXAMPLES = """
    examples:
      how long do 15T tokens take, and does it fit?
        cs336kit plan llama-3-70b --tokens 15T --count 1024 --checkpointing
      how many accelerators for 15T tokens in 30 days?
        cs336kit plan llama-3-70b --tokens 15T --days 30
      a step of 1,024 sequences on 64 accelerators, by gradient accumulation
        cs336kit plan llama-3-8b --count 64 --batch 4 --global-batch 1024
      tensor parallel inside each node; and: which layout is the quickest?
        cs336kit plan llama-3-70b --layout fsdp=8,tp=8 --between-nodes 400Gb/s
        cs336kit plan llama-3-70b --count 64 --find --between-nodes 400Gb/s
      a chip that is not in the table
        cs336kit plan 7B --memory 96GB --peak 500TFLOPs --tokens 1T --count 8
      fine-tune on one card: adapters beside a base of 4 bits
        cs336kit plan llama-3-8b --qlora 16 --accelerator rtx-4090 --checkpointing
      where do the numbers come from, and which input moves them most?
        cs336kit plan gpt2 --tokens 10B --explain
        cs336kit plan gpt2 --tokens 10B --sensitivity

    --json-keys prints what every key of --json means.
"""


def parser() -> argparse.ArgumentParser:
    """Every option, under the name of the field of the question that it sets, with its choices and what it is for.

    What the page of the planner shows before anything is chosen has its default here; all else has it in the question.
    """
    command = Parser.of("plan", "MODEL [options]", purpose=PURPOSE, examples=_EXAMPLES)
    shown = ("precision", "optimizer", "chunks", "mfu", "product_rate", "device")
    command.set_defaults(**{name: getattr(Question, name) for name in shown})
    add = command.add_argument
    add("model", help="a name or hub id (llama-3-8b, Qwen/Qwen3-8B), a config.json or its folder, or P (70e9, 70B)")
    whose = "transformers: count its own modules of a config.json by tracing, as for any file that the kit's rules do not read"
    add("--modules", choices=list(MODULES), metavar="NAME", help=whose)
    run = command.add_argument_group("the run").add_argument
    run("--tokens", type=read.tokens, metavar="N", help="tokens to train on, such as 15T; without it no time")
    days = "that the run may take: prints how many accelerators that asks for"
    run("--days", dest="within_days", type=read.number, metavar="N", help=days)
    implied = "optimizer steps; with --tokens, the batch that they imply is printed"
    run("--steps", type=read.count, metavar="N", help=implied)
    each = "micro-batch: sequences that one accelerator works on at a time (1)"
    run("--batch", type=read.count, metavar="N", help=each)
    tokens_of = "tokens of a sequence (by default the model's context, 4096 at most); 4k is 4,000, and 4Ki 4,096"
    run("--sequence", type=read.length, metavar="N", help=tokens_of)
    of_step = "sequences of one optimizer step over all accelerators, or its tokens, such as 4Mitokens"
    run("--global-batch", type=read.step_batch, metavar="N", help=of_step)
    passes = "micro-batches of one optimizer step (gradient accumulation; 1)"
    run("--accumulate", type=read.count, metavar="N", help=passes)
    bytes_of = ", ".join(f"{name} ({bytes_per_parameter('adamw', precision=name).total})" for name in POLICIES)
    policies = f"{bytes_of}, bytes a parameter with adamw; mixed, the default, is bf16 beside fp32 master weights"
    run("--precision", type=_precision, choices=list(POLICIES), metavar="NAME", help=f"{policies}; {_FP8}")
    optimizers = [*NAPKIN_OPTIMIZERS, *SHAPED_OPTIMIZERS]
    listed = f"{', '.join(optimizers)}; {Question.optimizer} by default"
    run("--optimizer", type=str.lower, choices=optimizers, metavar="NAME", help=listed)
    fused = "the optimizer is one kernel, without temporary tensors (torch's fused=True)"
    run("--fused", action="store_true", help=fused)
    kinds = (
        "sdpa (torch's fused function, the default), eager, or flash_attention, whose kernel knows windows, caps and sinks (the "
        "default where sdpa would write the scores out)"
    )
    run("--attention", choices=list(EVERY_ATTENTION), help=kinds)
    run("--checkpointing", action="store_true", help="keep only the input of each block")
    run("--chunks", type=read.count, metavar="N", help="compute the loss in so many parts, one after the other (1)")
    on = command.add_argument_group("the machine").add_argument
    on("--accelerator", metavar="NAME", help="such as h100-sxm (the default) or a100-sxm-80gb")
    on("--count", type=read.count, metavar="N", help="number of accelerators (1, or as many as --days asks for)")
    own = "of one accelerator, such as 80GB or nvidia-smi's 81559MiB"
    on("--memory", dest="memory_bytes", type=read.size, metavar="SIZE", help=own)
    peak = "dense peak of one accelerator, such as 989TFLOPs"
    on("--peak", dest="peak_flops_per_second", type=read.rate, metavar="RATE", help=peak)
    free = "memory that is left free, 2GiB or 8%%; the default is printed"
    on("--allowance", type=read.allowance, metavar="SIZE", help=free)
    usual = f"0.4 or 40%%; default {Question.mfu}"
    mfu = f"model FLOPs utilization of the whole run, as it is usually reported ({usual}): gives time and cost"
    on("--mfu", type=read.share, metavar="X", help=mfu)
    best = f"default {Question.product_rate}, the best of bf16 on H100"
    products = f"share of the peak at which matrix products run ({best}): gives bounds of a step"
    on("--product-rate", type=read.share, metavar="X", help=products)
    shared = "who shares what, such as fsdp=64,tp=8 or pp=4,dp=2,microbatches=16 (--layout help explains each word)"
    on("--layout", action=LayoutText, metavar="TEXT", help=shared)
    on("--find", action="store_true", help="list the layouts of --count accelerators that fit, quickest first")
    on("--largest-batch", action="store_true", help="find the largest --batch that fits")
    add_links(on)
    on("--device", choices=list(DEVICES), help="whose rules say what operations keep, cuda by default")
    on("--replicated", dest="sharded", action="store_false", help="a whole model on each accelerator, not sharded")
    tune = command.add_argument_group("fine-tuning").add_argument
    tune("--lora", dest="lora_rank", type=read.count, metavar="RANK", help="adapters of this rank; all else is frozen")
    tune("--qlora", type=read.count, metavar="RANK", help="the same beside frozen matrices of 4 bits (nf4)")
    stand = "where adapters stand: query,value (the default) … or all; or PEFT's names, such as q_proj,v_proj"
    tune("--targets", dest="lora_targets", type=read.names, metavar="NAMES", help=stand)
    untrained = "components that are not trained, such as 'token embedding'"
    tune("--freeze", dest="frozen", type=read.names, metavar="NAMES", help=untrained)
    show = command.add_argument_group("the answer").add_argument
    price = "of one accelerator, in your currency: prints the cost"
    show("--price-per-hour", type=read.number, metavar="X", help=price)
    watts = "of one accelerator with its share of the machine: prints the energy"
    show("--watts", type=read.number, metavar="W", help=watts)
    show("--explain", action="store_true", help="the formula of each line with its numbers")
    show("--sensitivity", action="store_true", help="which input moves days and bytes most")
    show("--json", action="store_true", help="print JSON; its key fits says whether the run fits")
    show("--check", action="store_true", help="exit code 1 if it does not fit; without it 0 for every answer")
    show("--json-keys", action=Keys, keys=KEYS, schema=SCHEMA, help="what each key of --json means")
    return command


def _precision(text: str) -> str:
    if text.startswith("fp8"):
        raise argparse.ArgumentTypeError(f"{text!r} is no policy: {_FP8}")
    return text


def run(arguments: list[str]) -> int:
    """Answer and print; with --check, 1 if it does not fit, or only may."""
    if (answer_traced := _traced(arguments)) is not None:
        return answer_traced
    answer = answered(arguments)
    print(json.dumps(answer.values(), indent=2) if answer.asked["json"] else answer.text())
    return int(answer.asked["check"] and not answer.plan.fits)


def _traced(arguments: list[str]) -> int | None:
    """Answer and print where the modules of a file are counted by tracing; None where the rules answer."""
    command = parser()
    values = vars(command.parse_args(arguments))
    model, modules = values.pop("model"), values.pop("modules")
    if (file := to_trace(model, modules)) is None:
        return None
    from cs336plan.traced_answers.training import plan as traced_plan

    check_listed(values.get("accelerator"), "--memory 128GB --peak 28TFLOPs")
    asked = {name: values.pop(name) for name in ("json", "check")}
    answer = traced_plan(file, read.given(command, values), read.options_of(command))
    print(json.dumps(answer.as_dict(), indent=2) if asked["json"] else answer)
    return int(asked["check"] and not answer.fits)


@dataclasses.dataclass(frozen=True)
class Answered:
    """A plan with what was asked for beside it: the layouts that fit, the largest batch, formulas, sensitivities."""

    plan: Plan
    asked: dict[str, bool]
    layouts: list[FoundLayout] | None
    largest_batch: int | None

    def values(self) -> dict[str, object]:
        """What --json prints."""
        rows = None if self.layouts is None else as_rows(self.layouts)
        values = {**self.plan.as_dict(), "layouts": rows, "largest_batch": self.largest_batch}
        if self.asked["explain"]:
            values["explain"] = formulas(self.plan)
        if self.asked["sensitivity"]:
            values["sensitivity"] = [
                {"change": one.what, "days": one.days, "bytes": one.bytes} for one in sensitivity(self.plan)
            ]
        return values

    def text(self) -> str:
        """What the command prints without --json."""
        parts = [str(self.plan)]
        if self.largest_batch is not None:
            parts[0] += f"\nlargest micro-batch that fits: {self.largest_batch:,}"
        if self.layouts is not None:
            parts.append(found_text(self.plan, self.layouts))
        if self.asked["explain"]:
            parts.append(explanations(self.plan))
        if self.asked["sensitivity"]:
            parts.append(sensitivity_text(self.plan))
        return "\n\n".join(parts)


def answered(arguments: list[str]) -> Answered:
    """What the command says to these words."""
    question, asked = _question(arguments)
    answer = plan(before_layouts(question) if asked["find"] else question)
    facts = (*answer.facts, *(question.config.notes if question.config else ()))
    layouts = None
    if asked["find"]:
        facts = (*facts, *batch_note(answer.question, question.global_batch))
        # Where layouts are looked for, nothing asks to.
        answer = dataclasses.replace(answer, layouts_may_fit=False)
        layouts = found(answer, global_batch=question.global_batch)
    answer = dataclasses.replace(answer, facts=facts)
    return Answered(answer, asked, layouts, largest_batch(answer) if asked["largest_batch"] else None)


def _question(arguments: list[str]) -> tuple[Question, dict[str, bool]]:
    """The question, of the fields that were given, and what was asked for beside it."""
    values = {name: value for name, value in vars(parser().parse_args(arguments)).items() if value is not None}
    asked = {name: values.pop(name) for name in ("json", "check", "find", "largest_batch", "explain", "sensitivity")}
    check_listed(values.get("accelerator"), "--memory 128GB --peak 28TFLOPs")
    if "memory_bytes" in values and ("peak_flops_per_second" in values or not values.get("tokens")):
        values.setdefault("accelerator", None)
    if "layout" in values and not values["sharded"]:
        raise ValueError("--layout says who shares what, and --replicated says it too: leave one of them out")
    if "qlora" in values:
        if "lora_rank" in values:
            raise ValueError("--lora and --qlora are the same adapters beside another base: give one of them")
        values |= {"lora_rank": values.pop("qlora"), "base": "nf4"}
    if "lora_targets" in values and "lora_rank" not in values:
        raise ValueError("--targets says where adapters stand: give --lora RANK or --qlora RANK, too")
    values.pop("modules", None)
    name, model = model_of(values.pop("model"))
    usual = usual_sequence(model) if isinstance(model, TransformerConfig) else None
    values["global_batch"] = in_sequences(values.get("global_batch"), values.get("sequence") or usual)
    values["lora_targets"] = components(values.get("lora_targets", ()), model)
    question = Question(model=model, name=name, **values)
    several = "within_days" in values and "count" not in values and "layout" not in values
    return _of_as_many(question) if several else question, asked


def _of_as_many(question: Question) -> Question:
    """The question for as many accelerators as its days ask for; as it is where they cannot make its global batch."""
    many = dataclasses.replace(question, count=plan(question).accelerators_within_days or 1)
    try:
        plan(many)
    except ValueError:
        return question
    return many

"""One rank of a layout, counted on lm's own parallel decoder and predicted: `python -m benchmarks.layouts` prints the table.

The process group is torch's fake one, which answers at once without sending: the tensors of a rank have their true sizes, and
one process is enough for any number of ranks.
"""

import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cs336kit import lm, measure
from cs336kit._torch import local
from cs336kit.measure.ranks import fake_ranks
from cs336kit.predict import Layout, TransformerConfig, peak_moments, program, saved_activation_bytes, step_peak
from cs336kit.predict.engine.states import gradient_bytes
from cs336kit.predict.network import sent

GPT = TransformerConfig(layers=4, d_model=32, heads=4, vocab=64, context=32)
LLAMA = TransformerConfig(
    layers=4, d_model=32, heads=4, kv_heads=4, d_ff=96, vocab=64, context=32, mlp="swiglu", norm="rmsnorm",
    positions="rope", bias="none", tied_head=False,
)  # fmt: skip
LATENT = replace(LLAMA, kv_heads=None, kv_latent=16, head_dim=12, rotary_dim=4, query_latent=8)
#: Its head reads the stream itself.
BARE = replace(LLAMA, final_norm=False)
MIXTURE = replace(LLAMA, experts=4, experts_per_token=4)  # every expert sees every token, whatever the data
STEP = {"batch": 2, "sequence": 32}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
#: What is compared, in the order of the table's columns.
QUANTITIES = ("parameters", "gradients", "optimizer state", "activations", "peak", "sent")

LAYOUTS = (
    "dp=2", "dp=4", "dp=2,microbatches=3", "zero1=2", "zero1=4", "zero1=2,dp=2", "zero1=4,microbatches=2", "zero2=2", "zero2=4",
    "zero2=2,dp=2", "zero2=4,microbatches=2", "fsdp=2", "fsdp=4", "fsdp=2,dp=2", "fsdp=4,microbatches=2",
    "fsdp=2,dp=2,microbatches=3", "tp=2", "tp=4",
    "tp=2,sp", "tp=4,sp", "dp=2,tp=2", "dp=2,tp=4,sp", "zero1=2,tp=2", "zero1=4,tp=2,sp", "zero2=2,tp=2", "zero2=2,tp=4,sp",
    "fsdp=2,tp=2", "fsdp=2,tp=4,sp", "fsdp=2,dp=2,tp=2,sp", "pp=2", "pp=4", "pp=2,schedule=gpipe", "pp=2,microbatches=4",
    "pp=2,tp=2", "pp=2,tp=4,sp", "pp=2,dp=2", "pp=2,zero1=2", "pp=4,tp=2,sp,dp=2", "pp=2,zero1=2,tp=2,sp",
)  # fmt: skip
OF_BARE = ("tp=2", "tp=4,sp")
OF_EXPERTS = ("ep=2", "ep=4", "ep=2,dp=2")
OF_LATENTS = ("tp=2", "tp=4,sp", "zero2=2,tp=2", "fsdp=2,tp=2,sp")


@dataclass(frozen=True)
class Case:
    """A model under a layout; `stage` of its pipeline."""

    kind: str
    config: TransformerConfig
    layout: Layout
    attention: str
    checkpointing: bool
    stage: int
    precision: str = "fp32"
    #: matrices of the blocks that are not trained
    frozen: tuple[str, ...] = ()

    @property
    def options(self) -> dict[str, Any]:
        return {
            **STEP, "attention": self.attention, "checkpointing": self.checkpointing, "layout": self.layout,
            "precision": self.precision, "frozen": self.frozen,
        }  # fmt: skip


def cases() -> Iterator[Case]:
    """Every layout with both kinds of models, the stages of a pipeline apart; ways of attention and checkpointing in turn."""
    number = 0
    for kind, config, layouts in (
        ("gpt", GPT, LAYOUTS), ("llama", LLAMA, LAYOUTS), ("mixture", MIXTURE, OF_EXPERTS), ("latent", LATENT, OF_LATENTS),
        ("bare", BARE, OF_BARE),
    ):  # fmt: skip
        for text in layouts:
            layout = Layout.parse(text)
            for stage in sorted({0, layout.pp - 1}):
                number += 1
                yield Case(kind, config, layout, ("eager", "sdpa")[number % 2], number % 3 == 0, stage)


def predicted(case: Case) -> dict[str, Any]:
    """What `predict` says of a rank."""
    options = case.options
    states = step_peak(case.config, stage=case.stage, foreach=False, **options)
    moments = peak_moments(case.config, stage=case.stage, foreach=False, **options)
    walked = program(case.config, stage=case.stage, **options)
    kept = saved_activation_bytes(case.config, stage=case.stage, **options).total
    collectives: Counter[str] = Counter()
    for wire, times in sent(walked):
        collectives[wire.kind] += times * wire.bytes
    return {
        "parameters": states["parameters"], "gradients": gradient_bytes(walked), "optimizer state": states["optimizer state"],
        "activations": kept, "peak": max(moments.values()), "sent": sum(collectives.values()), "collectives": collectives,
    }  # fmt: skip


def _adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, foreach=False)


def counted(case: Case) -> dict[str, Any]:
    """What a rank of that stage really has and sends, from a step of `lm.parallelize`."""
    layout = case.layout
    with fake_ranks(layout.count, rank=case.stage * (layout.count // layout.pp)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        model = lm.DecoderOnly(case.config, attention=case.attention, checkpointing=case.checkpointing)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not any(f".{each.replace(' ', '.')}." in name for each in case.frozen))
        model = model.to(DTYPES[case.precision])
        ranks = lm.parallelize(model, layout)
        del model
        optimizer = ranks.optimizer(_adamw)
        module, B, S, dtype = ranks.module, STEP["batch"], STEP["sequence"], DTYPES[case.precision]
        tokens = torch.zeros(layout.global_batch(B), S, dtype=torch.int64)
        width = case.config.d_model, S // layout.tp if layout.sp else S

        between: Counter[str] = Counter()  # what stages of a pipeline would send, run by hand

        def forward() -> Tensor:
            given = tokens[:B] if module.first else torch.zeros(B, width[1], width[0], requires_grad=True, dtype=dtype)
            output = module(given)
            return ranks._loss(output, tokens[:B]) if module.last else output

        def by_hand() -> None:
            """The schedule of a pipeline, one process alone."""
            flight, ahead = [], layout.in_flight(case.stage)
            for number in range(layout.microbatches + ahead - 1):
                if number < layout.microbatches:
                    flight.append(forward())
                    between["send"] += (not module.last) * local(flight[-1]).nbytes
                if number >= ahead - 1:
                    output = flight.pop(0)
                    torch.autograd.backward(output, torch.ones_like(output))
                    del output  # with its graph
                    between["send"] += (not module.first) * dtype.itemsize * B * width[0] * width[1]
            ranks._add_up()

        run = by_hand if layout.pp > 1 else lambda: ranks.backward(tokens, tokens)

        def step() -> None:
            run()
            optimizer.step()
            optimizer.zero_grad()

        step()
        outputs = []
        activations = measure.saved_activation_bytes(lambda: outputs.append(forward()) or outputs[0]).total
        outputs[0].backward(torch.ones_like(outputs.pop()))
        # Between two microbatches.
        gradients = [ranks._gradient(parameter) for parameter in module.parameters()]
        gradients = [gradient.nbytes for gradient in gradients if gradient is not None]
        optimizer.zero_grad()
        between.clear()
        with measure.collectives() as said:
            run()
        result = {
            "parameters": sum(local(p).nbytes for p in module.parameters()),
            "gradients": sum(gradients),
        }
        with measure.collectives() as later:
            optimizer.step()
        optimizer.zero_grad()
        states = [t for state in optimizer.state.values() for t in state.values() if isinstance(t, Tensor)]
        collectives: Counter[str] = +between
        for each in (*said, *later):
            # The mean of the loss is a few bytes and left out, as in predict.
            if not (each.kind == "all-reduce" and each.size == 4):
                collectives[each.kind] += each.bytes
        return result | {
            "optimizer state": sum(local(t).nbytes for t in states), "activations": activations,
            "peak": measure.peak_bytes(step, device="cpu"), "sent": sum(collectives.values()), "collectives": collectives,
        }  # fmt: skip


#: Of a loss, in fp32.
LOSS_BYTES = 4
LOSSES = f"lm adds the losses of the microbatches up: {LOSS_BYTES} bytes"


def reasons(case: Case) -> dict[str, str]:
    """Quantity → why `lm` and `predict` differ in it under this layout; all others are equal to the byte."""
    layout = case.layout
    if layout.ep > 1:
        return {
            "optimizer state": "lm has a tensor for each expert's matrix, predict one for all of a rank: 4 bytes each",
            "peak": "lm computes the experts of a rank one after the other, predict as one product",
            "sent": "how many tokens go to each expert: 8 bytes for each, left out by predict",
        }
    if layout.zero_stage == 2:
        return {"peak": "lm reduces the gradient of each parameter at once, predict those of a block when it ends"}
    if layout.microbatches > 1 and layout.pp == 1:
        return {"peak": LOSSES}
    if layout.sp and case.config.bias == "all" and case.checkpointing:
        return {"peak": "lm adds the bias behind the sum of divided rows, predict before it: one vector of 4·D bytes"}
    return {}


def table(every: int = 1) -> tuple[list[tuple[str, ...]], list[str]]:
    """(rows of what was counted and by how much predict is off, what differs without a reason) of every n-th case."""
    rows: list[tuple[str, ...]] = [("model", "layout", "stage", *QUANTITIES)]
    wrong = []
    for case in list(cases())[::every]:
        real, said, known = counted(case), predicted(case), reasons(case)
        cells = []
        for name in QUANTITIES:
            off = said[name] - real[name]
            cells.append(f"{real[name]:,}" + (f" ({off:+,})" if off else ""))
            if off and (name not in known or (known[name] == LOSSES and off != -LOSS_BYTES)):
                wrong.append(
                    f"{case.kind} {case.layout}, stage {case.stage}: {name} {real[name]:,}, predicted {said[name]:,}"
                )
        rows.append((case.kind, str(case.layout), str(case.stage), *cells))
    return rows, wrong

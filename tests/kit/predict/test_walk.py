"""The walk against real steps on a CPU: parameters, kept bytes, FLOPs, borders and peak, each equal."""

import contextlib
import dataclasses
import itertools
import random

import pytest
import torch
import torch.nn.functional as F
from few import one_in

from cs336kit import lm, measure, predict
from cs336kit.predict import TransformerConfig
from cs336kit.predict.engine.walk import Walk

pytestmark = pytest.mark.torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PRECISIONS = ("fp32", "bf16", "autocast")
POLICIES = list(itertools.product(PRECISIONS, ("eager", "sdpa"), (False, True)))
#: component → the modules of `lm.DecoderOnly` that hold it
MODULES = {
    "token embedding": ("embedding",), "position embedding": ("positions",), "query": ("attention.query",),
    "key": ("attention.key",), "value": ("attention.value",), "attention output": ("attention.output",),
    "router": ("mlp.router",), "mlp gate": (".gate",), "mlp up": (".up",), "mlp down": (".down",),
    "norms": ("norm1", "norm2"), "final norm": ("final_norm",), "head": ("head",),
}  # fmt: skip


class Adapted(torch.nn.Module):
    """y = base(x) + B(A(x))."""

    def __init__(self, base, rank):
        super().__init__()
        self.base = base
        self.A = torch.nn.Linear(base.weight.shape[1], rank, bias=False)
        self.B = torch.nn.Linear(rank, base.weight.shape[0], bias=False)

    def forward(self, x):
        return self.base(x) + self.B(self.A(x))


class Real:
    """A model of the configuration after its first step, its gradients freed; or before it, where no step is looked at."""

    def __init__(
        self, config, batch, sequence, *, precision="fp32", attention="eager", checkpointing=False, foreach=False,
        frozen=(), lora_rank=None, lora_targets=(), stepped=True,
    ):  # fmt: skip
        torch.manual_seed(0)
        self.config = config
        self.model = lm.DecoderOnly(config, attention=attention, checkpointing=checkpointing)
        self.freeze(frozen, lora_rank, lora_targets)
        kind = predict.POLICIES[precision]
        self.model.to(DTYPES[kind.weights])
        self.tokens = torch.randint(config.vocab, (batch, sequence))
        self.autocast = DTYPES[kind.products] if kind.casts else None
        if stepped:
            trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
            self.optimizer = torch.optim.AdamW(trained, foreach=foreach)
            self.loss().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.random_numbers = torch.get_rng_state()

    def freeze(self, frozen, rank, targets):
        self.model.requires_grad_(rank is None)
        for component in frozen:
            for name, module in self.model.named_modules():
                if name.endswith(MODULES[component]):
                    module.requires_grad_(False)
        for component in targets:
            for module in list(self.model.modules()):
                for name, layer in list(module.named_children()):
                    if f".{name}" in (MODULES[component][0], f".{MODULES[component][0].split('.')[-1]}"):
                        setattr(module, name, Adapted(layer, rank))

    def context(self):
        return torch.autocast("cpu", self.autocast) if self.autocast else contextlib.nullcontext()

    def loss(self):
        with self.context():
            return F.cross_entropy(self.model(self.tokens).flatten(0, 1).float(), self.tokens.flatten())

    def again(self):
        """The same random numbers, and so the same routing, as in every other measurement."""
        torch.set_rng_state(self.random_numbers)

    def expert_tokens(self, run=None):
        """How many tokens each expert of each layer gets in the step that is measured, or in `run`."""
        counts = []

        def count(mixture, inputs, output):
            scores = mixture.router(inputs[0].flatten(0, -2))
            chosen = scores.topk(mixture.experts_per_token).indices
            counts.append([int((chosen == expert).sum()) for expert in range(len(mixture.experts))])

        mixtures = [module for module in self.model.modules() if isinstance(module, lm.MixtureOfExperts)]
        hooks = [mixture.register_forward_hook(count) for mixture in mixtures]
        self.again()
        with torch.no_grad():
            (run or self.loss)()
        for hook in hooks:
            hook.remove()
        return counts

    def kept(self):
        self.again()
        return measure.saved_activation_bytes(self.loss).total

    def flops(self):
        self.again()
        counted = measure.flops(lambda: self.loss().backward()).total
        self.optimizer.zero_grad()
        return counted

    def step(self):
        self.again()
        return measure.step_memory(self.model, self.loss, self.optimizer)


def check(config, batch, sequence, **policy):
    """Everything that can be measured of a step, against what is predicted of it."""
    real = Real(config, batch, sequence, **policy)
    named = {"batch": batch, "sequence": sequence, **policy}
    if config.experts:
        named["expert_tokens"] = real.expert_tokens()
    foreach = {"foreach": named.pop("foreach")} if "foreach" in named else {}
    said = (config, named)
    if "lora_rank" not in policy:
        assert predict.parameters(config).total == sum(p.numel() for p in real.model.parameters()), said
    assert predict.saved_activation_bytes(config, **named).total == real.kept(), said
    without_types = {name: value for name, value in named.items() if name != "precision"}
    assert predict.training_flops(config, **without_types).total == real.flops(), said
    step = real.step()
    stages = [(stage, live) for stage, live, _ in step.stages]
    # A border that no gradient crosses is not noticed.
    noticed = [moment for moment in predict.step_timeline(config, **named) if moment.stage in dict(stages)]
    assert stages == noticed, said
    assert len(stages) == 2 * config.layers + 5 or "frozen" in policy or "lora_rank" in policy
    moments = predict.peak_moments(config, **foreach, **named)
    assert max(moments.values()) == step.peak_bytes, (step.peak_operator, said)
    # Each part of the step for itself: one that never holds the peak is predicted, too.
    at = {stage: index + 1 for stage, _, index in step.stages}
    live = [point.live_bytes for point in step.points]
    first, last = moments.pop("forward"), moments.pop("optimizer step")
    assert first == max(live[: at["loss"]]), said
    assert last == max(live[at["backward"] :]), said
    assert max(moments.values()) == max(live[at["loss"] : at["backward"]]), said


def any_config(r, **fixed):
    """A small decoder, drawn over every choice of the configuration."""
    heads, head_dim = r.choice([1, 2, 4]), r.choice([3, 4, 8])
    positions = r.choice(["learned", "rope", "none"])
    head_dim += positions == "rope" and head_dim % 2
    d_model = heads * head_dim if r.random() < 0.6 else r.choice([8, 24])
    norm = r.choice(["layernorm", "rmsnorm"])
    values = {
        "layers": r.choice([1, 2, 3]),
        "d_model": d_model,
        "heads": heads,
        "kv_heads": r.choice([count for count in (1, 2, 4) if heads % count == 0]),
        "head_dim": head_dim,
        "vocab": r.choice([7, 50, 300]),
        "context": r.choice([16, 33]),
        "mlp": r.choice(["gelu", "swiglu"]),
        "norm": norm,
        "norm_bias": norm == "layernorm" and r.random() < 0.5,
        "positions": positions,
        "bias": r.choice(["all", "none", "qkv"]),
        "tied_head": r.random() < 0.5,
        "d_ff": r.choice([4, d_model, 3 * d_model + 1, 8 * d_model]),
        "dropout": r.choice([0.0, 0.0, 0.1]),
        "window": r.choice([None, None, 5]),
        "norms_per_block": r.choice([2, 2, 1]),
    }
    if r.random() < 0.3:
        values |= {"experts": r.choice([2, 3, 4]), "experts_per_token": r.choice([1, 2])}
    return TransformerConfig(**{**values, **fixed})


@pytest.mark.parametrize("seed", one_in(3, range(12)))
def test_a_step_in_fp16(seed):
    r = random.Random(1000 + seed)
    options = {"precision": ("fp16", "autocast-fp16")[seed % 2], "attention": r.choice(["eager", "sdpa"])}
    check(any_config(r), r.choice([1, 2, 3]), r.choice([1, 2, 7]), checkpointing=r.random() < 0.3, **options)


@pytest.mark.parametrize("seed", one_in(5, range(60)))
def test_everything_about_a_step_of_any_decoder(seed):
    r = random.Random(seed)
    config, batch, sequence = any_config(r), r.choice([1, 2, 3]), r.choice([1, 2, 7, 16])
    precision, attention, checkpointing = POLICIES[seed % len(POLICIES)]
    check(config, batch, sequence, precision=precision, attention=attention, checkpointing=checkpointing)


@pytest.mark.parametrize("seed", one_in(3, range(100, 112)))
def test_a_step_whose_optimizer_works_on_all_tensors_at_once(seed):
    r = random.Random(seed)
    config = any_config(r, vocab=7)
    precision, attention, checkpointing = r.choice(POLICIES)
    check(config, 1, 2, precision=precision, attention=attention, checkpointing=checkpointing, foreach=True)


FROZEN = [
    ("token embedding",), ("token embedding", "position embedding"), ("norms",), ("query", "key"), ("value",),
    ("attention output", "mlp down"), ("mlp up", "mlp gate"), ("head",), ("final norm", "head"),
    ("token embedding", "position embedding", "norms", "query", "key", "value"),
]  # fmt: skip


def present(components, config):
    return tuple(name for name in components if predict.parameters(config).get(name))


@pytest.mark.parametrize("frozen", one_in(3, FROZEN), ids=lambda names: ", ".join(names))
def test_steps_with_frozen_components(frozen):
    r = random.Random(str(frozen))
    for precision, attention, checkpointing in r.sample(POLICIES, 4):
        config = any_config(r, experts=0, experts_per_token=None)
        check(
            config, 2, 7, precision=precision, attention=attention, checkpointing=checkpointing,
            frozen=present(frozen, config),
        )  # fmt: skip


@pytest.mark.parametrize(
    "targets",
    one_in(
        3, [("query", "value"), ("attention output",), ("mlp up", "mlp down"), ("query", "key", "value", "mlp gate")]
    ),
    ids=lambda names: ", ".join(names),
)
def test_steps_with_low_rank_adapters(targets):
    r = random.Random(str(targets))
    for precision, attention, checkpointing in r.sample(POLICIES, 4):
        config = any_config(r, experts=0, experts_per_token=None)
        check(
            config, 2, 7, precision=precision, attention=attention, checkpointing=checkpointing,
            lora_rank=2, lora_targets=present(targets, config),
        )  # fmt: skip


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_forward_pass_can_hold_the_peak_of_a_checkpointed_step(attention):
    # The real step of 96 layers stands in tests/kit/predict/test_deep_step.py.
    options = {"precision": "autocast", "attention": attention, "checkpointing": True}
    config = TransformerConfig(layers=16, d_model=16, heads=1, vocab=50, context=16)
    moments = predict.peak_moments(config, batch=12, sequence=16, **options)
    assert max(moments, key=moments.get) == "forward"
    assert Real(config, 12, 16, **options).step().peak_bytes == moments["forward"]


def test_a_checkpointed_block_in_which_nothing_needs_a_gradient_keeps_nothing():
    config = TransformerConfig(layers=3, d_model=32, heads=4, vocab=64, context=16, tied_head=False)
    everything = dict.fromkeys(MODULES, True) | {"head": False, "final norm": False}
    frozen = [name for name, wanted in everything.items() if wanted and predict.parameters(config).get(name)]
    check(config, 2, 16, checkpointing=True, frozen=tuple(frozen))


def test_the_gradient_of_a_part_of_a_table_is_none_of_a_parameter():
    config, size = TransformerConfig(layers=2, d_model=32, heads=4, vocab=64, context=64), {"batch": 1, "sequence": 32}
    real = Real(config, **size)
    real.loss().backward()
    held = sum(parameter.grad.nbytes for parameter in real.model.parameters())
    assert predict.step_peak(config, foreach=True, **size)["gradients"] == held
    # Where gradients are divided, an optimizer without state and temporaries has its share of them beside the loss.
    for layout in ("zero2=8", "fsdp=8"):
        step = predict.peak_moments(config, layout=layout, optimizer="sgd", **size)["optimizer step"]
        assert step == predict.training_memory(config, layout=layout, **size)["gradients"] + 4


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("blocks", [1, 2, 3, 4])
def test_who_calls_backward_on_a_stage_holds_the_gradient_of_its_output(blocks, checkpointing):
    """The first of two stages, run by hand: half of the blocks of a model, and none of its end."""
    torch.manual_seed(0)
    config = TransformerConfig(layers=2 * blocks, d_model=24, heads=4, vocab=50, context=16, positions="rope")
    model = lm.DecoderOnly(dataclasses.replace(config, layers=blocks), checkpointing=checkpointing, attention="eager")
    model.final_norm = model.head = torch.nn.Identity()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    tokens = torch.randint(config.vocab, (1, 16))

    def step():
        output = model(tokens)
        output.backward(torch.ones(1, 16, config.d_model))
        del output  # as torch's schedules do
        optimizer.step()
        optimizer.zero_grad()

    step()
    counted = max(point.live_bytes for point in measure.memory_timeline(step))
    moments = predict.peak_moments(
        config, batch=1, sequence=16, layout="pp=2,microbatches=1", stage=0, checkpointing=checkpointing
    )
    assert max(moments.values()) == counted


def test_the_input_of_a_checkpointed_block_outlives_the_sum_of_the_first_bias():
    """A block without a norm in front keeps its input for the queries, whose bias gets its gradient behind the products."""
    config = TransformerConfig(
        layers=2, d_model=24, heads=4, kv_heads=1, head_dim=8, d_ff=40, vocab=7, context=16, norm="rmsnorm", norm_bias=False,
        mlp="swiglu", positions="rope", bias="all", norm_placement="post",
    )  # fmt: skip
    check(config, 1, 7, precision="fp32", attention="eager", checkpointing=True)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_large_vocabularies_peak_at_the_loss(precision):
    config = TransformerConfig(layers=3, d_model=16, heads=2, vocab=1000, context=24)
    for attention, checkpointing in itertools.product(("eager", "sdpa"), (False, True)):
        options = {"precision": precision, "attention": attention, "checkpointing": checkpointing}
        moments = predict.peak_moments(config, batch=2, sequence=24, **options)
        assert max(moments, key=moments.get) == "loss"
        assert Real(config, 2, 24, **options).step().peak_bytes == moments["loss"]


@pytest.mark.parametrize("seed", one_in(5, range(300, 330)))
def test_a_forward_pass_without_autograd(seed):
    r = random.Random(seed)
    config, batch, sequence = any_config(r), r.choice([1, 2, 3]), r.choice([1, 2, 7, 16])
    precision, attention, _ = r.choice(POLICIES)
    real = Real(config, batch, sequence, precision=precision, attention=attention, stepped=False)
    real.model.eval()
    named = {"expert_tokens": real.expert_tokens()} if config.experts else {}

    def forward():
        with torch.no_grad(), real.context():
            real.model(real.tokens)

    written = predict.program(
        config, batch=batch, sequence=sequence, precision=precision, attention=attention, phase="forward", **named
    )
    walk = Walk(written)
    walk.forward(written.items)
    assert walk.ledger.peaks["forward"].bytes == measure.peak_bytes(forward, device="cpu"), (config, batch, sequence)
    assert all(not op.saves and not op.gradients for op, _ in written.operations())


@pytest.mark.parametrize("seed", one_in(5, range(400, 430)))
def test_products_and_cache_of_one_new_token(seed):
    r = random.Random(seed)
    config, batch, sequence = any_config(r), r.choice([1, 3]), r.choice([2, 7, 16])
    attention = r.choice(["eager", "sdpa"])
    real = Real(config, batch, sequence, attention=attention, stepped=False)
    real.model.eval()
    cache = lm.KVCache(config)
    with torch.no_grad():
        real.model(real.tokens[:, :-1], cache=cache)
        counted = measure.flops(lambda: real.model(real.tokens[:, -1:], cache=cache)).total
    sizes = {"batch": batch, "sequence": sequence}
    written = predict.program(config, attention=attention, phase="decode", **sizes)
    assert sum(count * op.forward_flops for op, count in written.operations()) == counted, (config, sizes)
    held = sum(tensor.nbytes for tensor in cache.tensors())
    assert predict.kv_cache_bytes(config, precision="fp32", **sizes) == held


def check_the_peak_beside_a_cache(seed, phase, experts):
    """One pass that reads or fills the cache of a model of any configuration; with `experts` routed as the real one."""
    r = random.Random(seed)
    config = any_config(r)
    chosen = {"experts": r.choice([2, 3, 6]), "experts_per_token": r.choice([1, 2])} if experts else {"experts": 0}
    config = dataclasses.replace(config, **({"experts_per_token": None} | chosen))
    batch, sequence = r.choice([1, 2, 3]), r.choice([2, 5, 9, 16])
    precision, attention = r.choice(PRECISIONS), r.choice(["eager", "sdpa"])
    real = Real(config, batch, sequence, precision=precision, attention=attention, stepped=False)
    real.model.eval()
    seen = sequence - 1 if phase == "decode" else 0

    def cached():
        cache = lm.KVCache(config)
        if seen:
            run(cache, real.tokens[:, :seen])
        return cache

    def run(cache, tokens):
        with torch.no_grad(), real.context():
            real.model(tokens, cache=cache)

    named, cache = {}, cached()
    if experts:
        other = cached()
        named["expert_tokens"] = real.expert_tokens(lambda: run(other, real.tokens[:, seen:]))
    written = predict.program(
        config, batch=batch, sequence=sequence, precision=precision, attention=attention, phase=phase, **named
    )
    walk = Walk(written)
    walk.forward(written.items)
    said = config, batch, sequence, precision, attention
    assert walk.ledger.peaks["forward"].bytes == measure.peak_bytes(
        lambda: run(cache, real.tokens[:, seen:]), device="cpu"
    ), said
    # What stays when the pass is over: the cache, no longer than it has to be, and the logits, which nobody holds here.
    held = sum(tensor.untyped_storage().nbytes() for tensor in cache.tensors())
    assert walk.ledger.live == held + written.output.bytes, said
    assert held == sum(tensor.nbytes for tensor in cache.tensors()), said


@pytest.mark.parametrize("seed", one_in(5, range(500, 530)))
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_the_peak_of_a_pass_beside_a_cache(phase, seed):
    check_the_peak_beside_a_cache(seed, phase, experts=False)


@pytest.mark.parametrize("seed", one_in(5, range(600, 620)))
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_the_peak_of_a_pass_beside_a_cache_with_experts(phase, seed):
    check_the_peak_beside_a_cache(seed, phase, experts=True)

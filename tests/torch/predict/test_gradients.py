"""Predicted gradient FLOPs against torch's counter, on nets whose every product torch runs."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from cs336kit import lm, measure, predict


def count(run):
    """FLOPs of a function of no arguments, and what it returns."""
    results = []
    return measure.flops(lambda: results.append(run())).total, results[0]


def train(sizes, *, batch, frozen=(), activation=False, rank=None, segments=None, early_stop=True):
    """Forward and backward FLOPs of the real net; `segments` are lists of layer numbers under one checkpoint each."""
    last = len(sizes) - 1

    def leaf(name, *shape):
        return torch.ones(*shape, requires_grad=name not in frozen, device="meta")

    x = leaf("x", batch, sizes[0])
    w = {i: leaf(f"w{i}", sizes[i - 1], sizes[i]) for i in range(1, last + 1)}
    lora = {}
    if rank:
        lora = {i: (leaf("", sizes[i - 1], rank), leaf("", rank, sizes[i])) for i in w}

    def layer(i, h):
        y = h @ w[i]
        if lora:
            y = y + (h @ lora[i][0]) @ lora[i][1]
        return torch.relu(y) if activation and i < last else y

    def segment(numbers):
        def run(h):
            for i in numbers:
                h = layer(i, h)
            return h

        return run

    def forward():
        h = x
        for numbers in segments or [list(w)]:
            h = checkpoint(segment(numbers), h, use_reentrant=False) if segments else segment(numbers)(h)
        return h

    with set_checkpoint_early_stop(early_stop):
        forward_flops, y = count(forward)
        backward_flops, _ = count(lambda: y.sum().backward())
    return forward_flops, backward_flops


def slices(net, segments):
    """The operations of the layers in each segment (a layer's operations have its number in their output)."""
    digits = [int("".join(filter(str.isdigit, output(op).split(".")[0]))) for op in net]
    return [tuple(op for op, d in zip(net, digits, strict=True) if d in numbers) for numbers in segments]


def output(op):
    return op.outputs[0].storage.name


def test_the_first_layers_exception_with_the_lectures_shapes():
    net = predict.linear_net((256, 256, 64), batch=1024)
    cost = predict.gradient_flops(net, frozen={"x"})
    assert (cost.forward, cost.backward) == (167_772_160, 201_326_592)
    assert train((256, 256, 64), batch=1024, frozen={"x"}) == (cost.forward, cost.backward)
    full = predict.gradient_flops(net)
    assert full.backward == 2 * full.forward == 335_544_320
    assert train((256, 256, 64), batch=1024) == (full.forward, full.backward)


SIZES = st.lists(st.integers(1, 40), min_size=2, max_size=7)


@settings(max_examples=120, deadline=None)
@given(SIZES, st.integers(1, 50), st.data())
def test_linear_nets_with_any_frozen_leaves(sizes, batch, data):
    names = ["x", *(f"w{i}" for i in range(1, len(sizes)))]
    frozen = set(data.draw(st.lists(st.sampled_from(names), unique=True)))
    assume(len(frozen) < len(names))
    activation, rank = data.draw(st.booleans()), data.draw(st.none() | st.integers(1, 5))
    net = predict.linear_net(sizes, batch=batch, activation=activation)
    net = predict.with_lora(net, rank=rank) if rank else net
    cost = predict.gradient_flops(net, frozen=frozen)
    counted = train(sizes, batch=batch, frozen=frozen, activation=activation, rank=rank)
    assert (cost.forward, cost.backward) == counted
    assert cost.by_tensor.total == cost.backward
    assert set(cost.by_tensor) & frozen == set()


@settings(max_examples=120, deadline=None)
@given(SIZES, st.integers(1, 50), st.data())
def test_checkpointed_linear_nets(sizes, batch, data):
    layers = list(range(1, len(sizes)))
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(layers) - 1)))))
    segments = [s for s in (layers[a:b] for a, b in zip([0, *cuts], [*cuts, len(layers)], strict=True)) if s]
    names = ["x", *(f"w{i}" for i in layers)]
    frozen = set(data.draw(st.lists(st.sampled_from(names), unique=True)))
    assume(len(frozen) < len(names))
    activation, early_stop = data.draw(st.booleans()), data.draw(st.booleans())
    rank = data.draw(st.none() | st.integers(1, 5))
    net = predict.linear_net(sizes, batch=batch, activation=activation)
    net = predict.with_lora(net, rank=rank) if rank else net
    cost = predict.gradient_flops(net, frozen=frozen, checkpoint=slices(net, segments), early_stop=early_stop)
    options = {"activation": activation, "segments": segments, "early_stop": early_stop, "rank": rank}
    assert (cost.forward, cost.backward) == train(sizes, batch=batch, frozen=frozen, **options)


def test_checkpointing_does_not_repeat_a_last_product():
    net = predict.linear_net((8, 16, 4), batch=32)
    cost = predict.gradient_flops(net, checkpoint=[net])
    assert cost.recomputed == net[0].forward_flops
    assert predict.gradient_flops(net, checkpoint=[net], early_stop=False).recomputed == cost.forward
    assert cost.model_flops == 3 * cost.forward and cost.total == cost.model_flops + cost.recomputed


def test_what_a_function_keeps_is_computed_again():
    net = predict.linear_net((4, 5, 6), batch=2, activation=True)
    assert [output(op) for op in net] == ["h1", "a1", "h2"]
    cost = predict.gradient_flops(net, checkpoint=[net[:2]])
    assert cost.recomputed == 2 * 2 * 4 * 5
    _, (first, *_) = cost.table()
    assert first == ("h1 = x @ w1", "80", "80", "80", "80", "320")
    assert cost._repr_html_().count("font-weight:bold") == 6


def test_nothing_is_repeated_where_nothing_is_kept():
    net = predict.linear_net((8, 8, 8), batch=4)
    cost = predict.gradient_flops(net, frozen=("x", "w1"), checkpoint=[net[:1], net[1:]], early_stop=False)
    assert cost.recomputed == net[1].forward_flops


def test_lora_trains_without_the_weight_gradients():
    net = predict.with_lora(predict.linear_net((64, 64), batch=10), rank=2)
    cost = predict.gradient_flops(net, frozen={"w1"})
    assert cost.by_tensor["w1.A"] == cost.by_tensor["w1.B"] == 2 * 10 * 64 * 2
    assert "w1" not in cost.by_tensor
    assert cost.by_tensor["x"] == 2 * 10 * 64 * 64 + 2 * 10 * 64 * 2


def test_one_name_may_stand_without_a_list():
    net = predict.linear_net((4, 4, 4), batch=2)
    assert predict.gradient_flops(net, frozen="w1") == predict.gradient_flops(net, frozen=["w1"])
    one, listed = (predict.with_lora(net, rank=1, targets=targets) for targets in ("w2", ["w2"]))
    assert predict.gradient_flops(one) == predict.gradient_flops(listed)
    assert "w2.A" in predict.leaves(one) and "w1.A" not in predict.leaves(one)


def test_utilization_counts_the_model_or_the_hardware():
    net = predict.linear_net((8, 8, 8), batch=8, activation=True)
    cost = predict.gradient_flops(net, checkpoint=[net])
    assert cost.mfu(seconds=1, peak_flops_per_second=cost.total) == cost.model_flops / cost.total
    assert cost.hfu(seconds=2, peak_flops_per_second=cost.total) == 0.5
    with pytest.raises(ValueError, match="seconds must be"):
        cost.hfu(seconds=0, peak_flops_per_second=1e12)
    with pytest.raises(ValueError, match="peak_flops_per_second must be"):
        cost.mfu(seconds=1, peak_flops_per_second=float("nan"))


def test_the_table_names_every_product():
    cost = predict.gradient_flops(predict.linear_net((2, 3), batch=4), frozen="x")
    assert repr(cost).splitlines() == [
        "product       forward   gradient of left   gradient of right   again   FLOPs",
        "h1 = x @ w1        48                  –                  48       –      96",
        "total              48                  –                  48       –      96",
    ]
    assert "<th" in cost._repr_html_() and "h1 = x @ w1" in cost._repr_html_()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda net: predict.gradient_flops(net, frozen={"w9"}), r"unknown leaf in frozen 'w9'.*Known: x, w1, w2"),
        (lambda net: predict.gradient_flops(net, frozen={"h1"}), r"unknown leaf in frozen 'h1'"),
        (lambda net: predict.gradient_flops(net[::-1]), r"uses h1, which is computed later"),
        (lambda net: predict.gradient_flops([*net, net[0]]), r"h1 is computed twice"),
        (lambda net: predict.gradient_flops(net, checkpoint=[net, net[:1]]), r"h1 lies in two checkpointed segments"),
        (lambda net: predict.gradient_flops(net[:1], checkpoint=[net]), r"h2 is not one of the operations"),
        (lambda net: predict.gradient_flops(net, checkpoint=net), r"each a slice of the operations"),
        (lambda net: predict.linear_net((4,), batch=2), r"at least two widths"),
        (lambda net: predict.linear_net((4, 0), batch=2), r"a width in sizes must be a positive whole"),
        (lambda net: predict.linear_net((4, 4), batch=2.0), r"batch must be a positive whole"),
        (lambda net: predict.with_lora(net, rank=0), r"rank must be a positive"),
        (lambda net: predict.with_lora(net, rank=1, targets=["w3"]), r"unknown weight in targets 'w3'"),
    ],
)
def test_impossible_requests_are_refused_in_a_sentence(change, message):
    with pytest.raises(ValueError, match=message):
        change(predict.linear_net((4, 4, 4), batch=2))


# -- blocks and whole decoders: a GPT-2 block and a Llama block in plain torch

GPT2 = predict.TransformerConfig(layers=2, d_model=24, heads=4, vocab=50, context=16)
LLAMA = predict.TransformerConfig(
    layers=2, d_model=32, heads=4, kv_heads=2, d_ff=40, vocab=70, context=16, mlp="swiglu", norm="rmsnorm",
    positions="rope", bias="none", tied_head=False,
)  # fmt: skip
DROPOUT = predict.TransformerConfig(layers=2, d_model=24, heads=4, vocab=50, context=16, dropout=0.1)
B, S = 3, 10


def weights(config, *, frozen=(), prefix="", rank=None, targets=()):
    """Leaf tensors under the names that predict.decoder_block uses."""
    D, Q, K, width = config.d_model, config.query_width, config.kv_width, config.d_ff
    shapes = {"norm1": (D,), "w_q": (D, Q), "w_k": (D, K), "w_v": (D, K), "w_o": (Q, D), "norm2": (D,)}
    shapes |= {"w_up": (D, width), "w_down": (width, D)}
    if config.mlp == "swiglu":
        shapes["w_gate"] = (D, width)
    for name in targets:
        shapes[f"{name}.A"], shapes[f"{name}.B"] = (shapes[name][0], rank), (rank, shapes[name][1])
    return {
        prefix + name: torch.randn(shape).mul(0.1).requires_grad_(prefix + name not in frozen)
        for name, shape in shapes.items()
    }


def run_block(config, w, x, *, attention="sdpa", prefix=""):
    def linear(name, y):
        base = y @ w[f"{prefix}w_{name}"]
        if f"{prefix}w_{name}.A" in w:
            base = base + (y @ w[f"{prefix}w_{name}.A"]) @ w[f"{prefix}w_{name}.B"]
        return base

    def norm(name, y):
        function = F.layer_norm if config.norm == "layernorm" else F.rms_norm
        return function(y, (config.d_model,), w[prefix + name])

    def heads(y):
        return y.view(B, S, -1, config.head_dim).transpose(1, 2)

    n = norm("norm1", x)
    q, k, v = heads(linear("q", n)), heads(linear("k", n)), heads(linear("v", n))
    k, v = (t.repeat_interleave(config.heads // config.kv_heads, dim=1) for t in (k, v))
    if attention == "sdpa":
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=config.dropout)
    else:
        mixed = F.dropout((q @ k.transpose(-1, -2)).softmax(-1), config.dropout) @ v
    x = x + F.dropout(linear("o", mixed.transpose(1, 2).reshape(B, S, -1)), config.dropout)
    n = norm("norm2", x)
    act = F.silu(linear("gate", n)) * linear("up", n) if config.mlp == "swiglu" else F.gelu(linear("up", n))
    return x + F.dropout(linear("down", act), config.dropout)


def counted(config, w, *, input_gradient, attention, checkpointed):
    x = torch.randn(B, S, config.d_model, requires_grad=input_gradient)

    def forward():
        if checkpointed:
            return checkpoint(lambda y: run_block(config, w, y, attention=attention), x, use_reentrant=False)
        return run_block(config, w, x, attention=attention)

    forward_flops, y = count(forward)
    backward_flops, _ = count(lambda: y.sum().backward())
    return forward_flops, backward_flops


def test_products_of_a_decoder_are_named_after_what_they_are():
    operations, _ = predict.decoder(GPT2, batch=1, sequence=4)
    block = [
        "q=n1·w_q",
        "k=n1·w_k",
        "v=n1·w_v",
        "scores=q·k",
        "mix=weights·v",
        "o=mix·w_o",
        "up=n2·w_up",
        "down=act·w_down",
    ]
    named = [f"{i}.{name}".replace("=", f"={i}.").replace("·", f"·{i}.") for i in range(GPT2.layers) for name in block]
    rows = predict.gradient_flops(operations).rows
    assert [f"{row.output}={row.left}·{row.right}" for row in rows] == [*named, "logits=n·embedding"]


ALL = {"norm1", "norm2", "w_q", "w_k", "w_v", "w_o", "w_up", "w_down"}
FROZEN = {
    "nothing": set(),
    "data": {"x"},
    "all but value": {"x", "w_q", "w_k", "norm1"},
    "all but output": {"x", *ALL} - {"w_o"},
    "attention": {"x", "norm1", "w_q", "w_k", "w_v", "w_o"},
    "weights": ALL,
}


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("frozen", FROZEN)
@pytest.mark.parametrize("config", [GPT2, LLAMA, DROPOUT], ids=["gpt2", "llama", "dropout"])
def test_blocks(config, frozen, attention, checkpointed):
    block = predict.decoder_block(config, batch=B, sequence=S, attention=attention)
    cost = predict.gradient_flops(block, frozen=FROZEN[frozen], checkpoint=[block] if checkpointed else [])
    w = weights(config, frozen=FROZEN[frozen])
    options = {"input_gradient": "x" not in FROZEN[frozen], "attention": attention, "checkpointed": checkpointed}
    assert (cost.forward, cost.backward) == counted(config, w, **options)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("targets", [("w_q", "w_v"), ("w_o",), ("w_down",), tuple(sorted(ALL - {"norm1", "norm2"}))])
@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_lora_in_a_block(config, targets, attention):
    base = predict.decoder_block(config, batch=B, sequence=S, attention=attention)
    block = predict.with_lora(base, rank=2, targets=targets)
    frozen = predict.leaves(base)
    for checkpointed in (False, True):
        cost = predict.gradient_flops(block, frozen=frozen, checkpoint=[block] if checkpointed else [])
        w = weights(config, frozen=frozen, rank=2, targets=targets)
        options = {"input_gradient": False, "attention": attention, "checkpointed": checkpointed}
        assert (cost.forward, cost.backward) == counted(config, w, **options)


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_a_whole_decoder(config, checkpointed):
    steps, blocks = predict.decoder(config, batch=B, sequence=S)
    cost = predict.gradient_flops(steps, checkpoint=blocks if checkpointed else ())
    embedding = torch.randn(config.vocab, config.d_model, requires_grad=True)
    head = embedding if config.tied_head else torch.randn(config.vocab, config.d_model, requires_grad=True)
    w = {}
    for i in range(config.layers):
        w |= weights(config, prefix=f"{i}.")

    def forward():
        x = F.embedding(torch.zeros(B, S, dtype=torch.int64), embedding)
        for i in range(config.layers):
            if checkpointed:
                x = checkpoint(lambda y, i=i: run_block(config, w, y, prefix=f"{i}."), x, use_reentrant=False)
            else:
                x = run_block(config, w, x, prefix=f"{i}.")
        return x @ head.T

    forward_flops, y = count(forward)
    assert (cost.forward, cost.backward) == (forward_flops, count(lambda: y.sum().backward())[0])
    assert cost.forward == predict.forward_flops(config, batch=B, sequence=S, causal=False).total
    assert cost.by_tensor["embedding" if config.tied_head else "head"] == steps[-1].forward_flops


def test_the_names_of_a_block():
    weights = ("norm1", "w_q", "w_k", "w_v", "w_o", "norm2", "w_gate", "w_up", "w_down")
    block = predict.decoder_block(LLAMA, batch=1, sequence=4)
    # What is kept beside a result is not called like it.
    fused = predict.decoder_block(GPT2, batch=1, sequence=4)
    beside = {storage.name for op in fused for storage in op.allocates[1:]}
    assert beside == {"attention norm", "logsumexp", "mlp norm"}
    assert predict.leaves(block) == ("x", *weights)
    assert output(block[-1]) == "out"
    _, (_, second) = predict.decoder(LLAMA, batch=1, sequence=4)
    assert predict.leaves(second) == ("0.out", *(f"1.{name}" for name in weights))


def test_the_names_do_not_reach_the_program_that_others_walk():
    predict.decoder(GPT2, batch=1, sequence=4)
    leaves = predict.program(GPT2, batch=1, sequence=4).leaves
    assert {leaf.tensor.storage.name for leaf in leaves} == {leaf.component for leaf in leaves}


def test_a_fused_kernel_that_ends_a_segment_runs_again():
    """What it keeps it makes itself, so that it cannot be left out as a last linear layer can."""
    block = predict.decoder_block(GPT2, batch=B, sequence=S)
    end = 1 + next(i for i, op in enumerate(block) if op.kind == "sdpa")
    D, segment = GPT2.d_model, block[:end]
    cost = predict.gradient_flops(segment, checkpoint=[segment])
    tensors = {name: torch.randn(D, D, requires_grad=True) for name in "qkv"}
    norm, x = torch.ones(D, requires_grad=True), torch.randn(B, S, D, requires_grad=True)

    def run(x):
        n = F.layer_norm(x, (D,), norm)
        heads = ((n @ w).view(B, S, -1, GPT2.head_dim).transpose(1, 2) for w in tensors.values())
        return F.scaled_dot_product_attention(*heads, is_causal=True)

    forward_flops, y = count(lambda: checkpoint(run, x, use_reentrant=False))
    assert (cost.forward, cost.backward) == (forward_flops, count(lambda: y.sum().backward())[0])
    assert cost.recomputed == cost.forward


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention": "flash"}, "unknown attention 'flash'"),
        ({"batch": 0}, "batch must be a positive"),
        ({"sequence": True}, "sequence must be a positive"),
    ],
)
def test_impossible_blocks_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        predict.decoder_block(GPT2, **({"batch": 1, "sequence": 2} | change))


def test_experts_are_refused():
    config = predict.TransformerConfig(layers=1, d_model=8, heads=2, vocab=9, context=4, experts=4, experts_per_token=2)
    with pytest.raises(ValueError, match="give a dense configuration"):
        predict.decoder_block(config, batch=1, sequence=2)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_parallel_block_has_one_norm(attention):
    config = predict.TransformerConfig(layers=1, d_model=8, heads=2, vocab=9, context=S, norms_per_block=1)
    steps, _ = predict.decoder(config, batch=B, sequence=S, attention=attention)
    assert "0.norm1" in predict.leaves(steps) and "0.norm2" not in predict.leaves(steps)
    cost = predict.gradient_flops(steps)
    assert cost.total == predict.training_flops(config, batch=B, sequence=S, attention=attention).total


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
def test_the_courses_own_models(name, attention, checkpointed):
    config, kind = (GPT2, lm.DecoderOnly) if name == "GPT-2" else (LLAMA, lm.Llama)
    model = kind(config, attention=attention, checkpointing=checkpointed)
    tokens = torch.zeros(B, S, dtype=torch.int64)
    counted = measure.flops(lambda: model(tokens).sum().backward(), by="pass")
    steps, blocks = predict.decoder(config, batch=B, sequence=S, attention=attention)
    cost = predict.gradient_flops(steps, checkpoint=blocks if checkpointed else ())
    assert (cost.forward, cost.backward) == (counted["forward"], counted["backward"])
    options = {"batch": B, "sequence": S, "attention": attention, "checkpointing": checkpointed}
    assert cost.total == predict.training_flops(config, **options).total


@pytest.mark.parametrize("name", ["gpt2", "llama-2-7b", "llama-3-8b"])
def test_real_configurations_agree_with_the_count_by_component(name):
    config = predict.MODELS[name]
    steps, _ = predict.decoder(config, batch=2, sequence=512, attention="eager")
    assert predict.gradient_flops(steps).total == predict.training_flops(config, batch=2, sequence=512).total


@pytest.mark.parametrize("trained", ["attention.query", "mlp", "blocks.1", "norm1", "embedding"])
@pytest.mark.parametrize("kind", [lm.DecoderOnly, lm.Llama])
def test_the_courses_own_models_with_frozen_parameters(kind, trained):
    config = GPT2 if kind is lm.DecoderOnly else LLAMA
    model = kind(config, attention="eager")
    ours = {"query": "w_q", "key": "w_k", "value": "w_v", "output": "w_o", "gate": "w_gate", "up": "w_up"} | {
        "down": "w_down", "norm1": "norm1", "norm2": "norm2", "final_norm": "norm", "head": "head",
        "positions": "positions", "embedding": "embedding",
    }  # fmt: skip
    steps, _ = predict.decoder(config, batch=B, sequence=S, attention="eager")
    frozen = set(predict.leaves(steps))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trained in name)
        parts = name.split(".")
        if trained in name:
            frozen.discard((f"{parts[1]}." if parts[0] == "blocks" else "") + ours[parts[-2]])
    tokens = torch.zeros(B, S, dtype=torch.int64)
    counted = measure.flops(lambda: model(tokens).sum().backward(), by="pass")
    cost = predict.gradient_flops(steps, frozen=frozen)
    assert (cost.forward, cost.backward) == (counted["forward"], counted["backward"])

"""Programs and walks over them, in products of sizes: B sequences of S tokens, D width, A heads of h, F of an MLP, V words."""

import dataclasses
from math import prod

import pytest
import torch

from cs336kit import predict
from cs336kit.predict import TransformerConfig, forward_flops, peak_moments, program, saved_activation_bytes, step_peak
from cs336kit.predict.decoder.step import check_sizes
from cs336kit.predict.devices import Device, Kernel
from cs336kit.predict.engine.ledger import Ledger
from cs336kit.predict.engine.operations import (
    EndOfCache,
    Free,
    Gradient,
    Hold,
    Leaf,
    Mark,
    Op,
    Program,
    Repeat,
    Storage,
    Tensor,
    blocks,
)
from cs336kit.predict.engine.states import gradient_bytes
from cs336kit.predict.engine.walk import Walk
from cs336kit.predict.engine.writer import Writer
from cs336kit.predict.network import sent
from cs336kit.predict.precision import ELEMENT_BYTES
from cs336kit.predict.training import both_passes, largest
from tests.kit.predict.test_counted_steps import BASE, LIKE, WAYS

pytestmark = pytest.mark.torch

B, S, D, A, K, h, F, V = 2, 7, 24, 4, 2, 8, 40, 50
N, Q, KV = B * S, A * h, K * h
LLAMA = TransformerConfig(
    layers=4, d_model=D, heads=A, kv_heads=K, head_dim=h, d_ff=F, vocab=V, context=16, mlp="swiglu", norm="rmsnorm",
    positions="rope", bias="none", tied_head=False,
)  # fmt: skip
SIZE = {"batch": B, "sequence": S}
MOE = dataclasses.replace(LLAMA, experts=4, experts_per_token=2)
#: Parameters of a block, and of a block behind which the token embedding stands.
BLOCK = 2 * D * Q + 2 * D * KV + 3 * D * F + 2 * D


@pytest.mark.parametrize(
    "part", [Device, EndOfCache, Free, Gradient, Hold, Kernel, Leaf, Mark, Op, Program, Repeat, Storage, Tensor]
)
def test_two_parts_of_a_program_that_look_alike_are_two(part):
    # Walks have them as keys, and what is alike need not be the same: two queries of two blocks.
    assert part.__eq__ is object.__eq__ and part.__hash__ is object.__hash__


def test_powers_of_a_norm_have_two_more_tensors_for_a_moment_backward():
    # Each as large as the input of the power: all numbers for the square, one of each row for the root.
    operations = [op for op, _ in program(LLAMA, **SIZE, precision="bf16").operations()]
    for kind, elements in (("square", N * D), ("rsqrt", N)):
        assert {op.workspace for op in operations if op.kind == kind} == {(4 * elements, 4 * elements)}


# -- FLOPs ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "window", "pairs"),
    [
        # Twice the pairs that count: of every token with each before it and with half of itself.
        ("sliding", None, 7 * 7), ("sliding", 7, 7 * 7), ("sliding", 9, 7 * 7), ("sliding", 3, 2 * 7 * 3 - 3 * 3),
        ("sliding", 1, 2 * 7 - 1), ("chunked", 3, 2 * 3 * 3 + 1 * 1), ("chunked", 5, 5 * 5 + 2 * 2), ("chunked", 8, 7 * 7),
    ],
)  # fmt: skip
def test_pairs_that_causal_attention_counts(kind, window, pairs):
    config = dataclasses.replace(LLAMA, window=window, window_kind=kind)
    flops = forward_flops(config, **SIZE, causal=True)
    assert flops["attention scores"] == flops["attention values"] == 4 * B * A * h * pairs
    assert forward_flops(config, **SIZE)["attention scores"] == 4 * B * A * h * 2 * S * S


def test_a_new_token_works_on_the_latents_themselves():
    latent, rotary, value, T = 12, 4, 6, 7
    config = dataclasses.replace(LLAMA, layers=1, kv_heads=None, kv_latent=latent, rotary_dim=rotary, value_dim=value)
    flops = {}
    for op, _ in program(config, batch=3, sequence=T, phase="decode").operations():
        for component, count in op.flops:
            flops[component] = flops.get(component, 0) + count
    plain, pairs = h - rotary, 2 * 3 * A * T
    places = {op.place for op, _ in program(config, batch=3, sequence=T, phase="decode").operations()}
    alone = {op.place for op, _ in program(config, batch=1, sequence=T, phase="decode").operations()}
    # Products of heads have the batch behind them: several sequences are copied back.
    assert places - alone == {"block/attention/merge heads"}
    assert flops == {
        "query": 2 * 3 * D * Q, "latent": 2 * 3 * D * (latent + rotary),
        # The matrices that make keys and values are applied to the queries, and to what comes of the latents.
        "key and value": 2 * 3 * A * plain * latent + 2 * 3 * A * latent * value,
        "attention scores": pairs * (rotary + latent), "attention values": pairs * latent,
        "attention output": 2 * 3 * A * value * D, "head": 2 * 3 * D * V,
        "mlp gate": 2 * 3 * D * F, "mlp up": 2 * 3 * D * F, "mlp down": 2 * 3 * D * F,
    }  # fmt: skip


def test_adapters_stand_beside_the_matrices_that_are_named():
    rank = 3
    options = {"lora_rank": rank, "lora_targets": ("query", "mlp down")}
    written = program(LLAMA, **SIZE, **options)
    flops = sum(count * size for op, count in written.operations() for part, size in op.flops if part == "adapters")
    assert flops == 4 * 2 * N * rank * (D + Q + F + D)
    shapes = [leaf.tensor.shape for leaf in written.leaves if leaf.component == "adapters"]
    assert {*shapes} == {(rank, D), (Q, rank), (rank, F), (D, rank)}
    assert {leaf.component for leaf in written.leaves if leaf.tensor.needs_gradient} == {"adapters"}


def test_what_is_packed_are_the_frozen_matrices_of_blocks():
    for base in (None, "nf4"):
        for leaf in program(LLAMA, **SIZE, precision="bf16", lora_rank=3, base=base).leaves:
            tensor, matrix = leaf.tensor, leaf.place == "block" and len(leaf.tensor.shape) > 1
            packed = base is not None and matrix and leaf.component != "adapters"
            # Four bits and a part of a scale for each number, instead of two bytes.
            assert (tensor.storage.bytes < tensor.elements) is packed
            assert packed or tensor.storage.bytes == 2 * tensor.elements


# -- operations ----------------------------------------------------------------------------------------------------------


def test_what_an_operation_must_read_and_write():
    moved = {op.place: op.forward_bytes for op, _ in program(LLAMA, **SIZE).operations()}
    # As many rows of the table as there are tokens; a product reads both factors; a view moves nothing.
    assert moved["embedding"] == 2 * 4 * N * D
    assert moved["block/attention/query"] == 4 * (N * D + D * Q + N * Q)
    assert moved["block/attention/query rotary/halves"] == 0
    assert moved["block/attention/eager/scores"] == 4 * (N * Q + N * KV + B * A * S * S)
    once = program(LLAMA, batch=3, sequence=S, phase="decode", cache="contiguous", attention="sdpa").operations()
    (written,) = {op.forward_bytes for op, _ in once if op.kind == "write"}
    # One new position of each key/value head is read and written.
    assert written == 2 * 4 * 3 * KV


def test_repeated_blocks_inside_a_repeated_pattern_run_as_often_as_both_say():
    config = dataclasses.replace(MOE, layers=9, sparse_layers=(False, True, True))
    items = program(config, **SIZE).items
    assert [(block.count, count) for block, count in blocks(items)] == [(1, 3), (2, 6)]
    assert [(item.name, item.count) for item in items if isinstance(item, Repeat)] == [("blocks", 3)]
    assert sum(count for op, count in program(config, **SIZE).operations() if op.place.endswith("/query")) == 9
    text = repr(program(config, **SIZE))
    assert (
        text
        == f"Program({len(list(program(config, **SIZE).operations()))} operations, {text.split()[2]} when repeated)"
    )


def test_the_matrices_of_a_ranks_experts_stand_in_one_tensor():
    leaves = program(dataclasses.replace(MOE, layers=2, sparse_layers=(True, False)), **SIZE, layout="ep=2").leaves
    shapes = {leaf.component: leaf.tensor.shape for leaf in leaves}
    assert shapes["mlp gate"] == shapes["mlp up"] == (2, F, D) and shapes["mlp down"] == (2, D, F)
    # What comes behind them is as it was.
    assert shapes["dense up"] == (F, D) and shapes["query"] == (Q, D) and shapes["final norm"] == (D,)


#: Operations whose output has as many elements as their input.
ALIKE = (
    "neg", "cast", "copy", "tanh", "gelu", "silu", "relu", "xielu", "sigmoid", "softmax", "square", "pow", "rsqrt", "clamp",
    "log_softmax", "dropout", "layer_norm", "heads",
)  # fmt: skip


def sizes_agree(op):
    """Whether inputs, outputs and FLOPs of an operation are those of what it does."""
    given, made = [tensor.elements for tensor in op.inputs], [tensor.elements for tensor in op.outputs]
    if op.kind in ("linear", "matmul"):
        return op.forward_flops == 2 * made[0] * op.inputs[0].shape[-1]
    if op.kind in ("cat", "chunk", "split"):
        return sum(given) == sum(made)
    if op.kind in ("add", "mul", "div"):
        return made[0] == max(given)
    return op.kind not in ALIKE or not given or given[0] == made[0]


@pytest.mark.parametrize("number, name", enumerate(LIKE), ids=list(LIKE))
def test_sizes_of_operations_agree_and_nothing_but_gradients_is_left(number, name):
    config = dataclasses.replace(BASE, **LIKE[name])
    options = {n: value for n, value in WAYS[number % 6].items() if n in ("precision", "attention", "checkpointing")}
    for phase in ("train", "forward", "prefill", "decode"):
        for op, _ in program(config, **SIZE, **options, phase=phase).operations():
            # A window's cache keeps the last positions; latent keys have one turned part for all heads, and one new token
            # uses a part of each matrix.
            assert sizes_agree(op) or op.place.endswith(("/last", "key/together", "/absorbed", "scores/turned")), (
                phase,
                op,
            )
            assert phase == "train" or not (op.saves or op.gradients)
    element = ELEMENT_BYTES[predict.POLICIES[options["precision"]].gradients]
    # The caller holds the loss.
    left = predict.step_timeline(config, **SIZE, **options)[-2]
    assert left == ("backward", element * predict.parameters(config).total + 4)


def test_a_view_has_all_elements(monkeypatch):
    def view(self, tensor, *shape):
        assert prod(shape) == tensor.elements, (tensor, shape)
        return seen(self, tensor, *shape)

    seen = Writer.view
    monkeypatch.setattr(Writer, "view", view)
    for change in LIKE.values():
        for attention, phase in (("eager", "train"), ("sdpa", "train"), ("sdpa", "prefill"), ("eager", "decode")):
            for cache in ("growing", "contiguous"):
                config = dataclasses.replace(BASE, **change)
                program(config, batch=3, sequence=6, attention=attention, phase=phase, cache=cache, unrolled=True)


@pytest.mark.parametrize(("window", "room"), [(None, 7), (9, 7), (7, 7), (3, 3)])
def test_the_room_of_a_contiguous_cache_is_the_window_or_all_positions(window, room):
    config = dataclasses.replace(LLAMA, window=window)
    listed = program(config, batch=3, sequence=7, phase="decode", cache="contiguous").operations()
    assert {op.inputs[0].shape for op, _ in listed if op.kind == "write"} == {(3, K, room, h)}


def test_one_position_needs_no_causal_mask():
    # Dropout is what no fused kernel of a CPU has, so that torch writes attention out.
    for sequence in (1, 2):
        listed = program(dataclasses.replace(LLAMA, dropout=0.1), batch=2, sequence=sequence, attention="sdpa")
        assert any("/sdpa/mask/" in op.place for op, _ in listed.operations()) is (sequence > 1)


def test_latent_keys_without_rotary_positions_are_copied():
    config = dataclasses.replace(LLAMA, kv_heads=None, kv_latent=12, rotary_dim=4, positions="none")
    places = {op.place for op, _ in program(config, **SIZE).operations()}
    assert "block/attention/key/copy" in places and not any("rotary" in place for place in places)


@pytest.mark.parametrize("layout", ["zero2=2", "fsdp=2", "fsdp=3"])
def test_a_rank_keeps_its_share_of_all_gradients(layout):
    ranks = int(layout[-1])
    seven = dataclasses.replace(LLAMA, experts=7, experts_per_token=2)
    for config in (LLAMA, dataclasses.replace(LLAMA, tied_head=True), seven):
        shares = sum(-(-shape[0] // ranks) * prod(shape[1:]) for shape in predict.parameter_shapes(config))
        left = predict.step_timeline(config, **SIZE, layout=layout)[-2]
        assert left.live_bytes == 4 * shares + 4


@pytest.mark.parametrize("layout", ["zero2=2", "zero2=3", "fsdp=3"])
def test_an_allocator_rounds_the_share_of_each_gradient(layout):
    ranks = int(layout[-1])
    shares = [4 * -(-shape[0] // ranks) * prod(shape[1:]) for shape in predict.parameter_shapes(LLAMA)]
    left = predict.step_timeline(LLAMA, **SIZE, layout=layout, allocated=True)[-2]
    # Beside them the loss.
    assert left.live_bytes == sum(-(-size // 512) * 512 for size in shares) + 512


@pytest.mark.parametrize("layout", ["dp=1", "zero2=2", "fsdp=2", "ep=2,zero2=2", "ep=2,fsdp=3"])
def test_a_pass_leaves_the_gradients_that_a_rank_holds(layout):
    listed = program(MOE, **SIZE, layout=layout)
    before = gradient_bytes(listed)
    assert both_passes(Walk(listed), listed).ledger.live == before + 4
    # A later pass adds its own to them, and they go.
    ledger = both_passes(Walk(listed, ledger=Ledger(before=before)), listed).ledger
    assert ledger.live == before + 4 and ledger.gradients == before


def test_two_learned_numbers_of_an_activation_and_a_scale_for_each_head():
    assert predict.parameters(dataclasses.replace(LLAMA, mlp="xielu"))["activations"] == 4 * 2
    scales = dataclasses.replace(LLAMA, qk_norm="heads", norm="layernorm", norm_bias=False)
    for shift in (False, True):
        config = dataclasses.replace(scales, qk_norm_bias=shift)
        assert predict.parameters(config)["query and key norms"] == 4 * (1 + shift) * (Q + KV)
        assert {leaf.tensor.shape for leaf in program(config, **SIZE).leaves if leaf.component.endswith("key norms")} == {
            (A, h), (K, h),
        }  # fmt: skip


def test_each_half_of_a_rotation_has_its_table():
    for op, _ in program(LLAMA, **SIZE).operations():
        name = op.place.rpartition("/")[2]
        if name in ("cosine", "sine"):
            assert op.inputs[1].storage.name == name


@pytest.mark.parametrize(("heads", "merged"), [(1, False), (2, True)])
def test_a_padded_output_of_one_head_is_seen_without_a_copy(heads, merged):
    config = dataclasses.replace(LLAMA, heads=heads, kv_heads=heads, head_dim=12)
    listed = program(config, **SIZE, attention="sdpa", device="cuda", precision="bf16")
    kinds = {op.place.rpartition("/")[2]: op for op, _ in listed.operations()}
    assert not kinds["slice"].allocates and ("merge heads" in kinds) is merged
    both_passes(Walk(listed), listed)


def test_logs_of_a_divided_vocabulary_are_kept_and_their_gradient_is_handed_on():
    (op,) = [op for op, _ in program(LLAMA, **SIZE, layout="tp=2").operations() if op.place == "log softmax"]
    assert op.saves == (op.outputs[0].storage,) and [gradient.bytes for gradient in op.gradients] == [None]
    assert op.outputs[0].shape == (N, V // 2)


@pytest.mark.parametrize(("precision", "copied"), [("autocast", True), ("autocast-fp16", False), ("bf16", False)])
def test_autocast_widens_scores_by_a_copy_unless_the_softmax_reads_them_itself(precision, copied):
    # Torch's CUDA kernel of the softmax takes fp16 and writes fp32 ("half_to_float"); it has none for bf16.
    listed = program(LLAMA, **SIZE, precision=precision, device="cuda")
    assert any(op.place.endswith("softmax/fp32") for op, _ in listed.operations()) is copied
    wide = {op.outputs[0].dtype for op, _ in listed.operations() if op.kind == "softmax"}
    assert wide == {"bf16" if precision == "bf16" else "fp32"}


def test_what_ranks_say_of_the_parameters_of_a_block_stands_before_its_operations():
    # So that a backward pass comes to it last.
    for block, _ in blocks(program(LLAMA, **SIZE, layout="fsdp=2").items):
        kinds = [getattr(item, "kind", "") for item in block.items]
        assert kinds.index("collectives") == 0 and kinds.count("collectives") == 1


def test_a_prompt_that_ranks_divide_is_all_that_the_cache_holds():
    for layout in ("dp=1", "cp=2"):
        listed = program(LLAMA, batch=2, sequence=8, phase="prefill", layout=layout)
        assert not any(op.place.endswith("/all") for op, _ in listed.operations())
    assert any(op.place.endswith("/all") for op, _ in program(LLAMA, batch=2, sequence=8, phase="decode").operations())


def test_cached_values_may_be_narrower_than_keys():
    config = dataclasses.replace(LLAMA, value_dim=6)
    for op, _ in program(config, batch=2, sequence=8, phase="decode").operations():
        assert sizes_agree(op), op


@pytest.mark.parametrize(("window", "masked"), [(6, True), (7, False), (8, False)])
def test_a_window_as_long_as_the_sequence_is_no_mask(window, masked):
    for kind in ("sliding", "chunked"):
        config = dataclasses.replace(LLAMA, window=window, window_kind=kind)
        for device in ("cpu", "cuda"):
            listed = program(config, **SIZE, attention="sdpa", precision="bf16", device=device)
            assert any("/mask/" in op.place for op, _ in listed.operations()) is masked
            cached = program(config, **SIZE, attention="sdpa", phase="prefill", device=device)
            # A cache keeps a copy of the last positions, where there are more.
            assert any(op.place.endswith("/last") for op, _ in cached.operations()) is masked


@pytest.mark.parametrize(("precision", "copied"), [("fp32", False), ("bf16", True), ("autocast", True)])
def test_a_plain_norm_returns_the_type_that_it_was_given(precision, copied):
    listed = program(dataclasses.replace(LLAMA, qk_norm="plain"), **SIZE, precision=precision)
    places = {op.place: op for op, _ in listed.operations()}
    assert ("block/attention/query norm/cast" in places) is copied
    assert places["block/attention/query rotary/cosine"].inputs[0].dtype == ("bf16" if copied else "fp32")


@pytest.mark.parametrize(("sequence", "heads"), [(1, 4), (2, 4), (2, 2), (2, 1), (7, 4)])
def test_a_fused_output_is_put_back_by_a_copy_where_its_queries_were_put_together(sequence, heads):
    for rotary, together in ((4, True), (None, False)):
        config = dataclasses.replace(LLAMA, heads=heads, kv_heads=heads, rotary_dim=rotary)
        listed = program(config, batch=2, sequence=sequence, attention="sdpa")
        merged = [op for op, _ in listed.operations() if op.place.endswith("/merge heads")]
        assert bool(merged) is (together and sequence > 1 and heads > 1)


@pytest.mark.parametrize(
    ("window", "kernel"),
    [
        (None, torch.ops.aten._scaled_dot_product_flash_attention),
        (3, torch.ops.aten._scaled_dot_product_efficient_attention),
    ],
)
def test_the_output_of_each_kernel_of_cuda_lies_as_torch_lays_it(window, kernel):
    """Of queries with their heads in front, on the meta device; a window takes the kernel that knows masks."""
    config = dataclasses.replace(LLAMA, kv_heads=A, rotary_dim=4, window=window)
    listed = program(config, **SIZE, attention="sdpa", device="cuda", precision="bf16")
    merged = [op for op, _ in listed.operations() if op.place.endswith("/merge heads")]
    q = torch.empty(B, A, S, h, device="meta", dtype=torch.bfloat16)
    more = () if window is None else (torch.empty(B, A, S, S, device="meta", dtype=torch.bfloat16), True)
    z, *_ = kernel(q, q, q, *more)
    assert bool(merged) is not z.transpose(1, 2).is_contiguous()


def test_the_places_of_dispatched_rows_are_int64():
    # Which experts each of N tokens chose, and in which order their rows go there, as torch.argsort returns it.
    ops = [op for op, _ in program(MOE, **SIZE, layout="ep=2").operations()]
    places = {storage.bytes for op in ops for storage in op.saves if storage.name == "indices"}
    assert places == {torch.rand(N * 2).argsort().nbytes}


def test_blocks_are_written_one_by_one_where_that_is_asked_for():
    items = program(LLAMA, **SIZE).items
    assert [(item.name, item.count) for item in items if isinstance(item, Repeat)] == [("block", 4)]
    assert [block.count for block, _ in blocks(program(LLAMA, **SIZE, unrolled=True).items)] == [1] * 4
    # With the tokens of each expert where they are known.
    tokens = [[7, 7, 7, 7], [28, 0, 0, 0]] * 2
    listed = program(MOE, **SIZE, unrolled=True, expert_tokens=tokens)
    rows = [op.outputs[0].shape[1] for op, _ in listed.operations() if op.kind == "nonzero"]
    assert rows == [count for layer in tokens for count in layer]


@pytest.mark.parametrize(("stage", "rows"), [(0, [14, 14, 28, 0]), (1, [0, 28, 5, 23])])
def test_a_stage_of_a_pipeline_has_the_tokens_of_its_own_layers(stage, rows):
    config = dataclasses.replace(MOE, experts=2, experts_per_token=2)
    tokens = [[14, 14], [28, 0], [0, 28], [5, 23]]
    listed = program(config, **SIZE, layout="pp=2", stage=stage, expert_tokens=tokens)
    assert [op.outputs[0].shape[1] for op, _ in listed.operations() if op.kind == "nonzero"] == rows


def test_the_gradient_of_a_looked_up_table_is_added_up_in_parts():
    listed = program(LLAMA, batch=256, sequence=16, device="cuda")
    (op,) = [op for op, _ in listed.operations() if op.kind == "embedding"]
    # 4,096 tokens are sorted with their places; a part for each ten of them and for each of 50 rows, 32 numbers wide.
    parts = 409 + 50
    assert op.workspace == (8 * 4096, 8 * 4096, 8 * parts, 4 * parts * 32)


def test_what_is_scaled_is_kept_under_the_name_that_it_had():
    scaled = dataclasses.replace(LLAMA, embedding_scale=5.0, residual_scale=0.5, logit_scale=2.0)
    plain, other = ({*saved_activation_bytes(config, **SIZE)} for config in (LLAMA, scaled))
    assert plain == other


# -- what is refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "options", "sentence"),
    [
        (LLAMA, {"stage": 1}, "stage=1, and the stages of dp=1 are 0 to 0"),
        (LLAMA, {"stage": 2, "layout": "pp=2"}, "stage=2, and the stages of pp=2 are 0 to 1"),
        (
            LLAMA,
            {"phase": "decode", "layout": "cp=2"},
            "one new token is not a sequence to divide; leave cp and sp out",
        ),
        (
            LLAMA,
            {"phase": "decode", "layout": "tp=2,sp"},
            "one new token is not a sequence to divide; leave cp and sp out",
        ),
        (
            MOE,
            {"layout": "ep=2", "expert_tokens": [7, 7, 7, 7]},
            "the tokens of a rank's experts come from other ranks",
        ),
        (
            MOE,
            {"expert_tokens": [7, 7, 7, 8]},
            "gives 4 experts 29 tokens: this model's 4 experts get 28 in every layer",
        ),
        (MOE, {"expert_tokens": [14, 14]}, "gives 2 experts 28 tokens"),
        (MOE, {"expert_tokens": [[7, 7, 7, 7]] * 3}, "expert_tokens has 3 layers, and the model 4 with experts"),
        (
            MOE,
            {"expert_tokens": [2, 2, 0, 1], "phase": "decode"},
            "gives 4 experts 5 tokens: .* experts get 4 in every",
        ),
        (LLAMA, {"expert_tokens": []}, "expert_tokens has 0 layers, and the model 0 with experts"),
        (LLAMA, {"lora_rank": 2, "lora_targets": ["queries"]}, "unknown target of adapters 'queries'"),
        (LLAMA, {"frozen": ["queries"]}, "unknown component 'queries'"),
        (LLAMA, {"base": "int3"}, "unknown packing 'int3'"),
    ],
)
def test_what_a_program_cannot_be(config, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        program(config, **SIZE, **options)


def test_what_a_program_can_be():
    assert program(LLAMA, **SIZE, stage=1, layout="pp=2").stage == 1
    assert program(LLAMA, **SIZE, frozen=["query"], lora_targets=["queries"]).leaves
    assert program(MOE, **SIZE, phase="decode", expert_tokens=[2, 2, 0, 0]).leaves
    assert program(MOE, **SIZE, expert_tokens=[7, 7, 7, 7]).leaves
    assert check_sizes(LLAMA, batch=1, sequence=16) == (1, 16)
    assert check_sizes(dataclasses.replace(LLAMA, positions="alibi"), batch=1, sequence=17) == (1, 17)


# -- microbatches and stages ---------------------------------------------------------------------------------------------


def test_microbatches_in_flight_and_gradients_of_earlier_ones():
    def forward(layout, stage=0):
        return peak_moments(LLAMA, **SIZE, layout=layout, stage=stage)["forward"]

    alone = forward("pp=2,microbatches=1")
    # What the first stage keeps of a microbatch, and its output; its parameters, whose gradients add up.
    kept = saved_activation_bytes(LLAMA, **SIZE, layout="pp=2").total + 4 * N * D
    gradients = 4 * (V * D + 2 * BLOCK)
    for count in (1, 2, 3, 6):
        assert forward(f"pp=2,microbatches={count},schedule=gpipe") == alone + (count - 1) * kept
        # One other is in flight; from the third on, its gradients meet those of the first.
        more = {1: 0, 2: kept}.get(count, kept + gradients)
        assert forward(f"pp=2,microbatches={count}") == alone + more
    # The last stage has one in flight; the second one meets the gradients of the first.
    last = 4 * (2 * BLOCK + D + V * D)
    alone = forward("pp=2,microbatches=1", 1)
    assert forward("pp=2,microbatches=2", 1) == forward("pp=2,microbatches=9", 1) == alone + last


def test_passes_of_a_step_are_a_layouts_microbatches():
    plain, both = (peak_moments(LLAMA, **SIZE, **how) for how in ({"accumulate": 2}, {"layout": "dp=1,microbatches=2"}))
    assert plain == both == peak_moments(LLAMA, **SIZE, accumulate=2, layout="dp=1,microbatches=2")
    assert plain != peak_moments(LLAMA, **SIZE, accumulate=1) == peak_moments(LLAMA, **SIZE)
    with pytest.raises(ValueError, match="accumulate=3 with .*, whose microbatches=2 also set it: leave one out"):
        step_peak(LLAMA, **SIZE, accumulate=3, layout="dp=1,microbatches=2")


def test_of_a_pipeline_the_stage_with_most_counts():
    for config in (LLAMA, dataclasses.replace(LLAMA, vocab=5000)):
        stages = [step_peak(config, **SIZE, layout="pp=4", stage=stage) for stage in (0, 3)]
        assert stages[0].total != stages[1].total
        assert step_peak(config, **SIZE, layout="pp=4") == max(stages, key=lambda peak: peak.total)


@pytest.mark.parametrize("most", [*range(10), 63, 64, 65, 1000])
def test_the_largest_number_that_fits(most):
    assert largest(lambda number: number <= most) == most
    for limit in (1, 4, 5, 64, 100):
        assert largest(lambda number: number <= most, limit) == min(most, limit)


def test_a_policy_that_keeps_as_much_has_no_break_even_batch():
    with pytest.raises(ValueError, match="'mixed' saves nothing per sequence over 'bf16' here"):
        predict.break_even_batch(LLAMA, sequence=S, precision="mixed", than="bf16")
    assert predict.break_even_batch(LLAMA, sequence=S, precision="bf16", than="bf16") == 1


@pytest.mark.parametrize("name", ["norms", "token embedding", "position embedding", "final norm", "quer"])
def test_adapters_stand_beside_linear_layers(name):
    known = "Known: query, key, value, attention output, mlp gate, mlp up, mlp down, head"
    with pytest.raises(ValueError, match=rf"unknown target of adapters '{name}'. .*{known}"):
        program(BASE, batch=1, sequence=4, lora_rank=2, lora_targets=(name,))


@pytest.mark.parametrize("chunks", [1, 3])
def test_adapters_of_the_head_are_there_once_and_sent_with_the_rest(chunks):
    written = program(BASE, **SIZE, lora_rank=2, lora_targets=("query", "head"), layout="dp=2", chunks=chunks)
    query, head = BASE.d_model + BASE.heads * BASE.head_dim, BASE.d_model + BASE.vocab
    size = 4 * 2 * (BASE.layers * query + head)
    assert sum(4 * leaf.count * leaf.tensor.elements for leaf in written.leaves if leaf.component == "adapters") == size
    assert sum(times * wire.bytes for wire, times in sent(written)) == size  # a ring of two sends it once


def test_adapters_nowhere_are_refused():
    with pytest.raises(ValueError, match=r"lora_rank without lora_targets adds nothing to train: name components"):
        program(BASE, batch=1, sequence=4, lora_rank=2, lora_targets=())

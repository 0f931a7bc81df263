"""Every message of a step, for a model so small that each is counted by hand, and the links that it takes."""

import dataclasses
from collections import Counter

import pytest

from cs336kit.predict import MODELS, Layout, TransformerConfig, communication, program, step_seconds, training_flops
from cs336kit.predict.chip import chip
from cs336kit.predict.decoder.layers import stages
from cs336kit.predict.engine.collectives import strides
from cs336kit.predict.engine.operations import Collective
from cs336kit.predict.hardware import accelerator
from cs336kit.predict.links import bandwidth, crosses, leaving, node_of, taken, together
from cs336kit.predict.network import leaving_bytes, sent

LITTLE = TransformerConfig(layers=2, d_model=16, heads=2, vocab=40, context=64, positions="none", bias="none")
MIXTURE = dataclasses.replace(LITTLE, experts=4, experts_per_token=2)
H100 = accelerator("h100-sxm")
#: 2 sequences of 8 tokens in two bytes a number
STEP = {"batch": 2, "sequence": 8, "attention": "sdpa"}
ROW = 2 * 8 * 16 * 2
#: elements of the table, of a block without and with its MLP, and of the final norm; norms have two vectors of 16
TABLE, ATTENTION, BLOCK, NORM = 40 * 16, 4 * 16 * 16 + 64, 4 * 16 * 16 + 2 * 64 * 16 + 64, 32
#: what one of 3 ranks holds of each, in rows rounded up
TABLE_3, BLOCK_3, NORM_3 = 14 * 16, 4 * 6 * 16 + 22 * 16 + 6 * 64 + 4 * 6, 2 * 6


def messages(layout, axis, config=LITTLE, *, stage=0, precision="mixed", **options):
    """How often each is sent over an axis of the layout."""
    walked = program(config, layout=layout, stage=stage, precision=precision, **STEP, **options)
    found = Counter()
    for wire, count in sent(walked):
        if wire.axis == axis:
            # Of what is sent, rows of several experts may be of one token.
            assert wire.alike == (config.experts_per_token if axis == "ep" and wire.kind == "all-to-all" else 1)
            found[wire[0], *wire[2:7]] += count
    return dict(found)


def ring(size, ranks):
    """An all-reduce: all parts but one there, and back."""
    return 2 * (ranks - 1) * -(-size // ranks)


@pytest.mark.parametrize(
    ("layout", "gathered"),
    [
        # (what, among how many ranks, how far apart, within how many, bytes, when): how often
        ("zero1=3", {("step", "step"): 1}),
        ("zero2=3,microbatches=5", {("backward", "step"): 5}),
        ("fsdp=3,microbatches=5", {("backward", "forward"): 5}),
    ],
)
def test_ranks_that_share_state_scatter_gradients_and_gather_parameters(layout, gathered):
    ((scatter, gather), times), *_ = gathered.items()
    expected = Counter()
    for elements, blocks in ((TABLE_3, 1), (BLOCK_3, 2), (NORM_3, 1)):
        expected["reduce-scatter", 3, 1, 3, 2 * 2 * elements, scatter] += blocks * times
        expected["all-gather", 3, 1, 3, 2 * 2 * elements, gather] += blocks * (times if gather == "forward" else 1)
    if gather == "forward":
        # Blocks are let go behind the forward pass, and gathered again.
        expected["all-gather", 3, 1, 3, 2 * 2 * BLOCK_3, "backward"] = 2 * times
    assert messages(layout, "data") == expected


def test_replicas_of_shards_reduce_a_shard():
    found = messages("fsdp=3,dp=2,microbatches=5", "data")
    # The other replica stands three ranks away; a shard's gradients are reduced once in a step.
    for elements, times in ((TABLE_3, 1), (BLOCK_3, 2), (NORM_3, 1)):
        assert found["all-reduce", 2, 3, 6, ring(2 * elements, 2), "step"] == times
    assert messages("dp=3,tp=2", "data", precision="bf16")["all-reduce", 3, 2, 6, ring(2 * TABLE // 2, 3), "step"] == 1


def test_gradients_weights_and_products_have_types_of_their_own():
    autocast = messages("fsdp=3", "data", precision="autocast")
    assert autocast["reduce-scatter", 3, 1, 3, 4 * 2 * TABLE_3, "backward"] == 1
    assert autocast["all-gather", 3, 1, 3, 2 * 2 * TABLE_3, "forward"] == 1
    # The other replica has gradients of four bytes, too, though the weights have two.
    wide = messages("fsdp=3,dp=2", "data", precision="mixed-fp32-gradients")
    assert wide["all-gather", 3, 1, 3, 2 * 2 * TABLE_3, "forward"] == 1
    assert wide["reduce-scatter", 3, 1, 3, 4 * 2 * TABLE_3, "backward"] == 1
    assert wide["all-reduce", 2, 3, 6, ring(4 * TABLE_3, 2), "step"] == 1
    shared = messages("zero2=3", "data", precision="autocast")
    assert shared["all-gather", 3, 1, 3, 4 * 2 * TABLE_3, "step"] == 1
    reduced = messages("dp=3", "data", precision="autocast")
    assert reduced == {
        ("all-reduce", 3, 1, 3, ring(4 * TABLE, 3), "step"): 1, ("all-reduce", 3, 1, 3, ring(4 * BLOCK, 3), "step"): 2,
        ("all-reduce", 3, 1, 3, ring(4 * NORM, 3), "step"): 1,
    }  # fmt: skip


def test_what_is_not_trained_is_gathered_and_not_scattered():
    found = messages("fsdp=3", "data", frozen=("token embedding",))
    assert found["all-gather", 3, 1, 3, 2 * 2 * TABLE_3, "forward"] == 1
    assert ("reduce-scatter", 3, 1, 3, 2 * 2 * TABLE_3, "backward") not in found


def test_experts_are_shared_by_the_ranks_that_have_the_same_ones():
    router, experts = 4 * 16, 2 * 2 * 64 * 16
    dense = ring(2 * (ATTENTION + router), 4)
    found = messages("ep=2,dp=2", "data", MIXTURE)
    assert (
        found["all-reduce", 4, 1, 4, dense, "step"] == 2
        and found["all-reduce", 2, 2, 4, ring(2 * experts, 2), "step"] == 2
    )
    # Where no rank has experts of its own, they are spoken of with the rest of their block.
    together = messages("dp=3", "data", MIXTURE)
    assert (
        together["all-reduce", 3, 1, 3, ring(2 * (ATTENTION + router + 2 * experts), 3), "step"] == 2
        and len(together) == 3
    )
    # Each token goes to 2 experts, and half of its copies to the other rank: there and back, forward and backward.
    exchanged = messages("ep=2,dp=2,tp=2", "ep", MIXTURE)
    assert exchanged == {("all-to-all", 2, 2, 4, ROW, when): 4 for when in ("forward", "backward")}
    shared = messages("ep=2,fsdp=2", "data", MIXTURE)
    # 2 experts of a rank, on 2 ranks: one each; all else is divided over all 4.
    assert shared["reduce-scatter", 2, 2, 4, 2 * experts // 2, "backward"] == 2
    assert shared["reduce-scatter", 4, 1, 4, 3 * 2 * (ATTENTION + router) // 4, "backward"] == 2


def test_ranks_that_divide_heads_sum_behind_table_attention_and_mlp():
    every = messages("tp=2", "tp")
    # What enters attention, MLP and head has a gradient that is a sum; three numbers of a row make the loss.
    assert every == {
        ("all-reduce", 2, 1, 2, ROW, "forward"): 5, ("all-reduce", 2, 1, 2, ROW, "backward"): 5,
        ("all-reduce", 2, 1, 2, 4 * 16, "forward"): 3,
    }  # fmt: skip
    positions = messages("tp=2,sp,dp=2", "tp")
    # Half of the positions each: norms have seen only those.
    assert positions == {
        ("reduce-scatter", 2, 1, 2, ROW // 2, "forward"): 5, ("all-gather", 2, 1, 2, ROW // 2, "backward"): 5,
        ("all-gather", 2, 1, 2, ROW // 2, "forward"): 5, ("reduce-scatter", 2, 1, 2, ROW // 2, "backward"): 5,
        ("all-reduce", 2, 1, 2, 4 * 16, "forward"): 3,
        ("all-reduce", 2, 1, 2, 2 * 64, "step"): 2, ("all-reduce", 2, 1, 2, 2 * NORM, "step"): 1,
    }  # fmt: skip
    shared = messages("tp=2,sp,zero2=2", "tp")
    assert shared["all-reduce", 2, 1, 2, 2 * 64 // 2, "step"] == 2
    # ZeRO 1 shares optimizer state alone: each rank has whole gradients.
    whole = messages("tp=2,sp,zero1=2", "tp")
    assert whole["all-reduce", 2, 1, 2, 2 * 64, "step"] == 2


def test_branches_side_by_side_have_a_sum_each():
    # Of each of two layers: attention and MLP; attention, experts and the shared expert. And one behind the table.
    parallel = dataclasses.replace(LITTLE, parallel=True)
    shared = dataclasses.replace(MIXTURE, shared_d_ff=32)
    for config, branches in ((LITTLE, 2), (parallel, 2), (MIXTURE, 2), (shared, 3)):
        assert messages("tp=2", "tp", config)["all-reduce", 2, 1, 2, ROW, "forward"] == 2 * branches + 1


#: elements of the norms of a block, and of a bias
NORMS, BIAS = 64, 16
FOUR = {"heads": 4, "kv_heads": 2}
ADAPTED = {"lora_rank": 3, "precision": "bf16"}


@pytest.mark.parametrize(
    ("layout", "changes", "options", "said"),
    [
        # Ranks that say it, elements of a message, how often. The final norm has as many as two biases.
        ("tp=2", {"bias": "all"}, {}, []),
        ("tp=2,sp", {}, {}, [(2, NORMS, 2), (2, NORM, 1)]),
        # Biases behind the sum: of the output of attention and of the MLP, dense or shared; those of experts stand before it.
        ("tp=2,sp", {"bias": "all"}, {}, [(2, NORMS + 2 * BIAS, 2), (2, NORM, 1)]),
        ("tp=2,sp", {"bias": "all", "experts": 4, "shared_d_ff": 32}, {}, [(2, NORMS + 2 * BIAS + 64, 2), (2, NORM, 1)]),
        (
            "tp=2,sp", {"bias": "all", "experts": 4, "sparse_layers": (False, True)}, {},
            [(2, NORMS + 2 * BIAS, 1), (2, NORMS + BIAS + 64, 1), (2, NORM, 1)],
        ),
        # With sp each has seen its positions only.
        ("tp=2,sp", {"embedding_norm": True}, {}, [(2, NORM, 1), (2, NORMS, 2), (2, NORM, 1)]),
        ("tp=2,sp", {"embedding_dim": 4}, {}, [(2, 4 * 16, 1), (2, NORMS, 2), (2, NORM + 4 * 16, 1)]),
        ("tp=2", {"embedding_dim": 4, "embedding_norm": True}, {}, []),
        ("tp=2,sp", {"positions": "learned"}, {}, [(2, 64 * 16, 1), (2, NORMS, 2), (2, NORM, 1)]),
        # Each has a part of every expert, and the weight of its result has a part of its gradient.
        ("tp=2", {"experts": 4}, {}, [(2, 4 * 16, 2)]),
        ("tp=2", {"experts": 4, "router_bias": True, "shared_d_ff": 32, "shared_gate": True}, {}, [(2, 4 * 16 + 4, 2)]),
        (
            "tp=2,sp", {"experts": 4, "shared_d_ff": 32, "shared_gate": True}, {},
            [(2, NORMS + 4 * 16 + 16, 2), (2, NORM, 1)],
        ),
        ("tp=2", {"mlp": "xielu"}, {}, [(2, 2, 2)]),
        # One scale of 8 for all heads of queries, and one of keys; else a scale of its own for each head.
        ("tp=2", {"qk_norm": "head"}, {}, [(2, 2 * 8, 2)]),
        ("tp=2,sp", {"qk_norm": "head"}, {}, [(2, NORMS + 2 * 8, 2), (2, NORM, 1)]),
        ("tp=2", {"qk_norm": "heads"}, {}, []),
        ("tp=2", {"qk_norm": "width"}, {}, []),
        # Each of two key/value heads of 8 stands on two ranks: the gradients of both copies are summed.
        ("tp=2", FOUR, {}, []),
        ("tp=4", FOUR, {}, [(2, 2 * 8 * 16, 2)]),
        ("tp=4", FOUR | {"bias": "all", "qk_norm": "heads"}, {}, [(2, 2 * 8 * 16 + 2 * 8 + 8, 2)]),
        ("tp=4", FOUR | {"kv_heads": 1}, {}, [(4, 2 * 8 * 16, 2)]),
        # Of adapters beside columns what reads the whole input, beside rows what writes the whole output.
        ("tp=2", {}, ADAPTED, [(2, 2 * 3 * 16, 2)]),
        ("tp=2", {}, ADAPTED | {"lora_targets": ("attention output", "mlp down")}, [(2, 2 * 3 * 16, 2)]),
        ("tp=4", FOUR, ADAPTED | {"lora_targets": ("value",)}, [(4, 3 * 16, 2), (2, 3 * 8, 2)]),
    ],
)  # fmt: skip
def test_what_ranks_of_tp_say_of_parameters_that_several_of_them_have(layout, changes, options, said):
    config = dataclasses.replace(LITTLE, **({"experts_per_token": 2} if "experts" in changes else {}) | changes)
    found = {key: times for key, times in messages(layout, "tp", config, **options).items() if key[-1] == "step"}
    expected = Counter()
    for ranks, elements, times in said:
        expected["all-reduce", ranks, 1, ranks, ring(2 * elements, ranks), "step"] += times
    assert found == expected


def test_keys_and_values_travel_around_a_ring():
    # 2 of 3 ranks' worth forward; backward with their gradients, which take one step more to be home.
    kv = 2 * (2 * 8 // 2 * 16) * 2
    assert messages("cp=2,tp=2", "cp") == {
        ("ring", 2, 2, 4, kv // 2, "forward"): 2, ("ring", 2, 2, 4, 3 * kv // 2, "backward"): 2,
    }  # fmt: skip


def test_stages_send_activations_and_the_gradients_of_a_table_that_both_have():
    found = messages("pp=2,dp=3,microbatches=5", "pp")
    assert found == {
        ("send", 2, 3, 6, ROW, "forward"): 5, ("all-reduce", 2, 3, 6, ring(2 * TABLE, 2), "step"): 1,
    }  # fmt: skip
    assert messages("pp=2,dp=3,microbatches=5", "pp", stage=1)["send", 2, 3, 6, ROW, "backward"] == 5
    # With gradients that are shared, of a rank's share; the last of four stages stands three stages away.
    four = dataclasses.replace(LITTLE, layers=4)
    shared = messages("pp=4,zero2=3,microbatches=5", "pp", four, stage=3)
    assert shared["all-reduce", 2, 9, 12, ring(2 * TABLE_3, 2), "step"] == 1
    alone = messages("pp=4,zero1=3,microbatches=5", "pp", four, stage=3)
    assert alone["all-reduce", 2, 9, 12, ring(2 * TABLE, 2), "step"] == 1
    for layout, config in (("pp=2,zero2=2,cp=2", LITTLE), ("pp=2,zero2=2,ep=2", MIXTURE)):
        found = messages(layout, "pp", config)
        assert found["all-reduce", 2, 4, 8, ring(2 * TABLE // 4, 2), "step"] == 1
    assert (
        stages(four, Layout(pp=4)) == [0, 1, 3]
        and stages(four, Layout()) == [0]
        and stages(four, Layout(pp=4), 2) == [2]
    )


@pytest.mark.parametrize(
    ("layout", "kind", "config", "attention"),
    [
        ("tp=2", "all-reduce", LITTLE, "sdpa"), ("tp=2,sp", "all-gather", LITTLE, "sdpa"), ("cp=2", "ring", LITTLE, "sdpa"),
        ("cp=2", "all-gather", LITTLE, "eager"), ("ep=2", "all-to-all", MIXTURE, "sdpa"),
    ],
)  # fmt: skip
def test_without_gradients_nothing_is_sent_backward(layout, kind, config, attention):
    walked = program(config, batch=2, sequence=8, layout=layout, phase="forward", attention=attention)
    found = [wire for op, _ in walked.operations() for wire in op.collectives]
    assert kind in {wire.kind for wire in found} and {wire.when for wire in found} == {"forward"}


def test_neighbors_of_each_axis_stand_apart_as_the_ranks_are_numbered():
    layout = Layout(tp=2, ep=3, cp=5, fsdp=7, dp=11, pp=13)
    assert strides(layout) == {"tp": 1, "ep": 2, "cp": 6, "shards": 30, "dp": 210, "pp": 2310}


def test_a_group_leaves_its_node_unless_nodes_are_made_of_whole_groups():
    def wire(ranks, stride, kind="all-reduce"):
        return Collective(kind, "data", ranks, stride, ranks * stride, 1)

    cluster = Layout(dp=16)
    assert [crosses(wire(ranks, 1), 8, cluster) for ranks in (2, 3, 8, 16)] == [False, True, False, True]
    assert not crosses(wire(8, 1), 8, Layout(dp=8)) and not crosses(wire(3, 1), 8, Layout(dp=3))
    rate = {"device": H100, "node": 8, "between_nodes": 50e9, "layout": cluster}
    link = H100.facts["link"].value
    assert bandwidth(wire(8, 1), **rate) == link
    # Two of the ranks stand in each node, and each brings its own link; what one rank sends to another has one.
    assert bandwidth(wire(4, 4), **rate) == 2 * 50e9 and bandwidth(wire(2, 8), **rate) == 50e9
    assert bandwidth(wire(2, 16), **rate) == 50e9
    assert bandwidth(wire(4, 4, "send"), **rate) == bandwidth(wire(4, 4, "all-to-all"), **rate) == 50e9
    # However many they are, inside a node they are no faster than its links.
    assert bandwidth(wire(16, 1), **rate | {"between_nodes": 1e11}) == link


def test_a_ring_divides_what_leaves_its_node_over_the_links_of_its_ranks():
    # Of 16 ranks in nodes of 8, each ring leaves a node once, over 8 links.
    parts = communication(LITTLE, layout="fsdp=16", node=8, **STEP)
    assert all(name.endswith("between nodes") for name in parts)
    found = leaving_bytes(LITTLE, layout=Layout(fsdp=16), node=8, **STEP)
    assert found == pytest.approx(parts.total / 8, abs=len(parts) * 4)
    # 4 of those that share stand in a node of 8 beside 2 of tp; what tp sends stays inside.
    layout = Layout(fsdp=8, tp=2)
    parts = communication(LITTLE, layout=layout, node=8, **STEP)
    far = sum(size for name, size in parts.items() if name.endswith("between nodes"))
    assert 0 < far < parts.total
    assert leaving_bytes(LITTLE, layout=layout, node=8, **STEP) == pytest.approx(far / 4, abs=len(parts) * 4)
    assert (
        leaving_bytes(LITTLE, layout=layout, node=1, **STEP)
        == communication(LITTLE, layout=layout, node=1, **STEP).total
    )
    assert leaving_bytes(LITTLE, layout=layout, node=16, **STEP) == 0
    # Stages send to one other.
    piped = Layout(pp=2, dp=2, microbatches=2)
    sends = communication(LITTLE, layout=piped, node=2, **STEP)["pp send, between nodes"]
    assert sends and leaving_bytes(LITTLE, layout=piped, node=2, **STEP) >= sends


def test_a_ring_takes_the_time_of_its_slower_hops():
    """8 links of 50 GB/s leave a node of H800s, whose NVLink brings 200 GB/s: another network changes nothing."""
    sent = communication(LITTLE, layout="fsdp=16", **STEP, precision="mixed").total
    for speed in (25.1e9, 50e9, 400e9):
        s = step_seconds(
            LITTLE, layout="fsdp=16", accelerator="h800-sxm", between_nodes=speed, **STEP, precision="mixed"
        )
        assert s.inside == s.through == pytest.approx(sent / 200e9) and s.between == 0
    s = step_seconds(LITTLE, layout="fsdp=16", accelerator="h800-sxm", between_nodes=20e9, **STEP, precision="mixed")
    assert s.between == pytest.approx(sent / 160e9) and s.inside == s.through == 0
    # Of 2 · 8 ranks, what those of tp send stays in the node, and is no ring that leaves it.
    s = step_seconds(
        LITTLE, layout="fsdp=8,tp=2", accelerator="h800-sxm", between_nodes=400e9, **STEP, precision="mixed"
    )
    parts = communication(LITTLE, layout="fsdp=8,tp=2", **STEP, precision="mixed")
    stays = sum(size for name, size in parts.items() if name.endswith("inside a node"))
    assert s.inside - s.through == pytest.approx(stays / 200e9) and stays


H800 = accelerator("h800-sxm")
#: Bytes that each of 2,048 H800 sends to gather the parameters of DeepSeek-V3 for two passes.
GATHERED = 2815e9


def gather(ranks, size, kind="all-gather", stride=1):
    return Collective(kind, "data", ranks, stride, ranks * stride, size)


def test_at_best_rings_use_all_links_of_a_rank():
    """By hand: a node lacks 2,040 of 2,048 shares and has 8 · 50 GB/s; a rank lacks all but its own and has 200 + 50."""
    of = {"device": H800, "node": 8, "between_nodes": 50e9, "layout": Layout(fsdp=2048)}
    found = taken(gather(2048, GATHERED), **of)
    assert found.through == pytest.approx(14.075) and found.inside == found.between == 0
    inside, between, every = found.least
    assert inside == (0, 0) and every == pytest.approx((11.26 / 2047, 11.26))
    assert between == pytest.approx((8 / 2047 * 7.0375, 2040 / 2047 * 7.0375))
    # What is scattered goes the other way, and what is summed and gathered goes both, once.
    assert taken(gather(2048, GATHERED, "reduce-scatter"), **of).least[2] == pytest.approx((11.26, 11.26 / 2047))
    both = taken(gather(2048, GATHERED, "all-reduce"), **of).least
    assert both[2] == pytest.approx((5.63, 5.63), rel=1e-3) and both[1] == pytest.approx((3.519, 3.519), rel=1e-3)
    # So many links that the node is what counts: 8 · 26 GB/s are more than 200, and 7 · 26 less.
    border = taken(gather(2048, GATHERED), **of | {"between_nodes": 26e9})
    assert border.through == pytest.approx(14.075) and border.least[1][1] == pytest.approx(
        13.534 * 2040 / 2047, rel=1e-4
    )
    assert border.least[1][1] > border.least[2][1] == pytest.approx(GATHERED / 226e9)
    # Where the links between nodes are the slower ones, a node lacks more than a rank, and of two nodes less.
    slower = taken(gather(2048, GATHERED), **of | {"between_nodes": 20e9})
    assert slower.between == pytest.approx(GATHERED / 160e9) and slower.through == 0
    assert slower.least[1][1] == pytest.approx(slower.between * 2040 / 2047) and slower.least[2][1] < slower.between
    few = taken(gather(16, GATHERED), **of | {"between_nodes": 20e9, "layout": Layout(fsdp=16)})
    assert few.least[1][1] == pytest.approx(GATHERED * 8 / 15 / 160e9)
    assert few.least[2][1] == pytest.approx(GATHERED / 220e9) and few.least[2][1] > few.least[1][1]


@pytest.mark.parametrize("own", [26e9, 30e9, 50e9, 100e9, 400e9])
def test_rings_that_share_all_links_reach_the_bound_and_none_is_quicker(own):
    """Of the bytes, `apart` in rings with all hops between nodes, the rest in 8 rings that leave a node once each."""
    found = taken(gather(2048, GATHERED), H800, 8, own, Layout(fsdp=2048))
    least = max(max(ways) for ways in found.least)
    best = float("inf")
    for apart in [i / 10_000 for i in range(10_001)]:
        inside, between = (1 - apart) * 7 / 8, (1 - apart) / 8 + apart
        best = min(best, max(inside / 200e9, between / own) * GATHERED)
    assert least <= best == pytest.approx(least, rel=4e-3)


def test_a_card_that_has_only_pcie_sends_all_over_it():
    """64 GB/s to others of its node and to other nodes, together; so it is in a plan, which knows the numbers alone."""
    pcie = accelerator("h100-pcie")
    found = taken(gather(16, 64e9), pcie, 8, 50e9, Layout(fsdp=16))
    assert found.through == pytest.approx(1) and found.least[2] == pytest.approx((1 / 15, 1))
    for device, every in (
        (chip("h100-pcie")[0], 1),
        (chip("h100-pcie", link=64e9)[0], 64 / 114),
        (chip("h100-sxm")[0], 64 / 500),
    ):
        found = taken(gather(16, 64e9), device, 8, 50e9, Layout(fsdp=16))
        assert max(found.least[2]) == pytest.approx(every)


@pytest.mark.parametrize("kind", ["all-gather", "reduce-scatter", "all-reduce", "all-to-all", "ring", "send"])
@pytest.mark.parametrize("device", ["h800-sxm", "h100-sxm", "h100-pcie"])
def test_nothing_takes_longer_at_best_than_in_a_ring_or_less_for_more_bytes(kind, device):
    device = accelerator(device)
    for ranks in (2, 3, 8, 12, 16, 40, 2048):
        for stride, node in ((1, 8), (2, 8), (8, 8), (1, 1), (3, 4), (1, 6)):
            for own in (1e9, 25e9, 50e9, 400e9):
                of = {"device": device, "node": node, "between_nodes": own, "layout": Layout(dp=ranks * stride)}
                before = 0.0
                for size in (1, 2, 1000, 1001, 10**9, 2 * 10**9):
                    found = taken(gather(ranks, size, kind, stride), **of)
                    least = max(max(ways) for ways in found.least)
                    assert before <= least <= (found.inside + found.through + found.between) * (1 + 1e-12)
                    before = least
            # Nor does a faster network.
            each = [
                taken(gather(ranks, 10**9, kind, stride), **of | {"between_nodes": 1.1**i * 1e9}) for i in range(60)
            ]
            least = [max(max(ways) for ways in found.least) for found in each]
            assert least == sorted(least, reverse=True)


def test_a_step_at_best_takes_all_links_of_a_rank():
    """16 H800 in two nodes, by hand; what tp sends stays in its node."""

    def found(layout, **links):
        how = {
            "layout": layout,
            "accelerator": H800,
            "matmul_efficiency": 1,
            "precision": "mixed",
            "between_nodes": 50e9,
        } | links
        sizes = Counter()
        for wire, count in sent(program(LITTLE, layout=layout, precision="mixed", **STEP)):
            sizes[wire.axis, wire.kind] += wire.bytes * count
        return step_seconds(LITTLE, **how, **STEP), sizes

    s, sizes = found("fsdp=16")
    gathered, scattered = sizes["data", "all-gather"], sizes["data", "reduce-scatter"]
    assert s.compute < s.lower == pytest.approx((gathered + scattered / 15) / 250e9)
    s, sizes = found("fsdp=8,tp=2", between_nodes=400e9)
    gathered, scattered = sizes["data", "all-gather"], sizes["data", "reduce-scatter"]
    # An all-reduce of two ranks takes a ring's time at best.
    assert s.lower == pytest.approx(max(sizes["tp", "all-reduce"] / 200e9, (gathered + scattered / 7) / 600e9))


def test_a_bridge_of_two_cards_is_no_link_of_eight():
    """Cards of PCIe 5.0 x16 have 64 GB/s each way to each other."""
    s = step_seconds(LITTLE, layout="fsdp=8", accelerator="h100-pcie", **STEP, precision="mixed")
    assert s.inside == pytest.approx(communication(LITTLE, layout="fsdp=8", **STEP, precision="mixed").total / 64e9)


def test_a_chip_without_a_sourced_link_has_a_way_out():
    alone = dataclasses.replace(H100, facts={})
    options = {"layout": "dp=2", "accelerator": alone, **STEP}
    with pytest.raises(ValueError, match="node=1 and between_nodes=25e9\\), or take another"):
        step_seconds(LITTLE, **options)
    assert step_seconds(LITTLE, **options, node=1, between_nodes=25e9).between > 0


def test_what_checkpointed_experts_compute_again_takes_its_time():
    config = dataclasses.replace(MIXTURE, experts=8)
    seconds = step_seconds(config, **STEP, layout="dp=1", accelerator=H100, matmul_efficiency=0.5, checkpointing=True)
    flops = training_flops(config, **STEP, checkpointing=True).total
    assert seconds.compute == pytest.approx(flops / (0.5 * H100.peak("bf16")))


def test_a_pipeline_waits_while_it_fills():
    """Seconds of a step from its parts: 2 stages and 5 microbatches take six turns."""
    options = {"layout": "pp=2,dp=3,microbatches=5", "batch": 2, "sequence": 8, "accelerator": "h100-sxm"}
    options["matmul_efficiency"] = 0.25
    found = step_seconds(LITTLE, **options)
    link = H100.facts["link"].value
    tokens = 2 * 8
    # 6 FLOPs per parameter of a product and token; of all pairs of positions two products forward and five backward, one of
    # which computes the scores again.
    stage = 6 * tokens * (BLOCK - 64) + (2 + 5) * 2 * 2 * 8 * 8 * 16
    slowest = stage + 6 * tokens * TABLE
    assert found.compute == pytest.approx(5 * slowest / (0.25 * H100.peak("bf16")))
    once = (ring(2 * TABLE, 2) + ring(2 * (BLOCK), 3) + ring(2 * (TABLE + NORM), 3)) / link
    each = 5 * ROW / link
    assert found.inside == pytest.approx(once + each) and found.between == 0
    assert found.upper == pytest.approx((found.compute + each) * 6 / 5 + once)
    # Where all overlaps, the stage with the head waits until the other one has had its first microbatch.
    filled = stage / (0.25 * H100.peak("bf16")) + found.compute
    # What three ranks sum takes three quarters of the ring's time where a switch adds; of two, as long.
    summed = ring(2 * TABLE, 2) + 3 / 4 * (ring(2 * BLOCK, 3) + ring(2 * (TABLE + NORM), 3))
    assert found.lower == pytest.approx(max(filled, each + summed / link))
    assert found.bubble == pytest.approx(stage / (stage + 5 * slowest))
    assert (found.global_batch, found.tokens) == (2 * 3 * 5, 2 * 3 * 5 * 8)


def one_forward_one_backward(times, microbatches):
    """Seconds of a step whose stages take `times` for a microbatch, a third of it forward, played out turn by turn."""
    last, turns = len(times) - 1, {}
    for stage in range(len(times)):
        ahead = min(last - stage, microbatches)
        # Forward passes that fill the pipeline, then one forward and one backward, then what is left backward.
        order = [("forward", i) for i in range(ahead)]
        for i in range(microbatches - ahead):
            order += [("forward", ahead + i), ("backward", i)]
        turns[stage] = order + [("backward", i) for i in range(microbatches - ahead, microbatches)]
    ends, clock = {}, dict.fromkeys(turns, 0.0)
    while any(turns.values()):
        for stage, order in turns.items():
            while order:
                way, i = order[0]
                if way == "forward":
                    waits = ("forward", i, stage - 1) if stage else None
                else:
                    waits = ("backward", i, stage + 1) if stage < last else ("forward", i, stage)
                if waits is not None and waits not in ends:
                    break
                start = max(clock[stage], ends.get(waits, 0.0))
                clock[stage] = ends[way, i, stage] = start + times[stage] * (1 if way == "forward" else 2) / 3
                order.pop(0)
    return max(clock.values())


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("llama-3.2-1b", "pp=16,microbatches=16"),
        ("llama-3-8b", "pp=8,microbatches=8"),
        ("llama-3-8b", "pp=8,microbatches=3"),
        ("llama-3-8b", "pp=8,microbatches=64"),
        ("gemma-2-9b", "pp=6,microbatches=12"),
        ("llama-3-70b", "pp=16,microbatches=16"),
        ("deepseek-v2-lite", "pp=27,microbatches=27"),
    ],
)
def test_no_schedule_is_quicker_than_the_lower_bound(name, layout):
    config, pp, m = MODELS[name], Layout.parse(layout).pp, Layout.parse(layout).microbatches
    size = {"batch": 1, "sequence": 4096, "attention": "sdpa", "precision": "mixed", "device": "cuda"}
    stages = [training_flops(config, **size, layout=layout, stage=stage).total for stage in range(pp)]
    rate = 0.4 * H100.peak("bf16")
    played = one_forward_one_backward([flops / rate for flops in stages], m)
    found = step_seconds(config, **size, layout=layout, accelerator=H100, matmul_efficiency=0.4, between_nodes=1e15)
    assert 0.85 * played < found.lower <= played * (1 + 1e-9) < found.upper
    assert found.compute == pytest.approx(m * max(stages) / rate)
    assert found.bubble == pytest.approx(1 - found.compute / found.lower)


def test_the_slowest_stage_may_stand_in_the_middle():
    """Six layers on four stages, whose table costs less than a layer: one block, two, two, one."""
    config = dataclasses.replace(LITTLE, layers=6, vocab=2)
    options = {"batch": 8, "sequence": 64, "layout": "pp=4,microbatches=8", "attention": "sdpa", "device": "cuda"}
    stages = [training_flops(config, **options, stage=stage).total for stage in range(4)]
    first, second, third, last = stages
    assert second == third == 2 * first > last > first
    # So slow that nothing is sent as long as it computes.
    rate = 1e-6 * H100.peak("bf16")
    found = step_seconds(config, **options, accelerator=H100, matmul_efficiency=1e-6)
    assert found.lower == pytest.approx((first + second + 8 * third) / rate)
    assert one_forward_one_backward([flops / rate for flops in stages], 8) >= found.lower


def test_stages_that_are_alike_wait_for_p_minus_1_turns():
    assert one_forward_one_backward([3.0] * 4, 6) == pytest.approx(3 * (6 + 3))
    # The second stage has six microbatches of 5 s each, behind and before one of 3 s.
    assert one_forward_one_backward([3.0, 5.0], 6) == pytest.approx(3 + 6 * 5)


def test_a_rack_is_one_node_up_to_all_that_its_links_join():
    # Of several racks of 72 each gives 64.
    for name in ("gb200", "gb300", accelerator("gb300")):
        assert [node_of(name, count) for count in (1, 64, 71, 72, 73, 144)] == [72, 72, 72, 72, 64, 64]
    # All chips of a pod are joined, too; several pods of 8,960 give 8,192 each.
    assert [node_of("tpu-v5e", count) for count in (1, 16, 256, 512)] == [256] * 4
    assert [node_of("tpu-v5p", count) for count in (4096, 8960, 16384)] == [8960, 8960, 8192]
    assert {node_of(name, 72) for name in ("h100-sxm", "mi300x", "no such chip", None)} == {8}


def fewest_together(ranks, stride, node, count):
    """The truth: where the ranks of each group stand that leaves its node, and the fewest of them in one."""
    found = []
    for first in range(0, count, ranks * stride):
        for inner in range(stride):
            places = Counter((first + inner + stride * i) // node for i in range(ranks))
            found += places.values() if len(places) > 1 else []
    return min(found, default=ranks)


@pytest.mark.parametrize("node", [1, 2, 4, 6, 8, 72])
def test_of_groups_that_nodes_do_not_hold_whole_the_fewest_ranks_stand_together(node):
    """Three that share on nodes of 8: of each third node's border one stands alone, and two on its other side."""
    for ranks in (2, 3, 4, 5, 12, 16, 40):
        for stride in (1, 2, 3, 4, 5, 7, 8, 12):
            for blocks in (1, 2, 3, 7, 16):
                wire = Collective("all-gather", "data", ranks, stride, ranks * stride, 1)
                count = blocks * ranks * stride
                found = together(wire, node, Layout(dp=count))
                assert found == fewest_together(ranks, stride, node, count), (ranks, stride, blocks)


@pytest.mark.parametrize(
    "layout", ["dp=5,fsdp=3", "dp=5,zero2=3", "dp=8,fsdp=12", "dp=5,cp=3", "cp=16", "dp=3,zero1=4,tp=2"]
)
def test_no_step_takes_longer_at_best_than_at_worst(layout):
    found = step_seconds(
        LITTLE, batch=1, sequence=48, layout=layout, accelerator="h100-sxm", between_nodes=50e9, matmul_efficiency=1
    )
    assert found.compute < found.between and found.lower <= found.upper


def test_a_group_is_as_fast_as_where_it_has_fewest_links():
    """Two groups of 12 on nodes of 8: each has 4 in one of its nodes."""
    link = {"device": H100, "node": 8, "between_nodes": 50e9, "layout": Layout(dp=2, fsdp=12)}
    assert bandwidth(Collective("all-gather", "data", 12, 1, 12, 1), **link) == 4 * 50e9


def test_the_ring_of_cp_leaves_its_node_over_one_link_and_at_best_over_all():
    """Of 16 ranks in two nodes 8 lack the keys and values of 8 others, and have as many links: one of them each."""
    step = {"batch": 1, "sequence": 64, "precision": "mixed", "attention": "sdpa", "layout": "cp=16"}
    sizes = Counter()
    for wire, count in sent(program(LITTLE, **step)):
        sizes[wire.kind] += wire.bytes * count
    # 15 times there, and 31 times with the gradients.
    each, summed = sizes["ring"] / 46, sizes["all-reduce"]
    found = step_seconds(LITTLE, **step, accelerator=H100, between_nodes=50e9, matmul_efficiency=1, node=8)
    assert found.between == pytest.approx(46 * each / 50e9 + summed / 400e9)
    assert found.lower == pytest.approx((each + 2 * each) / 50e9 + summed * 16 / 30 / 400e9)


@pytest.mark.parametrize(
    ("layout", "node", "away"),
    [
        # Of 15 others, 8 stand in the other node of 8; of 3 others 2, where two neighbors of tp stand beside each of four.
        ("ep=16", 8, 8), ("ep=4,tp=2", 4, 2), ("ep=4,tp=4", 8, 2), ("ep=8", 2, 6), ("ep=2,tp=8", 8, 1), ("ep=8", 1, 7),
        # Groups of 12 on nodes of 8: where one ends, four of its ranks stand together.
        ("ep=12,dp=2", 8, 8),
        # Groups of 3 on nodes of 8: the third of them has one rank in a node of its own.
        ("ep=3,dp=8", 8, 2),
    ],
)  # fmt: skip
def test_an_all_to_all_leaves_its_node_to_the_ranks_that_are_elsewhere(layout, node, away):
    layout = Layout.parse(layout)
    ranks, stride = layout.ep, layout.tp
    assert ranks - fewest_together(ranks, stride, node, layout.count) == away
    wire = Collective("all-to-all", "ep", ranks, stride, ranks * stride, 1000 * (ranks - 1))
    assert crosses(wire, node, layout) and leaving(wire, node, layout) == 1000 * away
    assert leaving(wire, node, layout, 3) == 3000 * away


def test_what_an_all_to_all_sends_inside_its_node_takes_the_links_there():
    mixture = dataclasses.replace(MIXTURE, experts=16)
    step = {**STEP, "precision": "mixed", "layout": Layout(ep=16)}
    options = {**step, "node": 8}
    far, near = (leaving_bytes(mixture, **step, node=node) for node in (8, 1))
    exchanged = communication(mixture, **options)["ep all-to-all, between nodes"]
    assert near - far >= exchanged * 7 // 15 > 0
    found = step_seconds(mixture, **options, accelerator=H100, between_nodes=50e9)
    assert found.inside == pytest.approx(exchanged * 7 / 15 / H100.facts["link"].value)
    assert found.between == pytest.approx(far / 50e9, rel=1e-3)
    # Without a known link inside the node, all of it counts as between nodes.
    alone = dataclasses.replace(H100, facts={name: fact for name, fact in H100.facts.items() if "link" not in name})
    slower = step_seconds(mixture, **options, accelerator=alone, between_nodes=50e9)
    assert slower.inside == 0 and slower.between == pytest.approx(found.between + exchanged * 7 / 15 / 50e9)


@pytest.mark.parametrize("ranks", [4, 7, 8])
def test_at_best_a_switch_adds_what_an_all_reduce_sums(ranks):
    """So NCCL on H100 is faster than a ring over links of that rate: a row of benchmarks/published.toml."""
    step = {"batch": 1, "sequence": 16, "precision": "bf16", "layout": f"dp={ranks}", "node": 8}
    found = step_seconds(MODELS["gpt2"], accelerator="h100-sxm", matmul_efficiency=1, **step)
    assert found.compute < found.lower == pytest.approx(found.inside * ranks / (2 * (ranks - 1)))


@pytest.mark.parametrize("how", [{"frozen": ("token embedding",)}, {"lora_rank": 2}])
def test_two_stages_say_nothing_of_a_table_that_is_not_trained(how):
    assert {kind for stage in (0, 1) for kind, *_ in messages("pp=2", "pp", stage=stage, **how)} == {"send"}
    last = program(LITTLE, layout="pp=2", stage=1, **STEP, **how).leaves[-1].tensor
    assert last.shape == (40, 16) and not last.needs_gradient


@pytest.mark.parametrize("node", [1, 8])
def test_the_halves_of_an_all_reduce_take_no_longer_than_it_at_best(node):
    """Switches that copy what is gathered and add what is scattered leave links a direction each: Khalilov et al. 2024.

    A ring of 16 ranks in two nodes brings each node 15/16 of what is gathered, and it lacks a half.
    """
    model, step = MODELS["gpt2"], {"batch": 1, "sequence": 16, "precision": "bf16"}

    def of(layout, node=node):
        return step_seconds(
            model, accelerator="h100-sxm", between_nodes=50e9, matmul_efficiency=1, layout=layout, node=node, **step
        )

    whole, halves, three = (of(f"{name}=16") for name in ("dp", "zero1", "fsdp"))
    assert whole.compute < halves.lower <= whole.lower * 1.001 and halves.between == pytest.approx(
        whole.between, rel=1e-3
    )
    bytes_of = Counter()
    for wire, count in sent(program(model, layout="fsdp=16", attention="sdpa", **step)):
        bytes_of[wire.kind] += count * wire.bytes
    gathered, reduced = bytes_of["all-gather"], bytes_of["reduce-scatter"]
    least = gathered + reduced / 15 if node == 1 else (gathered + reduced) * 8 / 15 / 8
    assert three.lower == pytest.approx(least / 50e9) and gathered > reduced


def test_at_best_a_token_goes_once_to_all_of_its_experts():
    """Sent to each of its 8, tokens of DeepSeek-V3 would take longer than a measured step: a row of benchmarks/published.toml."""
    step = {"accelerator": "b200-sxm", "between_nodes": 50e9, "batch": 1, "sequence": 4096, "matmul_efficiency": 1}
    found = step_seconds(MODELS["deepseek-v3"], layout="pp=8,ep=32,microbatches=128", **step)
    assert found.global_batch == 4096 and found.lower < found.between
    # Inside a node, too, a token goes once to a rank, whatever it has of its experts.
    few = step_seconds(MIXTURE, layout="ep=2", **STEP, accelerator="h100-sxm", matmul_efficiency=1)
    assert few.compute < few.lower < few.inside and MIXTURE.experts_per_token == 2

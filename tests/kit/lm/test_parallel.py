"""The decoder under layouts, on real processes: the same loss, gradients, norm and next weights as one model has."""

import dataclasses
import datetime
import gc
import itertools
import json
import math
import os
import re
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from few import one_in
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe
from torch.testing._internal.distributed import multi_threaded_pg

from cs336kit import lm, measure
from cs336kit.lm.parallel import check_runnable
from cs336kit.lm.pretrain import joined
from cs336kit.lm.tensor_parallel import Ranks, VocabularyLoss, _own
from cs336kit.predict import TransformerConfig, program
from cs336kit.predict.layouts import as_layout
from cs336kit.predict.network import sent

pytestmark = pytest.mark.torch

GPT = TransformerConfig(layers=2, d_model=32, heads=4, vocab=61, context=16)
LLAMA = TransformerConfig(
    layers=2, d_model=32, heads=4, kv_heads=4, d_ff=48, vocab=61, context=16, mlp="swiglu", norm="rmsnorm",
    positions="rope", bias="none", tied_head=False,
)  # fmt: skip
MIXTURE = dataclasses.replace(LLAMA, experts=4, experts_per_token=2)
SHARED = dataclasses.replace(MIXTURE, shared_d_ff=32)
LATENT = dataclasses.replace(LLAMA, kv_heads=None, kv_latent=16, head_dim=12, rotary_dim=4, query_latent=8)
SCALED = dataclasses.replace(
    GPT, embedding_scale=2.0, logit_scale=2.0, logit_softcap=3.0, extra_positions=2, embedding_norm=True, tied_head=False,
    head_bias=True,
)  # fmt: skip
GROUPED = dataclasses.replace(LLAMA, kv_heads=2, final_norm=False)
#: layouts of two to eight ranks; the vocabulary of 61 divides by none
CASES = [
    (GPT, "pp=2,dp=2,microbatches=4,schedule=gpipe"), (LLAMA, "fsdp=2,tp=2,sp,microbatches=2"), (MIXTURE, "dp=2,ep=2"),
    (SCALED, "tp=4,sp"), (GROUPED, "zero2=2"), (LATENT, "tp=2"), (GPT, "dp=2,zero1=2"), (GPT, "pp=2,zero2=2"),
]  # fmt: skip
#: What else was wrong once; each part of these is in one of those above, too.
MORE = [
    (GPT, "dp=2,fsdp=2"), (GPT, "zero1=2,tp=2,sp"), (GPT, "zero1=3"), (SHARED, "ep=2"),
    (LLAMA, "pp=2,dp=2,fsdp=2,microbatches=3"), (LLAMA, "zero2=4,microbatches=2"), (LLAMA, "pp=2,tp=2"), (MIXTURE, "ep=4"),
    (SCALED, "pp=2"), (GROUPED, "tp=2"), (LATENT, "tp=2,sp"), (GPT, "pp=3"), (GPT, "dp=2,fsdp=2,microbatches=2"),
    (LLAMA, "dp=2,zero2=2"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def ended():
    """Groups of ranks are garbage that lies in circles, and until it is found their threads wake up all the time."""
    yield
    gc.collect()


def on_threads(count, function):
    """What `function(rank)` returns on ranks that are threads of this process; they send by gloo, as processes do."""
    store, found, errors = dist.HashStore(), {}, []

    def rank(number):
        try:
            dist.init_process_group(
                "gloo", store=store, rank=number, world_size=count, timeout=datetime.timedelta(seconds=200)
            )
            found[number] = function(number)
            dist.barrier()
        except Exception as error:
            errors.append(error)
        finally:
            dist.destroy_process_group()

    # Threads take turns in Python: on two cores, to hand it over takes a third of the time.
    cores = os.sched_getaffinity(0) if sys.platform == "linux" else ()
    if cores:
        os.sched_setaffinity(0, {min(cores)})
    # Each thread gets groups of its own.
    multi_threaded_pg._install_threaded_pg()
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    try:
        threads = [threading.Thread(target=rank, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        torch._C._distributed_c10d._set_thread_isolation_mode(False)
        multi_threaded_pg._uninstall_threaded_pg()
        if cores:
            os.sched_setaffinity(0, cores)
    if errors:
        raise errors[0]
    return [found[number] for number in range(count)]


def models(config, count, **options):
    """So many decoders with the same weights, and none of them at its start, such as norms of ones and biases of zeros."""
    torch.manual_seed(0)
    made = [lm.DecoderOnly(config, **options) for _ in range(count)]
    with torch.no_grad():
        for parameter in made[0].parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    for model in made[1:]:
        model.load_state_dict(made[0].state_dict())
    return made


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("config", "layout"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.proof) for case in MORE)],
    ids=[layout for _, layout in CASES + MORE],
)
def test_every_layout_has_the_loss_and_the_gradients_of_one_model(config, layout):
    of = as_layout(layout)
    # Of three stages the one in the middle has a block more.
    config = dataclasses.replace(config, layers=2 * of.pp + of.pp // 3)
    *parts, alone = models(config, of.count + 1)
    x, y = torch.randint(config.vocab, (2, 2 * of.data_ranks * of.microbatches, 12))

    def rank(number):
        ranks = lm.parallelize(parts[number], layout)
        if of.pp > 1:
            assert type(ranks.schedule) is {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[of.schedule]
        optimizer, found = ranks.optimizer(sgd), []
        for _ in range(2):
            loss = float(ranks.backward(x, y))
            gradients = ranks.gathered(gradients=True)
            norm = float(ranks.clip(max_norm=1.0))
            optimizer.step()
            optimizer.zero_grad()
            found.append((loss, norm, gradients, ranks.gathered()))
        return found

    optimizer, wanted = sgd(alone.parameters()), []
    for _ in range(2):
        loss = lm.cross_entropy(alone(x), y)
        loss.backward()
        gradients = {name: parameter.grad.clone() for name, parameter in alone.named_parameters()}
        norm = float(lm.clip_gradients(alone.parameters(), max_norm=1.0))
        optimizer.step()
        optimizer.zero_grad()
        wanted.append((float(loss), norm, gradients, {k: v.detach().clone() for k, v in alone.named_parameters()}))
    for found in on_threads(len(parts), rank):
        for (loss, norm, *tensors), (their_loss, their_norm, *theirs) in zip(found, wanted, strict=True):
            assert (loss, norm) == pytest.approx((their_loss, their_norm), rel=1e-5)
            for ours, of_one in zip(tensors, theirs, strict=True):
                assert ours.keys() - {"head.weight"} == of_one.keys() - {"head.weight"}
                # All numbers in one comparison: thousands of tensors, and one costs as much.
                assert {name: ours[name].shape for name in of_one} == {name: one.shape for name, one in of_one.items()}
                in_a_row = (torch.cat([each[name].flatten() for name in of_one]) for each in (ours, of_one))
                torch.testing.assert_close(*in_a_row, rtol=1e-4, atol=2e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "layout",
    one_in(2, ["dp=2,fsdp=2,microbatches=3", "pp=2,fsdp=2,microbatches=4", "pp=2,fsdp=2,microbatches=3,schedule=gpipe",
               "pp=2,dp=2,fsdp=2", "tp=2,sp,microbatches=2", "tp=2"]),
)  # fmt: skip
def test_what_ranks_send_in_a_step_is_what_is_predicted(layout):
    """Shards are gathered in every micro-batch, their replicas add up once, and a block runs again without its backward."""
    of = as_layout(layout)
    checkpointing = of.tp > 1
    *parts, _ = models(LLAMA, of.count + 1, checkpointing=checkpointing)
    x, y = torch.randint(LLAMA.vocab, (2, of.global_batch(2), 16))

    def rank(number):
        ranks = lm.parallelize(parts[number], layout)
        optimizer = ranks.optimizer(sgd)
        for _ in range(2):  # in its first step a pipeline learns the shapes that it will send
            optimizer.zero_grad()
            with measure.collectives() as said:
                ranks.backward(x, y)
        return ranks.at["pp"], [each for each in said if each.size > 4]  # without the mean of the loss

    for stage, said in on_threads(of.count, rank):
        counted, predicted = Counter(), Counter()
        for each in said:
            counted[each.kind] += each.bytes
        how = {"layout": of, "stage": stage, "checkpointing": checkpointing}
        for wire, count in sent(program(LLAMA, batch=2, sequence=16, **how)):
            predicted[wire.kind] += count * wire.bytes
        assert counted == +predicted


@pytest.mark.filterwarnings("ignore")
def test_the_last_stage_of_a_pipeline_keeps_no_logits():
    *parts, _ = models(GPT, 3)
    x, y = torch.randint(GPT.vocab, (2, 12, 16))

    def rank(number):
        ranks, living = lm.parallelize(parts[number], "pp=2,microbatches=6"), []
        if ranks.module.last:
            ranks.module.register_forward_hook(lambda module, given, logits: living.append(weakref.ref(logits)))
        ranks.backward(x, y)
        return len(living), sum(logits() is not None for logits in living)

    (none, _), (made, kept) = on_threads(2, rank)
    assert none == 0 and made >= 6 and kept == 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", ["tp=2", "tp=2,sp", "zero1=2", "zero2=2", "fsdp=2", "dp=2", "pp=2"])
def test_what_is_frozen_stays_and_a_second_optimizer_takes_over(layout):
    *parts, alone = models(GPT, 3)
    x, y = torch.randint(61, (2, 4, 12))
    for part in parts:
        part.embedding.weight.requires_grad_(False)
        part.positions.weight.requires_grad_(False)
    before, outer = parts[0].embedding.weight.clone(), parts[0].positions.weight.clone()

    def rank(number):
        ranks = lm.parallelize(parts[number], layout)
        ranks.optimizer(sgd)
        optimizer = ranks.optimizer(sgd)
        ranks.backward(x, y)
        with pytest.raises(ValueError, match=r"still there: call optimizer.zero_grad\(\) first"):
            ranks.backward(x, y)
        gradients = ranks.gathered(gradients=True)
        optimizer.step()
        optimizer.zero_grad()
        return gradients, ranks.gathered()

    lm.cross_entropy(alone(x), y).backward()
    for gradients, after in on_threads(2, rank):
        assert torch.equal(after["embedding.weight"], before) and torch.equal(after["positions.weight"], outer)
        trained = [name for name, _ in alone.named_parameters() if name not in ("embedding.weight", "positions.weight")]
        assert set(gradients) == set(trained)
        for name, parameter in alone.named_parameters():
            if name in trained:
                torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=2e-6)


def test_positions_that_the_ranks_of_sp_cannot_divide_are_a_sentence():
    *parts, _ = models(LLAMA, 3)
    x = torch.randint(61, (2, 11))

    def rank(number):
        ranks = lm.parallelize(parts[number], "tp=2,sp")
        for call in (lambda: ranks(x), lambda: ranks.backward(x, x)):
            with pytest.raises(ValueError, match="sp over tp=2 does not divide a sequence of 11: the next .* 10 or 12"):
                call()

    on_threads(2, rank)


@pytest.mark.parametrize("layout", ["dp=2", "tp=2"])
def test_all_ranks_start_with_the_weights_of_the_first(layout):
    first, second = lm.DecoderOnly(GPT), lm.DecoderOnly(GPT)
    wanted = {name: parameter.detach().clone() for name, parameter in first.named_parameters()}

    def rank(number):
        ranks = lm.parallelize((first, second)[number], layout)
        return {
            name: parameter.detach().clone() for name, parameter in ranks.module.named_parameters()
        }, ranks.gathered()

    (own, gathered), (other, _) = on_threads(2, rank)
    assert layout == "tp=2" or all(torch.equal(own[name], other[name]) for name in own)
    assert all(torch.equal(gathered[name], tensor) for name, tensor in wanted.items())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", ["zero1=2", "zero2=2", "tp=2", "pp=2"])
def test_every_rank_resumes_from_a_checkpoint_of_its_own(layout, tmp_path):
    *parts, third, fourth = models(GPT, 4)
    x, y = torch.randint(61, (2, 4, 12))

    def trained(part, path, loads):
        ranks = lm.parallelize(part, layout)
        optimizer = ranks.optimizer(sgd)
        kept = {"model": ranks.module, "optimizer": getattr(optimizer, "inner", optimizer)}
        if loads:
            lm.load_checkpoint(path, **kept, restore_rng=False)
        for step in range(int(loads), 3):
            ranks.backward(x, y)
            optimizer.step()
            optimizer.zero_grad()
            if step == 0:
                lm.save_checkpoint(path, **kept)
        return ranks.gathered()

    for loads, pair in ((False, parts), (True, [third, fourth])):
        found = on_threads(
            2, lambda number, loads=loads, pair=pair: trained(pair[number], tmp_path / str(number), loads)
        )
        if not loads:
            wanted = found
    for name, tensor in wanted[0].items():
        assert torch.equal(found[0][name], tensor)


def test_a_second_batch_waits_until_the_gradients_of_the_first_are_gone():
    model, x = lm.DecoderOnly(LLAMA), torch.randint(61, (4, 16))
    ranks = lm.parallelize(model, "dp=1")
    optimizer = ranks.optimizer(sgd)
    ranks.backward(x, x)
    with pytest.raises(ValueError, match="give a larger batch or microbatches"):
        ranks.backward(x, x)
    optimizer.zero_grad()
    ranks.backward(x, x)


@pytest.mark.parametrize(
    ("config", "layout", "says"),
    [
        (LLAMA, "tp=3", "tp=3 does not divide 4 heads"),
        (GPT, "pp=3", "pp=3 needs a layer for each stage, and this model has 2"),
        (LLAMA, "dp=2", "a layout of 2 ranks, and 1 run: start 2 (torchrun --nproc-per-node 2)"),
        (dataclasses.replace(LLAMA, kv_heads=2), "tp=4", "a layout of 4 ranks"),
    ],
)
def test_what_does_not_fit_is_a_sentence(config, layout, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        lm.parallelize(lm.DecoderOnly(config), layout)


def test_what_predict_alone_knows_the_cost_of_is_refused():
    for config, layout, says in (
        (LLAMA, "cp=2", "cp=2 is supported by predict, but not by lm: leave cp out"),
        (dataclasses.replace(LLAMA, dropout=0.1), "tp=2", "the same dropout on shared activations: give a model"),
        (MIXTURE, "fsdp=2,ep=2", "ep with zero1, zero2, fsdp or pp is supported by predict, but lm runs it only"),
        (MIXTURE, "pp=2,ep=2", "ep with zero1, zero2, fsdp or pp is supported by predict, but lm runs it only"),
        (
            GROUPED,
            "tp=4",
            "tp=4 is more than the 2 key/value heads, which predict supports, but lm does not. Give tp=2",
        ),
        (MIXTURE, "tp=2", "tp=2 of a model with experts is supported by predict"),
        (
            LLAMA,
            "pp=2,microbatches=1",
            "1F1B with fewer micro-batches (1) than stages (2) is supported by predict, but not by torch: give "
            "microbatches=2 or more, or schedule=gpipe",
        ),
        (
            dataclasses.replace(LLAMA, qk_norm="head"),
            "tp=2",
            "tp=2 of a model with norms of queries and keys is supported",
        ),
        (
            dataclasses.replace(LLAMA, inner_norms=True),
            "tp=2",
            "a model with norms inside attention or MLP is supported",
        ),
    ):
        layout = as_layout(layout)
        with pytest.raises(ValueError, match=re.escape(says)):
            check_runnable(lm.DecoderOnly(config), layout, layout.count)
    for config, layout in (
        (dataclasses.replace(LLAMA, dropout=0.1), "dp=2"),
        (MIXTURE, "dp=2,ep=2"),
        (MIXTURE, "pp=2"),
        (LLAMA, "pp=2,microbatches=1,schedule=gpipe"),
    ):
        check_runnable(lm.DecoderOnly(config), as_layout(layout), as_layout(layout).count)
    with pytest.raises(ValueError, match="only a DecoderOnly can be parallelized, got Linear"):
        lm.parallelize(torch.nn.Linear(1, 1), "dp=1")


def test_a_process_of_torchrun_takes_the_gpu_of_its_number(monkeypatch):
    taken = []
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **options: taken.append((backend, options)))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: taken.append("left"))
    monkeypatch.setenv("LOCAL_RANK", "3")
    gpu = torch.device("cuda", 3)
    with joined("cuda") as where:
        assert where == gpu and taken == [gpu]
    monkeypatch.setenv("WORLD_SIZE", "4")
    with joined("cuda"):
        assert taken[1:] == [gpu, ("nccl", {"device_id": gpu})]
    with joined("cpu") as where:
        assert where == torch.device("cpu")
    assert taken[3:] == ["left", ("gloo", {}), "left"]


def test_one_rank_needs_no_process_group_and_is_the_model_itself():
    torch.manual_seed(0)
    model = lm.DecoderOnly(LLAMA)
    x, y = torch.randint(61, (2, 4, 16))
    ranks = lm.parallelize(model, "microbatches=2")
    assert torch.allclose(ranks.backward(x, y), lm.cross_entropy(model(x), y))
    assert torch.equal(ranks(x), model(x))
    assert set(ranks.gathered(gradients=True)) == {name for name, _ in model.named_parameters()}
    with pytest.raises(ValueError, match="give a multiple of 2"):
        ranks.backward(x[:3], y[:3])
    longer = torch.randint(61, (4, 17))
    for call in (lambda: ranks(longer), lambda: ranks.backward(longer, longer)):
        with pytest.raises(ValueError, match="17 positions are more than the model's context of 16: shorten them"):
            call()


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (GPT, {"approximate": "tanh", "norm_eps": 0.1, "checkpointing": True}),
        (LLAMA, {"rope_pairs": "neighbours", "rope_base": 7.0, "attention": "sdpa", "dtype": torch.bfloat16}),
    ],
)
def test_a_part_of_a_model_computes_as_the_model_does(config, options):
    *parts, alone = models(config, 3, **options)
    x = torch.randint(61, (2, 12))
    expected = alone(x)

    def rank(number):
        part = lm.parallelize(parts[number], "tp=2").module
        return part(x), part.checkpointing, part.blocks[0].attention.method

    (first, *has), (second, *_) = on_threads(2, rank)
    assert has == [alone.checkpointing, alone.blocks[0].attention.method] and first.dtype == expected.dtype
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if first.dtype == torch.float32 else {"rtol": 0.05, "atol": 0.05}
    torch.testing.assert_close(torch.cat([first, second], dim=-1)[..., :61], expected, **tolerance)


# e to the power of 300 is infinite in fp32. With five tokens, the last of four ranks has padding alone.
@pytest.mark.parametrize(("vocab", "ranks", "columns", "scale"), [(7, 2, 4, 300), (5, 4, 2, 1)])
def test_the_loss_of_a_divided_vocabulary_survives_large_logits_and_padding(vocab, ranks, columns, scale):
    torch.manual_seed(0)
    logits, targets = scale * torch.randn(20, vocab), torch.randint(vocab, (20,))
    whole, padding = logits.clone().requires_grad_(), (0, ranks * columns - vocab)
    expected = lm.cross_entropy(whole, targets)
    (3 * expected).backward()

    def rank(number):
        mine = torch.nn.functional.pad(logits, padding)[:, columns * number : columns * (number + 1)].requires_grad_()
        loss = VocabularyLoss.apply(mine, targets, Ranks(None, ranks, number, sp=False), vocab)
        (3 * loss).backward()
        return loss.detach(), mine.grad

    losses, gradients = zip(*on_threads(ranks, rank), strict=True)
    assert len({float(loss) for loss in losses}) == 1 and losses[0] == pytest.approx(float(expected.detach()))
    torch.testing.assert_close(torch.cat(gradients, dim=1), torch.nn.functional.pad(whole.grad, padding))


def test_tokens_of_other_ranks_have_no_row():
    # Rows 4 to 7 are here.
    assert _own(torch.tensor([3, 4, 7, 8, 0]), 4, 4).tolist() == [-1, 0, 3, -1, -1]


def test_a_gradient_that_is_short_already_stays_as_it_is():
    model = lm.DecoderOnly(LLAMA)
    ranks = lm.parallelize(model, "dp=1")
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    model.head.weight.grad[0, 0] = 5e-7
    assert float(ranks.clip(max_norm=1.0)) == pytest.approx(5e-7)
    assert float(model.head.weight.grad[0, 0]) == pytest.approx(5e-7)


@pytest.mark.parametrize(("checkpointing", "grad", "calls"), [(True, True, 2), (False, True, 1), (True, False, 1)])
def test_with_checkpointing_a_block_runs_again_in_backward_alone(checkpointing, grad, calls):
    model, counted = lm.DecoderOnly(LLAMA, checkpointing=checkpointing), []
    ranks = lm.parallelize(model, "dp=1")
    model.blocks[0].mlp.register_forward_pre_hook(lambda *_: counted.append(1))
    with torch.set_grad_enabled(grad):
        logits = ranks(torch.zeros(1, 4, dtype=torch.long))
    if grad:
        logits.sum().backward()
    assert len(counted) == calls


RUN = {"batch": 4, "sequence": 8, "steps": 4, "max_lr": 0.02}


def test_one_process_with_a_layout_trains_as_one_without(monkeypatch, capsys):
    data = torch.randint(61, (300,), generator=torch.Generator().manual_seed(0)).numpy()
    monkeypatch.setattr(time, "process_time", itertools.count(5).__next__)
    one, other = (
        lm.pretrain(LLAMA, data=data, layout=layout, progress=True, **RUN) for layout in (None, "microbatches=2")
    )
    assert other.losses == pytest.approx(one.losses, rel=1e-5) and other.losses[-1] != other.losses[0]
    assert other.validation_loss == pytest.approx(one.validation_loss, rel=1e-5)
    assert one.seconds == other.seconds == 1 and other.tokens == one.tokens
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 8 and said[3].startswith("train 4/4 steps (100 %)") and said[4:] == said[:4]
    tied = lm.pretrain(GPT, data=data, layout="dp=1", **RUN)
    assert not capsys.readouterr().err
    assert tied.losses == pytest.approx(lm.pretrain(GPT, data=data, **RUN).losses, rel=1e-5)


def test_tables_of_angles_are_no_part_of_what_is_stored():
    stored = lm.parallelize(lm.DecoderOnly(LLAMA), "dp=1").module.state_dict()
    assert stored and not any(name.endswith(("sine", "cosine")) for name in stored)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_no_number_ends_a_run_of_ranks(monkeypatch, bad):
    monkeypatch.setattr(lm.Parallel, "backward", lambda *_: torch.tensor(bad))
    data = torch.zeros(300, dtype=torch.long).numpy()
    with pytest.raises(FloatingPointError, match=f"the loss is {bad} in step 0 .*Lower the learning rate"):
        lm.pretrain(LLAMA, data=data, layout="dp=1", **RUN)


def test_what_ranks_cannot_train_is_a_sentence():
    data = torch.zeros(300, dtype=torch.long).numpy()
    with pytest.raises(
        ValueError, match="ranks can train in fp32, tf32, bf16, not in 'autocast': change it, or leave out layout"
    ):
        lm.pretrain(LLAMA, data=data, layout="dp=1", precision="autocast", **RUN)
    with pytest.raises(ValueError, match="a layout of 2 ranks, and 1 run"):
        lm.pretrain(LLAMA, data=data, layout="dp=2", **RUN)
    with pytest.raises(
        FloatingPointError, match="the gradients' norm is nan while .* in step 1 .*Lower the learning rate"
    ):
        lm.pretrain(LLAMA, data=data, layout="dp=1", **RUN | {"max_lr": 1e30})


@pytest.mark.proof
def test_torchrun_trains_on_two_ranks_as_one_process_does(tmp_path):
    asked = ["--layers=2", "--d-model=16", "--heads=2", "--steps=4", "--batch=4", "--sequence=8", "--threads=1"]
    text = tmp_path / "text.txt"
    text.write_text("to predict is to count before it runs. " * 12, encoding="utf-8")
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d"]
    run += ["--rdzv-endpoint=localhost:0", "-m", "cs336kit", "train", *asked, f"--data={text}"]
    run += ["--layout=tp=2,sp,microbatches=2", f"--out={tmp_path / 'run.json'}"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=200, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("held out") == 1 and done.stderr.count("train 4/4 steps (100 %)") == 1
    found = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    config = TransformerConfig.from_dict(found["config"])
    names = ("batch", "sequence", "steps", "max_lr", "seed")
    alone = lm.pretrain(config, data=lm.encode(text.read_text("utf-8")), **{name: found[name] for name in names})
    assert found["losses"] == pytest.approx(alone.losses, abs=1e-4)
    assert found["validation_loss"] == pytest.approx(alone.validation_loss, abs=1e-4)

import numpy as np
import pytest
import torch

from cs336kit.lm import Batches, TokenFile, get_batch, prefetch

pytestmark = pytest.mark.torch


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(params=["uint8", "uint16", "uint32", "int64", "tensor", "file", "every other"])
def tokens(request, tmp_path):
    if request.param == "file":
        return TokenFile.write(tmp_path / "t", list(range(100)), vocab=1000)
    if request.param == "tensor":
        return torch.arange(100)
    if request.param == "every other":
        return np.repeat(np.arange(100), 2)[::2]
    return np.arange(100, dtype=request.param)


def test_y_is_one_token_ahead(tokens):
    x, y = get_batch(tokens, batch=6, sequence=8, generator=generator())
    assert x.shape == y.shape == (6, 8) and x.dtype == y.dtype == torch.int64
    assert x.is_contiguous() and y.is_contiguous()
    assert (
        x.untyped_storage().nbytes() == 2 * 6 * 8 * 8
    )  # both stand in one piece of memory, which has room for no more
    assert torch.equal(y, x + 1)  # the tokens count up, so the next token is the token plus one
    assert torch.equal(x, x[:, :1] + torch.arange(8))


def test_every_start_is_reached_and_none_runs_past_the_end():
    data = np.arange(12)
    x, y = get_batch(data, batch=2000, sequence=4, generator=generator())
    assert sorted(set(x[:, 0].tolist())) == list(range(8))
    assert int(y.max()) == 11


def test_one_possible_start():
    x, y = get_batch(np.arange(5), batch=3, sequence=4, generator=generator())
    assert x.tolist() == [[0, 1, 2, 3]] * 3 and y.tolist() == [[1, 2, 3, 4]] * 3


@pytest.mark.parametrize("length", [0, 1, 4])
def test_too_short_data(length):
    with pytest.raises(ValueError, match=f"sequence=4 needs 5 tokens.*the data have {length}"):
        get_batch(np.arange(length), batch=1, sequence=4, generator=generator())


def test_only_its_generator_is_drawn_from():
    before = torch.get_rng_state()
    a = get_batch(np.arange(100), batch=4, sequence=5, generator=generator(1))
    b = get_batch(np.arange(100), batch=4, sequence=5, generator=generator(1))
    c = get_batch(np.arange(100), batch=4, sequence=5, generator=generator(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(a[0], b[0]) and not torch.equal(a[0], c[0])


def test_bad_arguments():
    for bad in (dict(batch=0), dict(sequence=2.5), dict(generator=None), dict(generator=7)):
        with pytest.raises(ValueError, match=next(iter(bad))):
            get_batch(np.arange(100), **{"batch": 1, "sequence": 4, "generator": generator(), **bad})
    for tokens in (np.zeros((4, 4)), "a text"):
        with pytest.raises(ValueError, match=r"one row of whole numbers.* for a text, give encode\(text\)"):
            get_batch(tokens, batch=1, sequence=2, generator=generator())


def test_position_is_saved_and_restored():
    batches = Batches(np.arange(100), batch=2, sequence=5, seed=3)
    next(batches), next(batches)
    state = batches.state_dict()
    expected = [next(batches)[0] for _ in range(3)]
    fresh = Batches(np.arange(100), batch=2, sequence=5, seed=99)
    fresh.load_state_dict(state)
    assert fresh.drawn == 2
    assert all(torch.equal(next(fresh)[0], x) for x in expected)


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_prefetch_yields_every_batch_once_and_in_order(n):
    source = [(torch.tensor([i]), torch.tensor([i + 1])) for i in range(n)]
    assert [int(x) for x, _ in prefetch(source, device="cpu")] == list(range(n))


def test_prefetch_is_one_batch_ahead():
    batches = Batches(np.arange(100), batch=2, sequence=5, seed=3)
    next(prefetch(batches, device="cpu"))
    assert batches.drawn == 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_batch_equals_the_cpu_batch():
    there = get_batch(np.arange(100), batch=4, sequence=5, generator=generator(), device="cuda")
    here = get_batch(np.arange(100), batch=4, sequence=5, generator=generator())
    assert all(torch.equal(a.cpu(), b) for a, b in zip(there, here, strict=True))
    moved = list(prefetch([here] * 3, device="cuda"))
    assert len(moved) == 3 and all(torch.equal(x.cpu(), here[0]) for x, _ in moved)

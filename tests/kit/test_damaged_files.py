"""Files that were damaged, cut, lengthened or made up: what is read is what was written, or a sentence, and nothing is lost."""

import contextlib
import io
import pickle
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cs336kit.lm.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from cs336kit.lm.tokens import TokenFile, TokenFileError

pytestmark = [pytest.mark.torch, pytest.mark.fuzz]

DAMAGE = st.lists(
    st.tuples(st.sampled_from(["flip", "cut", "insert", "repeat"]), st.floats(0, 1), st.binary(min_size=1, max_size=9)),
    min_size=1, max_size=3,
)  # fmt: skip


def damaged(data, damage):
    """The bytes after each damage: where it is stands as a share of the length."""
    for kind, share, piece in damage:
        at = int(share * (len(data) - 1)) if data else 0
        if kind == "flip":
            turned = bytes(a ^ b for a, b in zip(data[at : at + len(piece)], piece, strict=False))
            data = data[:at] + turned + data[at + len(piece) :]
        elif kind == "cut":
            data = data[:at] + data[at + len(piece) :] if piece[0] % 2 else data[:at]
        elif kind == "insert":
            data = data[:at] + piece + data[at:]
        else:
            data = data + data[at : at + 64]
    return data


def trained(seed):
    """A model that has made a step, and its optimizer."""
    torch.manual_seed(seed)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def state(model, optimizer):
    """Everything in them, as text."""
    return repr((model.state_dict(), optimizer.state_dict(), torch.get_rng_state().sum()))


@pytest.fixture(scope="module")
def checkpoint():
    """The bytes of a checkpoint, and the state that it holds."""
    file, (model, optimizer) = io.BytesIO(), trained(1)
    save_checkpoint(file, model=model, optimizer=optimizer, step=7)
    return file.getvalue(), state(model, optimizer)


@given(damage=DAMAGE)
def test_a_damaged_checkpoint_is_refused_whole_or_harmless(checkpoint, damage):
    whole, held = checkpoint
    model, optimizer = trained(2)
    before = state(model, optimizer)
    try:
        assert load_checkpoint(io.BytesIO(damaged(whole, damage)), model=model, optimizer=optimizer)["step"] == 7
    except CheckpointError as error:
        assert len(str(error)) > 15 and state(model, optimizer) == before
    else:
        assert state(model, optimizer) == held


@given(st.one_of(st.binary(max_size=200), st.builds(pickle.dumps, st.dictionaries(st.text(max_size=3), st.integers()))))
def test_what_is_no_checkpoint_is_refused(content):
    with pytest.raises(CheckpointError):
        load_checkpoint(io.BytesIO(content), model=trained(2)[0])
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("archive/data.pkl", content)
    with pytest.raises(CheckpointError):
        load_checkpoint(io.BytesIO(packed.getvalue()), model=trained(2)[0])


@given(st.lists(st.integers(0, 299), max_size=40), DAMAGE)
def test_a_damaged_token_file_is_refused_or_harmless(tmp_path_factory, tokens, damage):
    path = tmp_path_factory.getbasetemp() / "damaged.tokens"
    TokenFile.write(path, np.array(tokens, dtype=np.int64), vocab=300)
    path.write_bytes(damaged(path.read_bytes(), damage))
    try:
        file = TokenFile(path)
        file.verify()
    except TokenFileError as error:
        assert len(str(error)) > 15
    else:
        assert file[:].tolist() == tokens and file.vocab == 300


PIECES = st.lists(
    st.one_of(st.integers(-2, 400), st.floats(), st.none(), st.text(max_size=2), st.booleans()), max_size=6
)


@given(st.lists(PIECES, max_size=3), st.one_of(st.integers(-1, 2**33), st.none(), st.floats()))
def test_writing_what_are_no_tokens_loses_nothing(tmp_path_factory, pieces, vocab):
    path = tmp_path_factory.getbasetemp() / "kept.tokens"
    TokenFile.write(path, np.arange(5), vocab=300)
    with contextlib.suppress(ValueError):
        TokenFile.write(path, pieces, vocab=vocab)
        flat = [token for piece in pieces for token in piece]
        assert TokenFile(path)[:].tolist() == flat
        return
    assert TokenFile(path)[:].tolist() == [0, 1, 2, 3, 4]
    with contextlib.suppress(ValueError):
        TokenFile.append(path, pieces)
    with contextlib.suppress(TokenFileError):
        assert TokenFile(path)[:5].tolist() == [0, 1, 2, 3, 4]

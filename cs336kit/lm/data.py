"""Text, tokens, batches: the course's own text, one token per byte, and batches of shifted sequences."""

from collections.abc import Iterable, Iterator
from importlib.resources import files
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from cs336kit.lm.tokens import TokenFile
from cs336kit.predict.checks import positive_int

#: Number of different tokens of the byte-level tokenizer.
BYTE_VOCAB = 256
Tokens: TypeAlias = TokenFile | np.ndarray | Tensor
Batch = tuple[Tensor, Tensor]


def course_text() -> str:
    """Return the text that ships with the course: the Python language reference by topic, frozen, 466 kB.

    Its provenance and its license are beside it, in cs336kit/lm/corpus.
    """
    return (files("cs336kit.lm") / "corpus" / "python_reference.txt").read_bytes().decode("utf-8")


def encode(text: str) -> np.ndarray:
    """Return the UTF-8 bytes of `text` as tokens (uint8, vocabulary 256): 1 to 4 per character."""
    if not isinstance(text, str):
        raise TypeError(f"encode takes a str, got {type(text).__name__}. Bytes are tokens already: numpy.frombuffer.")
    return np.frombuffer(text.encode("utf-8"), dtype=np.uint8)


def decode(tokens: Any) -> str:
    """Return the text of byte-level `tokens`; invalid UTF-8, such as half a character, becomes U+FFFD."""
    tokens = np.asarray(tokens)
    if tokens.size and (tokens.dtype.kind not in "iu" or tokens.min() < 0 or tokens.max() >= BYTE_VOCAB):
        raise ValueError(
            f"decode takes whole numbers from 0 to 255, got {tokens.dtype} from {tokens.min()} to {tokens.max()}."
        )
    return tokens.astype(np.uint8).tobytes().decode("utf-8", errors="replace")


def get_batch(
    tokens: Tokens, *, batch: int, sequence: int, generator: torch.Generator, device: torch.device | str = "cpu"
) -> Batch:
    """Draw `batch` sequences at random starts and return (x, y), each (B, S) of int64, with y one token ahead of x.

    A sequence takes S + 1 tokens, so the starts run from 0 to len(tokens) - S - 1, both included, and none runs past
    the end. Only `generator` (on the CPU) is used, never the global one. For a GPU the batch is put in pinned memory and
    copied with `non_blocking=True`: the call returns before the copy has ended, and kernels queued later wait for it.
    Raises ValueError if the data are shorter than one sequence and its target.
    """
    positive_int("batch", batch)
    positive_int("sequence", sequence)
    if not isinstance(generator, torch.Generator):
        raise ValueError(
            f"generator must be a torch.Generator, such as torch.Generator().manual_seed(0); got {generator!r}."
        )
    data = np.ascontiguousarray(_row(tokens, sequence))  # a copy only if the tokens are not contiguous
    starts_available = len(data) - sequence
    starts = torch.randint(starts_available, (batch,), generator=generator, device="cpu").numpy()
    # Every window of S + 1 tokens, as a view: row i starts at token i. Picking rows copies B·(S + 1) tokens and reads
    # nothing else. The ndarray constructor takes a tenth of the time of as_strided, which matters for small batches.
    step = data.itemsize
    windows = np.ndarray((starts_available, sequence + 1), data.dtype, buffer=data, strides=(step, step))
    picked = windows[starts]
    on_gpu = torch.device(device).type == "cuda"
    both = torch.empty((2, batch, sequence), dtype=torch.int64, device="cpu", pin_memory=on_gpu)
    pair = both.numpy()
    pair[0], pair[1] = picked[:, :-1], picked[:, 1:]
    both = both.to(device, non_blocking=on_gpu)
    return both[0], both[1]


def _row(tokens: Tokens, sequence: int) -> np.ndarray:
    """The tokens as an array, long enough for one sequence and its target."""
    data = np.asarray(tokens.tokens if isinstance(tokens, TokenFile) else tokens)  # a memory map: the same pages
    if data.ndim != 1 or data.dtype.kind not in "iu":
        raise ValueError(
            f"tokens must be one row of whole numbers, got {data.dtype} of shape {data.shape}: for a text, give encode(text)."
        )
    if len(data) <= sequence:
        raise ValueError(
            f"sequence={sequence} needs {sequence + 1} tokens (its target is one token ahead), and "
            f"the data have {len(data)}. Take a shorter sequence or more data."
        )
    return data


class Batches(Iterator[Batch]):
    """An endless iterator of `get_batch`, whose position can be saved and restored.

    `state_dict()` holds the generator's state and the number of batches drawn, which is all that a checkpoint needs to
    continue with the batch that would have come next.
    """

    def __init__(self, tokens: Tokens, *, batch: int, sequence: int, seed: int, device: torch.device | str = "cpu"):
        self.batch, self.sequence = positive_int("batch", batch), positive_int("sequence", sequence)
        _row(tokens, sequence)
        self.tokens, self.device = tokens, device
        self.generator = torch.Generator().manual_seed(seed)
        self.drawn = 0

    def __next__(self) -> Batch:
        self.drawn += 1
        shape = {"batch": self.batch, "sequence": self.sequence}
        return get_batch(self.tokens, **shape, generator=self.generator, device=self.device)

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state(), "drawn": self.drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"])
        self.drawn = state["drawn"]


def prefetch(batches: Iterable[Batch], *, device: torch.device | str) -> Iterator[Batch]:
    """Yield the batches on `device`, having started the copy of the next one before handing over the current one.

    On a GPU the copy runs on a stream of its own, in parallel with the work on the current batch, if the batch is in
    pinned memory. Every batch is yielded once and in order. The source is one batch ahead of what was yielded: keep this
    in mind when you save its position.
    """
    device = torch.device(device)
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None
    ahead = None
    for batch in batches:
        with torch.cuda.stream(stream):  # no effect when there is no stream
            moved: Any = tuple(tensor.to(device, non_blocking=True) for tensor in batch)
        if ahead is not None:
            yield ahead
        if stream is not None:
            torch.cuda.current_stream(device).wait_stream(stream)
            for tensor in moved:
                tensor.record_stream(torch.cuda.current_stream(device))
        ahead = moved
    if ahead is not None:
        yield ahead

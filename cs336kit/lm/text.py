"""The course's own text, and the tokenizer that needs no training: one token per byte."""

from importlib.resources import files

import numpy as np

#: Number of different tokens of the byte-level tokenizer.
BYTE_VOCAB = 256


def course_text() -> str:
    """Return the text that ships with the course: the Python language reference by topic, frozen, 466 kB.

    Where it comes from and under which licence stands beside it, in cs336kit/lm/corpus.
    """
    return (files("cs336kit.lm") / "corpus" / "python_reference.txt").read_bytes().decode("utf-8")


def encode(text: str) -> np.ndarray:
    """Return the UTF-8 bytes of `text` as tokens (uint8, vocabulary 256): 1 to 4 a character."""
    if not isinstance(text, str):
        raise TypeError(f"encode takes a str, got {type(text).__name__}. Bytes are tokens already: numpy.frombuffer.")
    return np.frombuffer(text.encode("utf-8"), dtype=np.uint8)


def decode(tokens) -> str:
    """Return the text of byte-level `tokens`; what is no UTF-8, such as half a character, becomes U+FFFD."""
    tokens = np.asarray(tokens)
    if tokens.size and (tokens.dtype.kind not in "iu" or tokens.min() < 0 or tokens.max() >= BYTE_VOCAB):
        raise ValueError(
            f"decode takes whole numbers from 0 to 255, got {tokens.dtype} from {tokens.min()} to {tokens.max()}."
        )
    return tokens.astype(np.uint8).tobytes().decode("utf-8", errors="replace")

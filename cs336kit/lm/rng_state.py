"""The states of every global random generator, as tensors and plain values."""

import random

import numpy as np
import torch


def rng_state() -> dict:
    """Return the states of Python's, NumPy's and torch's global generators, those of all GPUs included."""
    version, internal, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "python": [version, torch.tensor(internal), gauss],
        "numpy": [kind, torch.tensor(keys.tolist()), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_rng_state(state: dict) -> None:
    """Put back what `rng_state` returned. States of GPUs that this machine lacks are left out."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal.tolist()), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, np.array(keys.tolist(), dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])

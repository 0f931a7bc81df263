"""One seed for every global random stream that a training run may draw from."""

import random

import numpy as np
import torch

from cs336kit.predict._common.checks import non_negative_int


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and torch's global generators, the last one on the CPU and on every GPU.

    What it does not fix:
    - streams of your own (`torch.Generator`, `numpy.random.default_rng`): seed each where you make it;
    - `DataLoader` workers, whose NumPy seeds are set by `worker_init_fn` and `generator`;
    - the order of additions: another number of threads, another device or another version of torch may round otherwise,
      and some CUDA kernels add in no fixed order unless `torch.use_deterministic_algorithms(True)` is on;
    - hashes of strings, which Python fixes at its start (`PYTHONHASHSEED`).

    A seed outside 0 … 2**32 - 1 (NumPy's range) raises ValueError.
    """
    seed = non_negative_int("seed", seed)
    if seed >= 2**32:
        raise ValueError(f"seed must be below 2**32 = {2**32}, because NumPy takes 32 bits; got {seed}.")
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)  # seeds the generators of all CUDA devices too

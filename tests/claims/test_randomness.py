"""Claims about seeds and generators."""

import random

import numpy
import torch
from claims.settled import settles


def seed_three_places():
    random.seed(7)
    numpy.random.seed(7)
    torch.manual_seed(7)


@settles("seed-three-places")
def test_seed_three_places():
    def same(draw):
        draws = []
        for _ in range(2):
            seed_three_places()
            draws.append(draw())
        return draws[0] == draws[1]

    global_streams = same(lambda: (random.random(), numpy.random.rand(), torch.rand(()).item()))
    # A generator of its own is seeded by nobody: 2⁻⁵³ is the chance of the same number twice.
    return True, global_streams, same(lambda: numpy.random.default_rng().random())


@settles("separate-generators")
def test_separate_generators():
    # Five draws of the global stream, and the same five with a thousand of another generator in between.
    def draws(in_between):
        torch.manual_seed(0)
        found = []
        for _ in range(5):
            found.append(torch.rand(()).item())
            torch.rand(in_between, generator=torch.Generator().manual_seed(1))
        return found

    return draws(0), draws(1000)


@settles("seed-per-use")
def test_seed_per_use():
    # Whether the data stay the same when somebody draws noise first: with a stream for each use, and with one for both.
    def data_stay(data, noise):
        draws = []
        for first in (0, 1000):
            data.manual_seed(0)
            torch.rand(first, generator=noise)
            draws.append(torch.randint(100, (5,), generator=data).tolist())
        return draws[0] == draws[1]

    one, other = torch.Generator().manual_seed(0), torch.Generator().manual_seed(1)
    return (True, False), (data_stay(one, other), data_stay(one, one))

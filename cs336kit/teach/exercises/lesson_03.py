"""Exercises of lesson 03: tensors and devices."""

import math

from cs336kit.teach.exercises.core import Case, Exercise, Mistake

# --- 03.1: gibibytes of a tensor -------------------------------------------------------------------------------------


def gibibytes(shape, bits):
    return math.prod(shape) * bits / 8 / 2**30


_GIBIBYTES = Exercise(
    id="03.1",
    reference=gibibytes,
    cases=lambda: [
        Case(((12288, 49152), 32), label="GPT-3's feed-forward matrix in fp32"),
        Case(((8, 2048, 4096), 16), label="activations of 8 × 2048 tokens in bf16"),
        Case(((5, 7, 3), 8), label="105 bytes"),
        Case(((4096, 4096), 4), label="an fp4 matrix"),
        Case(((), 64), label="a single fp64 number"),
    ],
    mistakes=(
        Mistake(
            lambda shape, bits: math.prod(shape) * bits / 2**30,
            "These are gibibits: for {case} you returned {given}. Eight bits make a byte.",
        ),
        Mistake(
            lambda shape, bits: math.prod(shape) * bits / 8 / 1e9,
            "This is GB: for {case} you returned {given}. A GiB is 2³⁰ bytes, 7 % more than 10⁹.",
        ),
        Mistake(
            lambda shape, bits: math.prod(shape) * 4 / 2**30,
            "You took 4 bytes for every dtype: for {case} you returned {given}.",
        ),
        Mistake(
            lambda shape, bits: sum(shape) * bits / 8 / 2**30,
            "The sizes are added: for {case} you returned {given}. A tensor has the product of its sizes as elements.",
        ),
        Mistake(
            lambda shape, bits: math.prod(shape) / 2**30,
            "This is the number of elements over 2³⁰: for {case} you returned {given}. An element has bits / 8 bytes.",
        ),
        Mistake(
            lambda shape, bits: math.prod(shape) * (bits // 8) / 2**30,
            "You made whole bytes of an element first: for {case} you returned {given}. Two fp4 numbers share a byte; "
            "divide at the end.",
        ),
        Mistake(
            lambda shape, bits: math.prod(shape) * bits / 8 / 2**20,
            "This is MiB: for {case} you returned {given}. A GiB is 2³⁰ bytes.",
        ),
        Mistake(
            lambda shape, bits: math.prod(shape[:2]) * bits / 8 / 2**30,
            "You took two axes: for {case} you returned {given}. A tensor may have any number of them.",
        ),
    ),
    hints=(
        "How many elements are there, and how many bytes is one?",
        "Elements: the product of the sizes (1 for no axes). Bytes: bits ÷ 8. A GiB has 2³⁰ bytes.",
        "return math.prod(shape) * bits / ___ / 2**___",
    ),
    checked="GPT-3's matrix, bf16 activations, a tensor of 105 bytes, an fp4 matrix and a single number.",
)

# --- 03.2: what the allocator counts ---------------------------------------------------------------------------------


def allocated(sizes):
    return sum(-(-size // 512) * 512 for size in sizes)


_ALLOCATED = Exercise(
    id="03.2",
    reference=allocated,
    cases=lambda: [
        Case(([4096, 4096],), label="two 32 × 32 fp32 matrices"),
        Case(([4, 4, 4],), label="three fp32 scalars"),
        Case(([512, 513],), label="512 and 513 bytes"),
        Case(([],), label="nothing"),
        Case(([1000, 0, 2000],), label="1000, 0 and 2000 bytes"),
    ],
    mistakes=(
        Mistake(
            sum,
            "You added the requests as they are: for {case} you returned {given}. Every block is a multiple of 512.",
        ),
        Mistake(
            lambda sizes: -(-sum(sizes) // 512) * 512,
            "You rounded the sum: for {case} you returned {given}. Each tensor gets a block of its own, rounded by itself.",
        ),
        Mistake(
            lambda sizes: sum(size // 512 * 512 for size in sizes),
            "You rounded down: for {case} you returned {given}. A block must hold the request.",
        ),
        Mistake(
            lambda sizes: sum((size // 512 + 1) * 512 for size in sizes),
            "A multiple of 512 is pushed up to the next one: for {case} you returned {given}. 512 bytes fit into 512.",
        ),
        Mistake(
            lambda sizes: sum(max(size, 512) for size in sizes),
            "You made 512 the least and left the rest: for {case} you returned {given}. 513 bytes take two units.",
        ),
        Mistake(
            lambda sizes: sum(max(512, -(-size // 512) * 512) for size in sizes),
            "An empty tensor got a block: for {case} you returned {given}. Nothing is allocated for 0 bytes.",
        ),
        Mistake(
            lambda sizes: 512 * len(sizes),
            "One unit for each tensor, however large: for {case} you returned {given}. 4096 bytes take eight.",
        ),
        Mistake(
            lambda sizes: 2 * 2**20 if sizes else 0,
            "That is what is reserved, a segment of 2 MiB: for {case} you returned {given}. The blocks in it were asked for.",
        ),
    ),
    hints=(
        "What does one tensor of 4 bytes cost, and what do three of them cost?",
        "Round each size up to a multiple of 512 (0 stays 0), then add.",
        "return sum(-(-size // ___) * ___ for size in sizes)",
    ),
    checked="two matrices, three scalars, sizes at and above a multiple, an empty tensor and an empty list.",
)

# --- 03.3: seconds over a link ---------------------------------------------------------------------------------------


def copy_seconds(size_bytes, gigatransfers, lanes):
    return size_bytes / (gigatransfers * 1e9 * lanes * 128 / 130 / 8)


_COPY = Exercise(
    id="03.3",
    reference=copy_seconds,
    cases=lambda: [
        Case((141_107_412_992, 32, 16), label="70B weights in bf16 over PCIe 5.0 x16"),
        Case((2**30, 16, 16), label="1 GiB over PCIe 4.0 x16"),
        Case((2**30, 8, 4), label="1 GiB over PCIe 3.0 x4"),
    ],
    mistakes=(
        Mistake(
            lambda n, rate, lanes: n / (rate * 1e9 * lanes * 128 / 130),
            "Bits are taken for bytes: for {case} you returned {given}, 8 times too fast. A lane carries one bit per "
            "transfer.",
        ),
        Mistake(
            lambda n, rate, lanes: n / (rate * 1e9 * lanes / 8),
            "The coding is missing: for {case} you returned {given}. Of every 130 bits on the wire, 128 are data.",
        ),
        Mistake(
            lambda n, rate, lanes: copy_seconds(n, rate, lanes) / 2,
            "You counted both directions: for {case} you returned {given}. A copy goes one way.",
        ),
        Mistake(
            lambda n, rate, lanes: copy_seconds(n, rate, 1),
            "Only one lane is used: for {case} you returned {given}.",
        ),
        Mistake(
            lambda n, rate, lanes: n / (rate * 2**30 * lanes * 128 / 130 / 8),
            "A gigatransfer is 10⁹ transfers, not 2³⁰: for {case} you returned {given}.",
        ),
        Mistake(
            lambda n, rate, lanes: n / (rate * lanes * 128 / 130 / 8),
            "The giga is missing: for {case} you returned {given}. A gigatransfer is 10⁹ transfers.",
        ),
        Mistake(
            lambda n, rate, lanes: n / (rate * 1e9 * lanes * 130 / 128 / 8),
            "The coding is upside down: for {case} you returned {given}. It makes a link slower: 128 of 130 bits are data.",
        ),
        Mistake(
            lambda n, rate, lanes: n / (rate * 1e9 * lanes * 8 / 10 / 8),
            "8 bits of 10 was the coding up to version 2.0: for {case} you returned {given}. Here it is 128 of 130.",
        ),
        Mistake(
            lambda n, rate, lanes: copy_seconds(n, rate, 16),
            "The lanes are fixed at 16: for {case} you returned {given}.",
        ),
        Mistake(
            lambda n, rate, lanes: n / copy_seconds(n, rate, lanes),
            "This is bytes per second: for {case} you returned {given}. Divide the bytes by it.",
        ),
    ),
    hints=(
        "How many bits cross the wire each second, and how many of them are data?",
        "Bytes per second: transfers × lanes × 128/130 ÷ 8, for one direction. Seconds: bytes ÷ that.",
        "return size_bytes / (gigatransfers * 1e9 * lanes * ___ / ___ / 8)",
    ),
    checked="70B weights over PCIe 5.0, and a GiB over wide and narrow links.",
)

# --- 03.4: copies beside the computation -----------------------------------------------------------------------------


def pipeline(batches, copy, compute):
    return copy + (batches - 1) * max(copy, compute) + compute


_PIPELINE = Exercise(
    id="03.4",
    reference=pipeline,
    cases=lambda: [
        Case((10, 2.0, 5.0), label="10 batches, computing is slower"),
        Case((10, 5.0, 2.0), label="10 batches, copying is slower"),
        Case((1, 3.0, 4.0), label="a single batch"),
        Case((4, 1.0, 1.0), label="both equally fast"),
    ],
    mistakes=(
        Mistake(
            lambda n, c, k: n * (c + k),
            "Nothing overlaps: for {case} you returned {given}. The next copy runs while the current batch is computed.",
        ),
        Mistake(
            lambda n, c, k: n * max(c, k),
            "The ends are missing: for {case} you returned {given}. The first copy has nothing to hide behind, and the last "
            "computation hides nothing.",
        ),
        Mistake(
            lambda n, c, k: c + n * k,
            "You assumed that computing is the slower part: for {case} you returned {given}. Where copies are slower, the "
            "computation waits for each of them.",
        ),
        Mistake(
            lambda n, c, k: c + n * max(c, k) + k,
            "One step too many: for {case} you returned {given}. Between the first copy and the last computation there are "
            "batches − 1 steps.",
        ),
        Mistake(
            lambda n, c, k: c + (n - 1) * max(c, k),
            "The last computation is missing: for {case} you returned {given}.",
        ),
        Mistake(
            lambda n, c, k: (n - 1) * max(c, k) + k,
            "The first copy is missing: for {case} you returned {given}. Nothing can be computed before it is there.",
        ),
        Mistake(
            lambda n, c, k: c + (n - 1) * min(c, k) + k,
            "The shorter of the two sets the pace: for {case} you returned {given}. Both must be done before the next step.",
        ),
        Mistake(
            lambda n, c, k: n * c + k,
            "You assumed that copying is the slower part: for {case} you returned {given}. Where computing is slower, the "
            "copies are done early and wait.",
        ),
        Mistake(
            lambda n, c, k: c + n * max(c, k),
            "For {case} you returned {given}: after the first copy, the last of the steps is a computation alone.",
        ),
    ),
    hints=(
        "Draw two lanes. Which copy and which computation have nothing beside them?",
        "First copy, then batches − 1 steps in which a computation and the next copy run together, then the last computation.",
        "return copy + (batches - ___) * max(___, ___) + compute",
    ),
    checked="computing slower, copying slower, a single batch, and both equally fast.",
)

# --- 03.5: how many layers stay on the device ------------------------------------------------------------------------


def layers_that_fit(layer_bytes, layers, memory_bytes, reserved_bytes):
    # Layers that do not fit are copied in one at a time and need one free slot.
    room = (memory_bytes - reserved_bytes) // layer_bytes
    if room >= layers:
        return layers
    return max(0, room - 1)


_FIT = Exercise(
    id="03.5",
    reference=layers_that_fit,
    cases=lambda: [
        Case((10, 8, 100, 20), label="8 layers of 10 in 100, 20 reserved"),
        Case((10, 8, 100, 25), label="8 layers of 10 in 100, 25 reserved"),
        Case((10, 8, 100, 100), label="nothing left"),
        Case((10, 8, 100, 85), label="room for one"),
        Case((1_711_308_800, 80, 85_520_809_984, 6_000_000_000), label="Llama 3 70B's blocks on an H100"),
    ],
    mistakes=(
        Mistake(
            lambda layer, n, memory, reserved: min(n, (memory - reserved) // layer),
            "For {case} you returned {given}: no room is left for the layer that is copied in. Some layers live on the "
            "host, and each of them needs a slot on the device while it computes.",
        ),
        Mistake(
            lambda layer, n, memory, reserved: n if memory // layer >= n else max(0, memory // layer - 1),
            "What is reserved for activations is missing: for {case} you returned {given}.",
        ),
        Mistake(
            lambda layer, n, memory, reserved: max(0, min(n, (memory - reserved) // layer - 1)),
            "A slot is kept free although every layer fits: for {case} you returned {given}.",
        ),
        Mistake(
            lambda layer, n, memory, reserved: (
                n if (memory - reserved) // layer >= n else (memory - reserved) // layer - 1
            ),
            "For {case} you returned {given}: a number of layers cannot be negative.",
        ),
        Mistake(
            lambda layer, n, memory, reserved: n if (memory - reserved) // layer >= n else 0,
            "All or none: for {case} you returned {given}. Where a few layers do not fit, the others can stay.",
        ),
        Mistake(
            lambda layer, n, memory, reserved: min(n, (memory - reserved) / layer),
            "For {case} you returned {given}: a part of a layer does not compute. Round down.",
        ),
        Mistake(
            lambda layer, n, memory, reserved: (
                n if (memory - reserved) // layer >= n else max(0, (memory - reserved) // layer - 2)
            ),
            "Two slots are kept free: for {case} you returned {given}. Layers are copied in one at a time.",
        ),
    ),
    hints=(
        "If one layer too many exists, where does it compute?",
        "Room: (memory − reserved) // layer. If it holds all layers, all stay; otherwise one slot is kept for the visitor.",
        "room = (memory_bytes - reserved_bytes) // layer_bytes; return layers if room >= layers else max(0, room - ___)",
    ),
    checked="everything fits, one slot short, nothing left, room for one, and 70B on an H100.",
)

EXERCISES = (_GIBIBYTES, _ALLOCATED, _COPY, _PIPELINE, _FIT)

"""Exercises of lesson 04: tensors and devices."""

import math

from cs336kit.teach.exercises.core import exercise


@exercise(
    "04.1",
    cases={
        "GPT-3's feed-forward matrix in fp32": ((12288, 49152), 32),
        "activations of 8 × 2048 tokens in bf16": ((8, 2048, 4096), 16),
        "105 bytes": ((5, 7, 3), 8),
        "an fp4 matrix": ((4096, 4096), 4),
        "a single fp64 number": ((), 64),
    },
    mistakes={
        "8 * right": "these are gibibits. Eight bits make a byte.",
        "right * 2**30 / 1e9": "this is GB. A GiB is 2³⁰ bytes, 7 % more than 10⁹.",
        "right_if(bits=32)": "you took 4 bytes for every dtype.",
        "sum(shape) * bits / 8 / 2**30": "the sizes are added. A tensor has the product of its sizes as elements.",
        "right_if(bits=bits // 8 * 8)": "you made whole bytes of an element first, but two fp4 numbers share one.",
        "right_if(shape=shape[:2])": "you took two axes. A tensor may have any number of them.",
    },
    hints=(
        "How many elements are there, and how many bytes is one?",
        "Elements: the product of the sizes (1 for no axes). Bytes: bits ÷ 8. A GiB has 2³⁰ bytes.",
        "return math.prod(shape) * bits / ___ / 2**___",
    ),
    checked="GPT-3's matrix, bf16 activations, a tensor of 105 bytes, an fp4 matrix and a single number.",
)
def gibibytes(shape, bits):
    return math.prod(shape) * bits / 8 / 2**30


@exercise(
    "04.2",
    cases={
        "two 32 × 32 fp32 matrices": ([4096, 4096],),
        "three fp32 scalars": ([4, 4, 4],),
        "512 and 513 bytes": ([512, 513],),
        "nothing": ([],),
        "1000, 0 and 2000 bytes": ([1000, 0, 2000],),
    },
    mistakes={
        "sum(sizes)": "you added the requests as they are. Every block is a multiple of 512.",
        "allocated([sum(sizes)])": "you rounded the sum. Each tensor gets a block of its own, rounded by itself.",
        "sum(size // 512 * 512 for size in sizes)": "you rounded down. A block must hold the request.",
        "sum((size // 512 + 1) * 512 for size in sizes)": "you rounded a multiple of 512 up. 512 bytes fit into 512.",
        "allocated([max(size, 1) for size in sizes])": "an empty tensor got a block. Nothing is allocated for 0 bytes.",
        "2 * 2**20 if sizes else 0": "that is what is reserved, a segment of 2 MiB. The blocks in it were asked for.",
    },
    hints=(
        "What does one tensor of 4 bytes cost, and what do three of them cost?",
        "Round each size up to a multiple of 512 (0 stays 0), then add.",
        "return sum(-(-size // ___) * ___ for size in sizes)",
    ),
    checked="two matrices, three scalars, sizes at and above a multiple, an empty tensor and an empty list.",
)
def allocated(sizes):
    return sum(-(-size // 512) * 512 for size in sizes)


@exercise(
    "04.3",
    cases={
        "70B weights in bf16 over PCIe 5.0 x16": (141_107_412_992, 32, 16),
        "1 GiB over PCIe 4.0 x16": (2**30, 16, 16),
        "1 GiB over PCIe 3.0 x4": (2**30, 8, 4),
    },
    mistakes={
        "right / 8": "bits are taken for bytes, 8 times too fast. A lane carries one bit per transfer.",
        "right * 128 / 130": "the coding is missing. Of every 130 bits on the wire, 128 are data.",
        "right * (128 / 130) ** 2": "the coding is upside down. It makes a link slower: 128 of 130 bits are data.",
        "right / 2": "you counted both directions. A copy goes one way.",
        "right_if(lanes=1)": "only one lane is used.",
        "right * 1e9": "the giga is missing. A gigatransfer is 10⁹ transfers.",
    },
    hints=(
        "How many bits cross the wire each second, and how many of them are data?",
        "Bytes per second: transfers × lanes × 128/130 ÷ 8, for one direction. Seconds: bytes ÷ that.",
        "return size_bytes / (gigatransfers * 1e9 * lanes * ___ / ___ / 8)",
    ),
    checked="70B weights over PCIe 5.0, and a GiB over wide and narrow links.",
)
def copy_seconds(size_bytes, gigatransfers, lanes):
    return size_bytes / (gigatransfers * 1e9 * lanes * 128 / 130 / 8)


@exercise(
    "04.4",
    cases={
        "10 batches, computing is slower": (10, 2.0, 5.0),
        "10 batches, copying is slower": (10, 5.0, 2.0),
        "a single batch": (1, 3.0, 4.0),
        "both equally fast": (4, 1.0, 1.0),
    },
    mistakes={
        "batches * (copy + compute)": "nothing overlaps. The next copy runs while the current batch is computed.",
        "batches * max(copy, compute)": "the first copy and the last computation have nothing to hide behind.",
        "copy + batches * compute": "where copies are slower, the computation waits for each of them.",
        "batches * copy + compute": "where computing is slower, the copies are done early and wait.",
        "right_if(batches=batches + 1)": "one step too many: between first copy and last computation are batches − 1.",
        "copy + (batches - 1) * min(copy, compute) + compute": "the shorter of the two sets your pace; both must be done.",
    },
    hints=(
        "Draw two lanes. Which copy and which computation have nothing beside them?",
        "First copy, then batches − 1 steps in which a computation and the next copy run together, then the last computation.",
        "return copy + (batches - ___) * max(___, ___) + compute",
    ),
    checked="computing slower, copying slower, a single batch, and both equally fast.",
)
def pipeline(batches, copy, compute):
    return copy + (batches - 1) * max(copy, compute) + compute


def _kept(at_least=0, slots=1):
    def wrong(layer_bytes, layers, memory_bytes, reserved_bytes):
        room = (memory_bytes - reserved_bytes) // layer_bytes
        return layers if room >= layers else max(at_least, room - slots)

    return wrong


@exercise(
    "04.5",
    cases={
        "8 layers of 10 in 100, 20 reserved": (10, 8, 100, 20),
        "8 layers of 10 in 100, 25 reserved": (10, 8, 100, 25),
        "nothing left": (10, 8, 100, 100),
        "room for one": (10, 8, 100, 85),
        "Llama 3 70B's blocks on an H100": (1_711_308_800, 80, 85_520_809_984, 6_000_000_000),
    },
    mistakes={
        _kept(slots=0): "no room is left for the layer that is copied in: each that lives on the host needs a slot.",
        "right_if(reserved_bytes=0)": "what is reserved for activations is missing.",
        "right_if(layers=layers + 1) if right == layers else right": "a slot is kept free although every layer fits.",
        _kept(at_least=-1): "a number of layers cannot be negative.",
        "right if right == layers else 0": "all or none. Where a few layers do not fit, the others can stay.",
        _kept(slots=2): "two slots are kept free. Layers are copied in one at a time.",
    },
    hints=(
        "If one layer too many exists, where does it compute?",
        "Room: (memory − reserved) // layer. If it holds all layers, all stay; otherwise one slot is kept for the visitor.",
        "room = (memory_bytes - reserved_bytes) // layer_bytes; return layers if room >= layers else max(0, room - ___)",
    ),
    checked="everything fits, one slot short, nothing left, room for one, and 70B on an H100.",
)
def layers_that_fit(layer_bytes, layers, memory_bytes, reserved_bytes):
    # Layers that do not fit are copied in one at a time and need one free slot.
    room = (memory_bytes - reserved_bytes) // layer_bytes
    return layers if room >= layers else max(0, room - 1)

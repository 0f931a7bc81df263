"""The speed of PCI Express, and what is gained if copies overlap with computation."""

from cs336kit.predict.checks import boolean, finite_results, known, positive_int, positive_number

#: PCI Express: transfers per second and lane, and the share of bits that carry data (8b/10b, 128b/130b, FLIT).
PCIE = {
    1: (2.5e9, 8 / 10),
    2: (5e9, 8 / 10),
    3: (8e9, 128 / 130),
    4: (16e9, 128 / 130),
    5: (32e9, 128 / 130),
    6: (64e9, 242 / 256),
}


@finite_results()
def pcie_bandwidth(generation: int, *, lanes: int = 16) -> float:
    """Bytes per second each way over a PCI Express link: transfers per second × lanes × coding ÷ 8 bits.

    Left out: packet headers and flow control, which take another 5 to 20 %. Source: PCI Express base specifications.
    """
    generation, lanes = positive_int("generation", generation), positive_int("lanes", lanes)
    rate, coding = known("PCI Express generation", str(generation), {str(each): PCIE[each] for each in PCIE})
    return rate * lanes * coding / 8


@finite_results()
def pipeline_seconds(batches: int, *, copy_seconds: float, compute_seconds: float, overlap: bool) -> float:
    """Seconds to copy and compute `batches` batches, one after the other or with the next copy overlapping the computation.

    With overlap, nothing overlaps the first copy and the last computation, and between them each step takes the longer of
    the two. Left out: contention for memory bandwidth. Errors: ValueError for times that are not positive.
    """
    batches = positive_int("batches", batches)
    copy, compute = positive_number("copy_seconds", copy_seconds), positive_number("compute_seconds", compute_seconds)
    if not boolean("overlap", overlap):
        return batches * (copy + compute)
    return copy + (batches - 1) * max(copy, compute) + compute

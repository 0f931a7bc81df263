"""The numbers of one accelerator, from the table or as given, and how much of its memory is left free."""

from dataclasses import replace
from datetime import date

from cs336kit.predict.breakdown import Breakdown
from cs336kit.predict.checks import fraction, non_negative_number
from cs336kit.predict.hardware import DEFAULT_ENGINE, Accelerator, Cell, accelerator, accelerators

#: The default allowance: bytes, and a fraction of the memory. A rule of thumb for PyTorch on CUDA, not measured here:
#: the context with the libraries' kernels and workspaces, blocks that the allocator cannot use, and NCCL's channels.
CONTEXT_BYTES = 2**30
FRAGMENTATION = 0.05
COMMUNICATION_BYTES = 2**30


def chip(
    name: str | Accelerator | None,
    *,
    memory_bytes: int | float | None = None,
    peak_flops_per_second: float | None = None,
    bandwidth: float | None = None,
    link: float | None = None,
    precision: str = "bf16",
    needs_peak: bool = True,
) -> tuple[Accelerator, tuple[str, ...]]:
    """The accelerator of a question, with the given numbers in place of its own, and sentences about those that are not exact.

    Without a name, it has the given numbers alone. Its only peak is that of the question's products, `precision`.
    """
    if name is None and (memory_bytes is None or (needs_peak and peak_flops_per_second is None)):
        raise ValueError("without an accelerator of the table, give its memory_bytes and peak_flops_per_second")
    device = Accelerator("given", "the given chip", (), {}, {}) if name is None else accelerator(name)
    named = {"memory": memory_bytes, "peak": peak_flops_per_second, "bandwidth": bandwidth, "links": link}
    notes: list[str] = []
    if (given := [number for number, value in named.items() if value is not None]) and name is not None:
        rest = [number for number in named if number not in given]
        notes.append(f"{listed(given)} as given" + (f"; {listed(rest)} are those of {device.name}" if rest else ""))
    if memory_bytes is None:
        memory_bytes = _memory(device, notes)
    if peak_flops_per_second is None and name is not None:
        peak_flops_per_second = _peak(device, precision, needs_peak, notes)
    rates = {"bandwidth": bandwidth, "link": link}
    facts = {fact: _cell(value, "byte/s") for fact, value in rates.items() if value is not None}
    facts["memory_bytes"] = _cell(int(memory_bytes), "byte")
    kind = (precision, DEFAULT_ENGINE[precision], "dense")
    peaks = {} if peak_flops_per_second is None else {kind: _cell(peak_flops_per_second, "FLOP/s")}
    return replace(device, facts={**device.facts, **facts}, peaks=peaks), tuple(notes)


def _cell(value: float, unit: str) -> Cell:
    return Cell(value, unit, "of this question", (), date.today())


def peak_of(device: Accelerator) -> float | None:
    """FLOP/s of the products of a question's accelerator; None if the question does not need them."""
    return next((cell.value for cell in device.peaks.values()), None)


def listed(words: list[str]) -> str:
    """Several words with commas, and the last one after an "and"."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _memory(device: Accelerator, notes: list[str]) -> int:
    """The bytes that the driver reports, or those of the label if no source has them."""
    if "memory_bytes" in device.facts:
        return device.memory_bytes
    known = [d for d in accelerators() if {"memory_bytes", "memory_label_bytes"} <= set(d.facts)]
    more = [100 * (d.memory_bytes / d.memory_label_bytes - 1) for d in known]
    label = device.memory_label_bytes
    notes.append(
        f"memory is the {label / 1e9:g} GB of the datasheet: the exact bytes of {device.name} have no source (where both "
        f"are known, the driver reports {min(more):.0f} to {max(more):.0f} % more)"
    )
    return label


def _peak(device: Accelerator, precision: str, needed: bool, notes: list[str]) -> float | None:
    """The dense peak of the matrix products; fp16 in place of bf16 if a chip has no other type of two bytes."""
    try:
        return device.peak(precision)
    except LookupError as error:
        if precision == "bf16" and "fp16" in device.precisions:
            notes.append(f"{device.name} has no bf16: this is fp16, which has as many bytes, with its peak")
            return device.peak("fp16")
        if not needed:
            return None
        raise ValueError(f"{str(error).rstrip('.')}; or give the peak yourself") from None


def allowance(given: int | float | None, *, device: Accelerator, count: int) -> tuple[Breakdown, str]:
    """Bytes that are left free, by reason, and a sentence about their source."""
    memory_bytes = device.memory_bytes
    if given is None:
        parts = {"context and libraries": CONTEXT_BYTES, "fragmentation": int(FRAGMENTATION * memory_bytes)}
        if count > 1:
            parts["communication buffers"] = COMMUNICATION_BYTES
        percent = f"{100 * FRAGMENTATION:g} %"
        reason = f"1 GiB for the {'CUDA ' * (device.rules == 'cuda')}context and libraries, {percent} for fragmentation"
        reason += ", 1 GiB for communication" if count > 1 else ""
        return Breakdown(parts, unit="bytes"), f"{reason}: a rule of thumb, change it with --allowance"
    given = non_negative_number("allowance", given)
    if isinstance(given, float) and not given.is_integer():
        share = fraction("allowance", given, zero=True)
        return Breakdown(
            {"as given": int(share * memory_bytes)}, unit="bytes"
        ), f"{100 * share:g} % of the memory, as given"
    left = Breakdown({"as given": int(given)}, unit="bytes")
    check_room(left, memory_bytes)
    return left, "as given"


def check_room(free: Breakdown, memory_bytes: int) -> None:
    """Refuse an allowance that leaves no memory."""
    if free.total >= memory_bytes:
        gigabytes = "; memory_bytes counts bytes, such as 80e9" if memory_bytes < 2**20 else ""
        raise ValueError(
            f"an allowance of {free.total / 2**30:,.2f} GiB leaves nothing of {memory_bytes / 2**30:,.2f} GiB: give less, or "
            f"a fraction of the memory{gigabytes}"
        )

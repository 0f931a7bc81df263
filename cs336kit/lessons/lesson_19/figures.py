"""How busy decoding keeps a chip, who owns which page of a cache, and what guessing ahead brings."""

from collections.abc import Mapping, Sequence

from cs336kit.teach.figures.primitives import QUIET, Look, cell, lines, log_axis, over
from cs336kit.teach.figures.style import Drawn, axes, described


@described
def decode_shares(batches: Sequence[int], shares: Mapping[str, Sequence[float]], *, ridge: float) -> Drawn:
    """Percent of the peak that decoding can reach, against the batch; one line for each length of the texts.

    ridge: FLOPs per byte, which is also the batch that saturates the chip where no sequence has a cache.
    """
    figure, ax = axes(height=4.2)
    label: Look = {"xlabel": "sequences decoded together", "ylabel": "of the peak, at best (%)"}
    legend = {"title": "each with", "loc": "upper left"}
    said = lines(ax, over(batches, shares), legend=legend, markersize=5, **label)
    log_axis(ax, "x", batches[::2], base=2)
    ax.set_ylim(0, 105)
    ax.axvline(ridge, color=QUIET, linewidth=1, linestyle=":", marker="")
    ax.annotate(f"ridge {ridge:.0f} ", (ridge, 100), ha="right", va="top", fontsize=11, color=QUIET)
    return figure, f"{said}; the ridge is at {ridge:.0f}"


@described
def page_pool(tables: Mapping[str, Sequence[int]], lengths: Mapping[str, int], *, pages: int, size: int) -> Drawn:
    """A pool of pages in the order of memory, each slot with the sequence and the number of its token.

    tables: sequence → the numbers of its pages; lengths: sequence → its tokens. Empty slots of a taken page stay pale.
    """
    across = pages // 2 if pages > 6 else pages
    rows = -(-pages // across)
    figure, ax = axes(height=2.0)
    owner = {
        page: (row, name, number) for row, (name, own) in enumerate(tables.items()) for number, page in enumerate(own)
    }
    for page in range(pages):
        row, name, number = owner.get(page, (None, "", 0))
        left, y = page % across * (size + 0.7), -(page // across) * 1.9
        for slot in range(size):
            token = number * size + slot
            filled = row is not None and token < lengths[name]
            cell(ax, left + slot, y, f"{name}{token}" if filled else "", row if filled else None)
        ax.text(left + (size - 1) / 2, y + 0.6, f"page {page}", ha="center", va="bottom", fontsize=11, color=QUIET)
    ax.set(xlim=(-0.7, across * (size + 0.7) - 0.9), ylim=(-1.9 * (rows - 1) - 0.7, 1.2))
    ax.set_aspect("equal")
    ax.axis("off")
    taken = [f"{name} has {lengths[name]} tokens in pages {', '.join(map(str, own))}" for name, own in tables.items()]
    return figure, f"{pages} pages of {size} tokens: {'; '.join(taken)}; {pages - len(owner)} pages are free"


@described
def guessing(guesses: Sequence[int], speedups: Mapping[str, Sequence[float]]) -> Drawn:
    """Times as fast as the target alone against the tokens that a draft guesses; one line for each kind of draft."""
    figure, ax = axes(height=3.8)
    ax.axhline(1, color=QUIET, linewidth=1)
    label: Look = {"xlabel": "guesses for a pass of the target, k", "ylabel": "times as fast"}
    legend = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "fontsize": 11}
    said = lines(ax, over(guesses, speedups), legend=legend, markersize=5, **label)
    ax.set_xticks(list(guesses)[:: 1 if len(guesses) < 9 else 2])
    ax.set_ylim(bottom=0)
    return figure, said

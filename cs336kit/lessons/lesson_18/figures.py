"""Who holds what when ranks share a model, and when the stages of a pipeline work and wait."""

from collections.abc import Mapping, Sequence

from cs336kit.teach.figures.primitives import FAINT, Look, listed, timeline
from cs336kit.teach.figures.style import COLORS, HATCHES, Drawn, axes, described, tint

#: Of a pipeline's timeline: stage, "forward" or "backward", microbatch, start.
Span = tuple[int, str, int, float]
#: A backward pass takes twice the time of a forward one.
_LENGTH = {"forward": 1, "backward": 2}


@described
def held_by_rank(parts: Mapping[str, float], ways: Sequence[str], *, ranks: int) -> Drawn:
    """What each rank holds of a model when none, one and more of its parts are divided over the ranks: filled areas.

    parts: part → bytes for each parameter, which are the heights; the first of the `ways` of sharing divides nothing, the
    next one the last part, the next one the last two, and so on.
    """
    from matplotlib.patches import Rectangle

    divided = {name: list(parts)[len(parts) - number :] for number, name in enumerate(ways)}
    figure, ax = axes(height=1.0 + 0.9 * len(divided))
    wide, high, each = 1.0, sum(parts.values()), []
    gap, down = 0.25 * wide, 1.3 * high
    for row, (name, shared) in enumerate(divided.items()):
        for rank in range(ranks):
            left, y = rank * (wide + gap), -row * down
            for number, (part, size) in enumerate(parts.items()):
                y -= size
                color = COLORS[number]
                empty: Look = {"facecolor": "white", "edgecolor": FAINT, "linewidth": 0.8, "linestyle": ":"}
                ax.add_patch(Rectangle((left, y), wide, size, **empty))
                start, length = (rank * wide / ranks, wide / ranks) if part in shared else (0, wide)
                look: Look = {"facecolor": tint(color), "edgecolor": color, "linewidth": 0.8, "hatch": HATCHES[number]}
                label = part if row == rank == 0 else None
                ax.add_patch(Rectangle((left + start, y), length, size, label=label, **look))
        held = sum(size / (ranks if part in shared else 1) for part, size in parts.items())
        each.append(held)
        middle = -row * down - high / 2
        ax.text(-gap, middle, name, ha="right", va="center", fontsize=12)
        ax.text(ranks * (wide + gap), middle, f"{held:g} bytes", ha="left", va="center", fontsize=12)
    ax.text(ranks * (wide + gap), 0.1 * high, "per parameter", ha="left", va="bottom", fontsize=12)
    for rank in range(ranks):
        ax.text(rank * (wide + gap) + wide / 2, 0.1 * high, f"rank {rank}", ha="center", va="bottom", fontsize=12)
    ax.set(xlim=(-1.6, ranks * (wide + gap) + 1.3), ylim=(-len(divided) * down + 0.2 * high, 0.5 * high))
    ax.axis("off")
    figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=len(parts))
    said = f"bytes for each parameter on each of {ranks} ranks, {listed(list(parts), list(parts.values()))} in all: "
    return figure, said + listed(list(divided), each)


@described
def pipeline(spans: Sequence[Span]) -> Drawn:
    """When each stage of a pipeline works on which microbatch, forward and backward, and where it waits.

    Above as in `spans`; below the same stages and microbatches with one forward and one backward pass in turn (1F1B).
    """
    from matplotlib.patches import Patch

    figure, panels = axes(2, 1, height=4.6, sharex=True)
    p, m = 1 + max(stage for stage, *_ in spans), 1 + max(i for _, _, i, _ in spans)
    lanes = {f"stage {stage} {kind}": (stage, number) for stage in range(p) for number, kind in enumerate(_LENGTH)}
    schedules = {"all forward, then all backward": spans, "one forward, one backward": one_forward_one_backward(p, m)}
    said = []
    for ax, (title, each) in zip(panels, schedules.items(), strict=True):
        named = [(f"stage {stage} {kind}", i, start, start + _LENGTH[kind]) for stage, kind, i, start in each]
        timeline(ax, named, lanes)
        ax.set_yticks(range(p), [f"stage {stage}" for stage in range(p)])
        ax.invert_yaxis()
        ax.set_title(title, loc="left", fontsize=12)
        last = max(end for *_, end in named)
        busy = sum(end - start for *_, start, end in named)
        said.append(f"{title}: {p} stages end at {last:g} and wait {1 - busy / p / last:.0%} of the time")
    panels[-1].set_xlabel("time, in forward passes of one stage")
    keys = [Patch(facecolor=COLORS[n], hatch=HATCHES[n], edgecolor="white") for n in range(len(_LENGTH))]
    figure.legend(keys, list(_LENGTH), loc="outside upper right", ncols=2)
    return figure, "; ".join(said)


def one_forward_one_backward(p: int, m: int) -> list[Span]:
    """When the passes of m microbatches begin on p stages: a backward pass as early as it can, and a forward one after it."""
    spans: list[Span] = []
    for stage in range(p):
        ahead = p - stage  # forward passes before the first backward pass can come
        first = p + 2 * (ahead - 1)
        for i in range(m):
            spans.append((stage, "forward", i, stage + i if i < ahead else first + 2 + 3 * (i - ahead)))
            spans.append((stage, "backward", i, first + 3 * i))
    return spans

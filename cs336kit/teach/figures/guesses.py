"""The reader's guesses against the answers."""

from collections.abc import Mapping

from cs336kit.teach.figures.style import COLORS, Drawn, axes, described


@described
def guesses_against_answers(ratios: Mapping[str, float], middle: float) -> Drawn:
    """A point for each question at guess ÷ answer, on a logarithmic scale; the band is within a factor of two.

    ratios: question → guess ÷ answer, above zero; middle: the factor that half of the guesses stay within.
    """
    figure, ax = axes(height=1.4 + 0.32 * len(ratios))
    ax.axvspan(0.5, 2, color="#e8f1f8")
    ax.axvline(1, color=COLORS[6], linewidth=1.2, linestyle="-", marker="")
    places = range(len(ratios))
    ax.plot(list(ratios.values()), places, linestyle="", marker="o", color=COLORS[0])
    ax.set_xscale("log")
    widest = max(10.0, *(max(ratio, 1 / ratio) for ratio in ratios.values()))
    ax.set_xlim(1 / (1.3 * widest), 1.3 * widest)
    ax.set_yticks(places, [name if len(name) < 46 else name[:45] + "…" for name in ratios])
    ax.set_ylim(len(ratios) - 0.4, -0.6)
    # Aligned to the right edge: centered under a narrow plot, it would run off the page.
    ax.set_xlabel(f"guess ÷ answer (half of them within a factor of {middle:.2g})", loc="right")
    said = ", ".join(f"{name} {ratio:.2g}" for name, ratio in ratios.items())
    number = f"{len(ratios)} prediction{'s' * (len(ratios) > 1)}"
    return figure, f"guess divided by answer for {number}, half within a factor of {middle:.2g}: {said}"

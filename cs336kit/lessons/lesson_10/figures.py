"""How a net begins to learn, how large its numbers are layer by layer, and where the best learning rate is."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from cs336kit.teach.figures.primitives import QUIET, Look, Series, averaged, course, lines, log_axis
from cs336kit.teach.figures.style import COLORS, HATCHES, MARKERS, Drawn, axes, described


@described
def starts(curves: Series, *, guess: float) -> Drawn:
    """The first losses of several runs, each mark the mean of ten steps; `guess` is the loss of a uniform guess.

    Rounded to tenths, and in words only where it begins and ends: the last digits of a training run differ from machine to
    machine, and so does where it is lowest. A run whose losses are not numbers stands in the legend alone.
    """
    figure, ax = axes(height=4)
    ax.axhline(guess, color=QUIET, linewidth=1.2, linestyle="--")
    place: Look = {"xycoords": ("axes fraction", "data"), "xytext": (0, 6), "textcoords": "offset points"}
    ax.annotate("uniform guess", (1, guess), ha="right", va="bottom", fontsize=11, **place)
    finite, lost = {}, []
    for name, losses in curves.items():
        if not all(map(math.isfinite, losses)):
            lost.append(f"{name}: not a number")
            continue
        _, means = averaged(losses, 10)
        rounded = [guess if abs(mean - guess) < 0.02 else round(mean, 1) for mean in means]
        finite[name] = ([10 * i + 5 for i in range(len(means))], rounded)
    said = lines(ax, finite, extremes=False, xlabel="step", ylabel="loss")
    for name in lost:
        ax.plot([], [], linestyle="", marker="", label=name)
    ax.set_ylim(min((min(ys) for _, ys in finite.values()), default=guess) - 0.3, guess + 0.7)
    figure.legend(loc="outside upper center", ncols=min(3, len(curves)))
    return figure, f"{said}; a uniform guess has {guess:.4g}" + "".join(f"; {words}" for words in lost)


@described
def histograms(nets: Mapping[str, Mapping[int, Sequence[float]]]) -> Drawn:
    """How the numbers behind some layers are distributed: a row for each net, a column for each layer.

    nets: name → layer → numbers greater than 0; those above 3 are not drawn. Heights are whole percents.
    """
    limit, bins = 3.0, 15
    layers = list(next(iter(nets.values())))
    figure, plots = axes(len(nets), len(layers), height=1.9 * len(nets), squeeze=False, sharex=True, sharey=True)
    width, said = limit / bins, []
    for row, (name, by_layer) in enumerate(nets.items()):
        middles = []
        for ax, layer in zip(plots[row], layers, strict=True):
            values = sorted(float(value) for value in by_layer[layer])
            counts, _ = np.histogram(values, bins, (0, limit))
            shares = [round(100 * count / len(values)) for count in counts]
            look: Look = {"color": COLORS[row], "hatch": HATCHES[row], "edgecolor": "white", "align": "edge"}
            ax.bar([i * width for i in range(bins)], shares, width, **look)
            ax.set(ylim=(0, 105), yticks=(0, 50, 100))
            if row == 0:
                ax.set_title(f"layer {layer}", fontsize=13)
            middles.append(f"{values[len(values) // 2]:.1g} at layer {layer}")
        plots[row][0].set_ylabel(f"{name}\n%")
        said.append(f"{name}, the middle number is {', '.join(middles)}")
    figure.supxlabel("size of the numbers", fontsize=13)
    return figure, f"histograms of the numbers behind layers of two nets. {'; '.join(said)}"


@described
def sweeps(rates: Sequence[float], panels: Mapping[str, Mapping[int, Sequence[float]]]) -> Drawn:
    """Loss over learning rate (powers of two), a panel for each way to set it, a line for each width; rings are the best.

    Losses are rounded to a twentieth, since their last digits differ from machine to machine.
    """
    figure, plots = axes(1, len(panels), height=3.8, squeeze=False, sharey=True)
    figure.get_layout_engine().set(wspace=0.06)  # the numbers below two panels stay apart
    said = []
    for ax, (title, widths) in zip(plots[0], panels.items(), strict=True):
        for number, (width, losses) in enumerate(widths.items()):
            shown = [round(20 * loss) / 20 for loss in losses]
            ax.plot(rates, shown, label=f"width {width}", marker=MARKERS[number], color=COLORS[number])
            best = [place for place, loss in enumerate(shown) if loss == min(shown)]
            ring: Look = {"color": COLORS[6], "marker": "o", "markersize": 14, "fillstyle": "none", "linestyle": ""}
            ax.plot([rates[place] for place in best], [min(shown)] * len(best), **ring)
            places = " and ".join(f"{rates[place]:.3g}" for place in best)
            said.append(f"{course(f'{title}, width {width}', rates, shown)}, best at {places}")
        log_axis(ax, "x", list(rates), base=2, write=lambda rate: f"$2^{{{round(math.log2(rate))}}}$")
        ax.set(xlabel="learning rate", title=title)
    plots[0][0].set_ylabel("loss, steps 21 to 40")
    plots[0][-1].legend(loc="upper right")
    return figure, f"loss over learning rate: {'; '.join(said)}"

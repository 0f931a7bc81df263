"""Loss curves of runs that were resumed."""

from cs336kit.teach.figures.primitives import Look, Series, averaged, lines
from cs336kit.teach.figures.style import Drawn, axes, described


@described
def loss_curves(curves: Series, *, smooth: int, title: str) -> Drawn:
    """Losses (nats per token) over steps, one line each; `smooth` averages that many steps into one point.

    title: of the legend, which stands beside the curves, since these fill the picture.
    """
    figure, ax = axes(height=4)
    means = {name: averaged(losses, smooth) for name, losses in curves.items()}
    beside = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5), "title": title, "alignment": "left"}
    labels: Look = {"xlabel": "step", "ylabel": "loss (nats per token)"}
    said = lines(ax, means, legend=beside, markersize=5, extremes=False, **labels)
    return figure, f"{title}: {said}"

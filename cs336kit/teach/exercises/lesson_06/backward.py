"""Exercise 06.3: backward over a list of nodes."""

from cs336kit.teach.exercises.core import Case, Exercise, Mistake


def backward(nodes):
    gradients = [0.0] * len(nodes)
    gradients[-1] = 1.0
    for i in reversed(range(len(nodes))):
        for parent, slope in nodes[i]:
            gradients[parent] += slope * gradients[i]
    return gradients


def _assigns(nodes):
    gradients = [0.0] * len(nodes)
    gradients[-1] = 1.0
    for i in reversed(range(len(nodes))):
        for parent, slope in nodes[i]:
            gradients[parent] = slope * gradients[i]
    return gradients


def _forward_order(nodes):
    gradients = [0.0] * len(nodes)
    gradients[-1] = 1.0
    for i in range(len(nodes)):
        for parent, slope in nodes[i]:
            gradients[parent] += slope * gradients[i]
    return gradients


def _no_seed(nodes):
    return [0.0] * len(nodes)


def _adds_slopes(nodes):
    gradients = [0.0] * len(nodes)
    gradients[-1] = 1.0
    for i in reversed(range(len(nodes))):
        for parent, slope in nodes[i]:
            gradients[parent] += slope + gradients[i]
    return gradients


def _one_edge_per_parent(nodes):
    return backward([list(dict(edges).items()) for edges in nodes])


def _depth_first(nodes):
    gradients = [0.0] * len(nodes)
    gradients[-1] = 1.0

    def visit(i):
        for parent, slope in nodes[i]:
            gradients[parent] += slope * gradients[i]
            visit(parent)

    visit(len(nodes) - 1)
    return gradients


def _breadth_first(nodes):
    gradients = [0.0] * len(nodes)
    gradients[-1] = 1.0
    waiting, seen = [len(nodes) - 1], set()
    while waiting:
        i = waiting.pop(0)
        for parent, slope in nodes[i] if i not in seen else ():
            gradients[parent] += slope * gradients[i]
            waiting.append(parent)
        seen.add(i)
    return gradients


def _all_start_at_one(nodes):
    gradients = [1.0] * len(nodes)
    for i in reversed(range(len(nodes))):
        for parent, slope in nodes[i]:
            gradients[parent] += slope * gradients[i]
    return gradients


EXERCISE = Exercise(
    id="06.3",
    reference=backward,
    cases=lambda: [
        Case(([[], [(0, 6.0)], [(1, 2.0)]],), label="the chain y = x², loss = 2y at x = 3"),
        Case(([[], [(0, 3.0)], [(0, 14.0)], [(1, 1.0), (2, 1.0)]],), label="a fan-out with two branches"),
        Case(([[], [(0, 5.0), (0, 5.0)]],), label="x·x, one parent twice"),
        Case(
            ([[], [], [(0, 3.0), (1, 2.0)], [(2, 1.0), (0, -1.0)], [(3, 4.0), (2, 0.5)]],),
            label="a graph of five nodes",
        ),
        Case(([[], [(0, 2.0)], [(1, 3.0)], [(1, 1.0), (2, 1.0)]],), label="a node used now and again one step later"),
        Case(([[], [(0, 2.0)], [(0, 7.0)], [(1, 1.0)]],), label="a graph with a node that the result does not use"),
        Case(([[]],), label="a single leaf"),
    ],
    mistakes=(
        Mistake(
            _assigns,
            "For {case} you returned {given}: a parent that is used twice kept only one contribution. Accumulate with +=.",
        ),
        Mistake(
            _forward_order,
            "For {case} you returned {given}: you went forward through the list, so most nodes passed on a gradient of 0. "
            "Start at the last node and go back.",
        ),
        Mistake(
            _no_seed,
            "For {case} you returned {given}: everything is 0 because nothing starts it. The last node's own gradient is 1.",
        ),
        Mistake(
            _adds_slopes,
            "For {case} you returned {given}: you added the local derivative to the gradient; along a way they multiply.",
        ),
        Mistake(
            _one_edge_per_parent,
            "For {case} you returned {given}: the same parent twice counts twice, as in x·x, whose derivative is 2x.",
        ),
        Mistake(
            _breadth_first,
            "For {case} you returned {given}: a node passed its gradient on before all of it had arrived. The order of the "
            "list, backwards, never does.",
        ),
        Mistake(
            _depth_first,
            "For {case} you returned {given}: a node was visited once per way that leads to it, and each time passed on all "
            "that it had. Visit every node once, when its gradient is complete.",
        ),
        Mistake(
            _all_start_at_one,
            "For {case} you returned {given}: every gradient started at 1. Only the last node's does; the others start at 0.",
        ),
    ),
    hints=(
        "Which node's gradient do you know before you start, and in which order do the others become known?",
        "Set the last gradient to 1, walk the list backwards, and give every parent slope × own gradient, added up.",
        "for i in reversed(range(len(nodes))): for parent, slope in nodes[i]: gradients[parent] += …",
    ),
    checked="seven graphs: a chain, a fan-out, a parent used twice, a node used early and late, and a single leaf among them.",
)

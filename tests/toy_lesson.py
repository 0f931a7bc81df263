"""A small lesson with every kind of output, executed once and then tampered with."""

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from cs336course.refresh import refresh

CELLS = (
    ("text", 'print("gradients", 2 + 4)', []),
    ("number", "1 / 3", []),
    ("table", "from cs336kit import teach\nteach.compare(('weights', 448, 448, 'bytes'))", []),
    (
        "figure",
        "figure, axes = teach.figures.axes(width=3, height=2)\naxes.plot([1, 2, 3])\n"
        "teach.figures.show(figure, alt='One line that rises from one at the left to three, a share of 0.6.')",
        [],
    ),
    (
        "drawing",
        "from IPython.display import display\n\n"
        "display({'image/svg+xml': '<svg><path d=\"M 1.5 2\"/></svg>', 'text/html': '<b>7</b>', 'text/plain': '7'}, "
        "raw=True, metadata={'image/svg+xml': {'alt': 'A point.'}})",
        [],
    ),
    ("time", "import time\nprint(time.time())", ["measured:time"]),
    ("verdict", "import time\ntime.time() > 0", ["verdict"]),
    ("trap", "with teach.expect(ZeroDivisionError):\n    1 / 0", []),
    (
        "address",
        "class Address:\n    def __repr__(self):\n        return f'<0x3f800000 at {id(self):#x}>'\n\n\nAddress()",
        [],
    ),
    ("gpu", "if teach.on_gpu():\n    print('runs on a GPU')", ["gpu"]),
    ("approximate", "print('loss', 0.1234)", ["approx:1e-2"]),
    (
        "solution",
        "def double(x):\n    ### BEGIN SOLUTION\n    return 2 * x\n    ### END SOLUTION\n\n"
        "print('passed' if double(3) == 6 else 'not yet')",
        ["solution"],
    ),
)


def write(path, teach=True):
    """Write and execute the toy lesson; returns the stored notebook. Without `teach` its kernel need not import torch."""
    cells = [new_markdown_cell("# 99 · A toy\n\nOne cell of every kind.")]
    cells += [
        new_code_cell(source, metadata={"tags": tags}) for _, source, tags in CELLS if teach or "teach" not in source
    ]
    nbformat.write(new_notebook(cells=cells), path)
    refresh(path)
    return nbformat.read(path, as_version=4)


def cell(notebook, name):
    """The toy's cell of that name."""
    source = next(source for kind, source, _ in CELLS if kind == name)
    return next(c for c in notebook.cells if c.source == source)

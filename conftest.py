"""Settings of every test; the lessons get their rules from the course, which is imported for them alone."""

import os
from importlib.util import find_spec

# One thread each, here and in the kernels that inherit this: sums depend on how many threads share them.
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", PYTHONHASHSEED="0")
# What is stored is what a reader sees who has made no guess.
os.environ["CS336KIT_GUESSES"] = os.devnull + "/none"

if find_spec("hypothesis"):
    from hypothesis import settings

    # The same examples in every run, and no deadline: a slow machine is not a wrong answer.
    settings.register_profile("course", deadline=None, derandomize=True)
    settings.load_profile("course")


def pytest_collection_modifyitems(items):
    """Hand the cells of notebooks to `course.verify`: the unit tests do without it, and without torch."""
    if cells := [item for item in items if type(item).__name__ == "IPyNbCell"]:
        from cs336kit.course.verify import adopt

        adopt(cells)

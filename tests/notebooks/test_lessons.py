"""The anatomy of every lesson, and the ledger of claims over all of them."""

from pathlib import Path

import nbformat
import pytest
from claims.settled import settlements

from cs336kit.course import cells as kind
from cs336kit.course.structure import problems
from cs336kit.teach import claims

LESSONS = sorted((Path(__file__).parents[2] / "notebooks").glob("[0-9][0-9]_*.ipynb"))
#: Which lessons settle the claims of a topic.
TOPICS = {
    "00": ("napkin",),
    "01": ("floats",),
    "02": ("floats",),
    "03": ("storage",),
    "04": ("tensors", "devices"),
    "05": ("einops",),
    "06": ("flops", "hardware"),
    "07": ("mfu", "hardware"),
    "08": ("autograd",),
    "09": ("gradient-flops",),
    "10": ("init", "model"),
    "11": ("optimizers",),
    "12": ("transformer",),
    "13": ("randomness", "data", "training", "checkpoint"),
    "14": ("memory", "activations"),
    "15": ("memory", "activations"),
    "16": ("mixed-precision",),
    "17": ("transformer",),
}


@pytest.fixture(scope="module")
def notebooks():
    return {path: nbformat.read(path, as_version=4) for path in LESSONS}


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_anatomy(path, notebooks):
    assert problems(notebooks[path], path) == []


def unsettled(topics, notebooks, tests):
    """The claims of these topics that neither a cell of a lesson nor a test of tests/claims settles."""
    settled = {id for notebook in notebooks for cell in notebook.cells for id in kind.valued(cell, "claim")}
    settled |= {test.claim.id for test in tests}
    return [claim.id for topic in topics for claim in claims(topic) if claim.id not in settled or not claim.verdict]


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_every_claim_of_the_topic_is_settled(path, notebooks):
    assert unsettled(TOPICS[path.name[:2]], notebooks.values(), settlements()) == []


def test_a_claim_that_nothing_settles_is_noticed():
    by_cell, *others = (claim.id for claim in claims("napkin"))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1", metadata={"tags": [f"claim:{by_cell}"]})])
    by_test = [test for test in settlements() if test.claim.id == others[0]]
    assert unsettled(("napkin",), [notebook], by_test) == others[1:]


def test_lessons_are_numbered_without_gaps():
    assert [path.name[:2] for path in LESSONS] == [f"{i:02}" for i in range(len(LESSONS))]

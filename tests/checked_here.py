"""Answers that do no harm, tried in the process of the test: that takes no time to start."""

from cs336kit.teach.exercises import checking


def run(prepare, answer, seconds=None):
    """As `running.run`, but here, and an answer that does not return is not stopped."""
    said = [("running", "the check")]
    prepare()(answer, lambda *state: said.append(state))
    return said[-1]


def use(monkeypatch):
    """Try answers here until the test ends."""
    monkeypatch.setattr(checking, "run", run)

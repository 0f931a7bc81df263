"""What counts as an error branch, and the shares of a lesson that is run."""

import textwrap

import nbformat
import pytest

from benchmarks import lesson_coverage

MODULE = """
    def half(x):
        if x < 0:
            name = type(x).__name__
            raise ValueError(
                f"a {name} below zero"
            )
        try:
            return x / 2
        except TypeError:
            raise ValueError("no number") from None
        except OverflowError:
            return 0
        if x > 9:
            return 9
        else:
            raise ValueError("neither")
"""


def test_error_branches_are_what_leads_to_a_raise_and_nothing_else():
    lines = textwrap.dedent(MODULE).splitlines()
    aside = lesson_coverage.error_branches("\n".join(lines))
    assert [lines[number - 1].strip() for number in sorted(aside)] == [
        "name = type(x).__name__",
        "raise ValueError(",
        'f"a {name} below zero"',
        ")",
        "except TypeError:",
        'raise ValueError("no number") from None',
        'raise ValueError("neither")',
    ]


def test_the_table_begins_with_the_least_and_keeps_what_is_beside_the_kit_apart():
    found = [("lm/a.py", 10, 10), ("lm/b.py", 10, 0), ("lessons/c.py", 100, 100)]
    lines = lesson_coverage.table(found).splitlines()
    assert lines[0].split() == ["0.0%", "0", "of", "10", "lm/b.py"]
    assert lines[-2].split(maxsplit=4) == ["50.0%", "10", "of", "20", "the kit: 2 modules"]
    assert lines[-1].split()[:4] == ["91.7%", "110", "of", "120"]


@pytest.fixture
def lesson(tmp_path, monkeypatch):
    """A lesson of two cells, one of which starts a process, and a folder for what is counted."""
    started = "subprocess.run([sys.executable, '-c', 'import cs336kit.predict.napkin'], check=True)"
    texts = "import cs336kit", f"import subprocess, sys\n{started}"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in texts])
    nbformat.write(notebook, tmp_path / "00_one.ipynb")
    monkeypatch.setattr(lesson_coverage.lessons, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(lesson_coverage, "DATA", tmp_path / "counted" / "data")


@pytest.mark.proof
def test_a_lesson_counts_what_its_kernel_and_its_processes_execute(lesson):
    lesson_coverage.run([])
    found = {name: executed for name, _, executed in lesson_coverage.shares()}
    assert found["__init__.py"] > 0 and found["predict/napkin.py"] > 0
    assert found["lm/latent.py"] == 0 and found["lm/laws.py"] == 0


def test_an_unknown_lesson_is_one_sentence(capsys):
    assert lesson_coverage.main(["77"]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("no lesson '77'") and said.err.count("\n") == 1 and said.out == ""

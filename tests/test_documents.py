"""The numbers in README, TEACHING, CHANGELOG and docs are computed where that is possible, and else listed with their source."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from notebooks.test_tamper import COSMETIC, TAMPERED

from benchmarks.steadiness import CONDITIONS
from cs336course import pace, plans, structure
from cs336course.lessons import find
from cs336course.prose import Pool, numbers
from cs336course.readme import BEGIN, END
from cs336course.shares import COUNTS, shares
from cs336kit import predict
from cs336kit.lessons.claims import claims
from cs336kit.lm import caches
from cs336kit.measure.recorded import recorded, records
from cs336kit.predict.families import FAMILIES
from cs336kit.predict.families.methods import METHODS
from cs336kit.predict.hardware import accelerators
from cs336kit.teach.exercises import sandbox as running

ROOT = Path(__file__).parents[1]
LISTED = tomllib.loads((ROOT / "tests" / "documents.toml").read_text(encoding="utf-8"))
#: The documents by their names, with their texts.
DOCUMENTS = {
    str(path.relative_to(ROOT).with_suffix("")): path.read_text(encoding="utf-8")
    for path in [
        *(ROOT / f"{name}.md" for name in ("README", "TEACHING", "CHANGELOG")),
        *sorted((ROOT / "docs").glob("*.md")),
    ]
    if path.exists()
}
LESSONS = find([], ROOT / "notebooks")
#: Code, links, what is generated, names with a version, lessons, dates, and the numbers of a list.
APART = re.compile(
    rf"```.*?```|`[^`]*`|\]\([^)]*\)|{re.escape(BEGIN)}.*?{re.escape(END)}|^\| predicted → measured.*?^$"
    r"|\b(?:[Pp]ython|torch|version|exercise|last is|from) \d[\d.]*(?: and \d[\d.]*)?|\b[Ll]essons? \d\d(?:(?:, | and )\d\d)*"
    r"|(?:\d+ and )?\d+ November 2026|^#+ [^\n]*$|^\d\. "
    r"|\| 0\.1 \| 0\.2 \||\b00 to \d\d|\b0\d\b|(?<=, )(?:in )?\d\d (?=draws|your|accounts|has)|\btorch is [\d.]+",
    re.S | re.M,
)
TENS = "twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
#: From four on: "two" and "three" are said of everything.
WORD = re.compile(
    rf"(?<![\w-])(?P<said>(?:{TENS})-[a-z]+|{'|'.join(w for w, n in COUNTS.items() if 4 <= n <= 90)}|seventeen|eighteen|nineteen)"
    r" (?P<next>[a-z]+)",
    re.I,
)  # fmt: skip


def told(text):
    """The numbers of a document as they are listed, each with its value: those of two digits or with a unit, and in words."""
    blank = APART.sub(lambda found: "¤" * len(found[0]), text)
    for number in numbers(blank):
        if number.telling or len(number.digits) > 1:
            yield f"{number.digits} {number.word}".strip(), number
    for found in WORD.finditer(blank):
        said = found["said"].lower()
        value = sum(COUNTS[part] for part in said.split("-"))
        yield found[0], next(numbers(f"{value:g}"))


def parts(text):
    """The shares that a document says in words, each with the text that it begins."""
    blank = APART.sub(lambda found: "¤" * len(found[0]), text)
    for share in shares(blank):
        yield " ".join(blank[share.start :].split()), share


GIVEN = [key for keys in LISTED["given"].values() for key in keys]


def unlisted(text):
    """The numbers and shares of a document that stand in no list, or are not what is computed for them."""
    for rest, share in parts(text):
        phrase = max((key for key in [*LISTED["computed"], *GIVEN] if rest.startswith(key)), key=len, default="")
        if not phrase.startswith(share.said):
            yield f"'{rest[:40]}' is in no list: say in tests/documents.toml what computes it"
        elif phrase not in GIVEN and not share.holds(worth(LISTED["computed"][phrase])):
            yield f"{phrase!r} is {worth(LISTED['computed'][phrase]):g}"
    for key, number in dict(told(text)).items():
        computed = LISTED["computed"].get(key)
        if computed is None and key not in GIVEN:
            yield f"{key!r} is in no list: say in tests/documents.toml what computes it"
        elif computed and number._replace(word="") not in Pool([(worth(computed), "")]):
            yield f"{key!r} is {worth(computed):g}"


def worth(expression):
    return float(eval(expression, dict(SCOPE)))


def lessons_with_tag(tag):
    return sum(any(tag in cell["metadata"].get("tags", []) for cell in cells(path)) for path in LESSONS)


def lessons_with_record(gpu):
    return len(numbers_with_record(gpu))


def numbers_with_record(gpu):
    """The lessons whose code reads a record of this GPU."""
    code = {
        path: "".join(text for cell in cells(path) if cell["cell_type"] == "code" for text in cell["source"])
        for path in LESSONS
    }
    return [path.name[:2] for path, text in code.items() if "measure.recorded(" in text and f'"{gpu}"' in text]


def cells(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def decoders(gpu):
    return len(recorded("decoders", gpu=gpu).named("requested at the peak"))


def steps():
    return sum(
        len(recorded(stage, gpu=gpu).named("requested at the peak"))
        for gpu in records()
        for stage in ("memory", "decoders")
    )


#: What the expressions of documents.toml may name.
SCOPE = {
    "claims": claims, "FAMILIES": FAMILIES, "accelerators": accelerators, "TAMPERED": TAMPERED, "COSMETIC": COSMETIC,
    "CONDITIONS": CONDITIONS, "LESSONS": LESSONS, "pace": pace, "plans": plans, "structure": structure, "running": running,
    "caches": caches, "METHODS": METHODS,
    "predict": predict, "decoders": decoders, "steps": steps, "lessons_with_tag": lessons_with_tag,
    "lessons_with_record": lessons_with_record,
}  # fmt: skip


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_number_is_computed_or_listed(name):
    assert not [*unlisted(DOCUMENTS[name])]


def test_what_is_listed_is_needed():
    found = {key for text in DOCUMENTS.values() for key, _ in told(text)}
    begun = [rest for text in DOCUMENTS.values() for rest, _ in parts(text)]
    listed = [key for key in [*LISTED["computed"], *GIVEN] if key not in found]
    assert [key for key in listed if not any(rest.startswith(key) for rest in begun)] == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("31 ways", "41 ways"),
        ("eleven conditions", "twelve conditions"),
        ("28 GB", "18 GB"),
        ("at most a tenth of a lesson", "at most a fifth of a lesson"),
        ("Twenty-nine accelerators", "Thirty-nine accelerators"),
    ],
)
def test_another_number_is_seen(old, new):
    (text,) = (text for text in DOCUMENTS.values() if old in text)
    assert any(new in problem for problem in unlisted(text.replace(old, new)))


def test_the_lessons_that_show_the_record_are_named():
    (said,) = re.findall(r"Lessons (\d\d(?:, \d\d)* and \d\d) show the first", "\n".join(DOCUMENTS.values()))
    assert re.findall(r"\d\d", said) == numbers_with_record("NVIDIA H200")


def test_the_table_of_the_records_is_that_of_the_records():
    gpus = ["NVIDIA H200", "NVIDIA H100 80GB HBM3"]
    rows = "\n".join(f"| {' | '.join(parts)} |" for parts in zip(*map(record_rows, gpus), strict=True))
    (table,) = re.findall(r"\| predicted → measured .*?\n(?=\n|$)", "\n".join(DOCUMENTS.values()), flags=re.S)
    # What is reserved is predicted anew: tests/benchmarks/test_records.py.
    lines = [line for line in table.strip().splitlines()[2:] if "max_memory_reserved" not in line]
    assert ["| " + line.split(" | ", 1)[1] for line in lines] == rows.splitlines()


def record_rows(gpu):
    """A column of the table: what was predicted and what was measured on one GPU."""
    errors = {
        label: [
            row.predicted / row.measured - 1
            for stage in ("memory", "decoders")
            for row in recorded(stage, gpu=gpu).named(label)
        ]
        for label in ("saved activations", "requested at the peak", "peak of a step")
    }
    for label in ("saved activations", "requested at the peak"):
        yield f"{sum(error == 0 for error in errors[label])} the same, to the byte"
    peak = errors["peak of a step"]
    yield f"at most {100 * max(peak):.2f} % less or {-100 * min(peak):.2f} % more"
    overlap = recorded("overlap", gpu=gpu)
    copy, compute = (
        sum(row.measured for row in rows) / len(rows)
        for rows in (overlap.named("copy", pinned=True), overlap.named("compute", pinned=True))
    )
    least = predict.pipeline_seconds(6, copy_seconds=copy, compute_seconds=compute, overlap=True)
    yield arrow(least, overlap.named("whole", pinned=True)[0].measured, 2)
    for precision in ("fp8", "bf16"):
        (row,) = recorded("products", gpu=gpu).named("product", precision=precision, rows=16384, inner=32768)
        yield arrow(row.predicted, row.measured, 1)
    how = {"precision": "bf16", "batch": 64, "compiled": True}
    training = recorded("training step", gpu=gpu)
    (step,), (mfu,) = training.named("step", **how), training.named("MFU", **how)
    yield f"{arrow(step.predicted, step.measured, 1)}: MFU {mfu.measured:.2f}"
    (token,) = recorded("decoding", gpu=gpu).named("decoding step", how="graph", batch=1)
    yield arrow(token.predicted, token.measured, 1)


def arrow(predicted, measured, digits):
    return f"{1e3 * predicted:.{digits}f} → {1e3 * measured:.{digits}f} ms"

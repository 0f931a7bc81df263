import copy
import json
import re
import sys
from pathlib import Path

import jsonschema
import pytest

from cs336kit import measure
from cs336kit.measure.recorded import SCHEMA as SCHEMA_FILE
from cs336kit.measure.recorded import Row, Stage, check_record
from cs336kit.measure.recorded import recorded as function

pytestmark = pytest.mark.torch

ROW = {"label": "product", "setting": {"precision": "bf16", "rows": 64}, "predicted": 1.0, "measured": 2.0,
       "unit": "s", "repeats": [2.0, 2.1]}  # fmt: skip
RECORD = {
    "gpu": "NVIDIA Example", "driver": "1.2", "torch": "2.13.0", "cuda": "13.0", "python": "3.11.0", "dry_run": False,
    "stages": {"products": {"date": "2026-01-02", "wall_seconds": 1.5, "skipped": ["fp8: too old"], "rows": [ROW]}},
}  # fmt: skip
SCHEMA = json.loads(SCHEMA_FILE.read_text())


def changed(path, value):
    data = copy.deepcopy(RECORD)
    place = data
    for key in path[:-1]:
        place = place[key]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return data


STAGE = ("stages", "products")
BAD = [
    (("gpu",), 7), (("gpu",), ...), (("dry_run",), 0), (("surprise",), 1), (("stages",), []),
    ((*STAGE, "date"), "yesterday"), ((*STAGE, "wall_seconds"), -1), ((*STAGE, "rows", 0, "unit"), "furlongs"),
    ((*STAGE, "rows", 0, "measured"), None), ((*STAGE, "rows", 0, "measured"), True), ((*STAGE, "rows", 0, "repeats"), ...),
    ((*STAGE, "rows", 0, "setting"), {"a": [1]}), ((*STAGE, "skipped", 0), 3),
]  # fmt: skip


def test_the_schema_itself_is_valid_and_the_example_fits():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(RECORD, SCHEMA)
    check_record(RECORD)


@pytest.mark.parametrize(("path", "value"), BAD, ids=str)
def test_what_does_not_fit_is_refused_by_its_place(path, value):
    place = ".".join(str(step) for step in path[: -1 if value in (..., 1) else None]).replace(".0", "[0]")
    with pytest.raises(ValueError, match=re.escape(f"record.{place}".rstrip(".")) + r".*: .+"):
        check_record(changed(path, value))


def test_numbers_must_be_finite():
    with pytest.raises(
        ValueError, match=re.escape("record.stages.products.rows[0].measured: inf is not JSON compliant")
    ):
        check_record(changed((*STAGE, "rows", 0, "measured"), float("inf")))


def test_shipped_records_fit():
    for record in measure.records().values():
        jsonschema.validate(record, SCHEMA)
        assert not record["dry_run"] and record["gpu"] != "cpu"


def test_no_record_says_so(tmp_path):
    nothing = function("products", folder=tmp_path)
    assert not nothing and nothing.rows == () and nothing.named("product") == ()
    assert repr(nothing).startswith("There is no record of 'products' yet: `make gpu`")


def test_records_are_data_of_the_package_and_any_folder_may_hold_others(tmp_path, monkeypatch):
    module = sys.modules[check_record.__module__]
    assert {module.SCHEMA.parents[1], module.RECORDS.parent} == {Path(measure.__file__).parents[1]}
    assert {"NVIDIA H200", "NVIDIA H100 80GB HBM3"} <= set(measure.records())
    monkeypatch.setattr(module, "RECORDS", tmp_path / "none")
    assert measure.records() == {}
    (tmp_path / "a.json").write_text(json.dumps(RECORD))
    assert list(measure.records(tmp_path)) == [RECORD["gpu"]] and function("products", folder=tmp_path).rows


def test_a_gpu_without_a_record_is_named_with_those_that_have_one(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"no record of 'NVIDIA Own' in .*; there are .*'NVIDIA H200'.*make gpu"):
        function("products", gpu="NVIDIA Own")
    monkeypatch.setattr(sys.modules[check_record.__module__], "RECORDS", tmp_path)
    with pytest.raises(ValueError, match=r"no record of 'NVIDIA H200' in .*; there are none\. .*install it again"):
        function("products", gpu="NVIDIA H200")


def test_reading_a_stage(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(RECORD))
    newer = changed(("gpu",), "NVIDIA Newer")
    newer["stages"]["products"]["date"] = "2026-02-01"
    (tmp_path / "b.json").write_text(json.dumps(newer))
    stage = function("products", folder=tmp_path)
    assert stage.gpu == "NVIDIA Newer" and stage.named("product", precision="bf16")[0].measured == 2.0
    assert stage.named("product", precision="fp8") == () and "skipped: fp8: too old" in repr(stage)
    assert function("products", gpu="NVIDIA Example", folder=tmp_path).date == "2026-01-02"
    assert not function("memory", folder=tmp_path)


def test_rows_are_found_by_their_label_and_setting_and_told_in_a_line():
    other = {**ROW, "setting": {"precision": "fp8"}, "predicted": None, "measured": 0.5, "unit": "FLOP/s"}
    rows = [Row(**row) for row in (ROW, other, {**ROW, "label": "sum"})]
    stage = Stage("products", "NVIDIA Example", "2.13.0", "2026-01-02", ("fp4: too old",), tuple(rows))
    assert stage.named("product") == tuple(rows[:2]) and stage.named("product", precision="fp8") == (rows[1],)
    assert stage.named("sum", precision="fp8") == stage.named("product", precision="bf16", rows=32) == ()
    assert repr(stage).splitlines() == [
        "products, recorded on NVIDIA Example with torch 2.13.0 on 2026-01-02",
        "  product precision=bf16 rows=64: 2 s, predicted 1",
        "  product precision=fp8: 0.5 FLOP/s",
        "  sum precision=bf16 rows=64: 2 s, predicted 1",
        "  skipped: fp4: too old",
    ]


def test_a_rehearsal_is_never_shown_as_a_record(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(changed(("dry_run",), True)))
    assert not function("products", folder=tmp_path)


def test_a_broken_record_is_an_error(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(changed((*STAGE, "date"), "soon")))
    with pytest.raises(ValueError, match=r"a.json is no record .*record.stages.products.date: 'soon' does not match"):
        function("products", folder=tmp_path)


@pytest.mark.parametrize("text", ["", json.dumps(RECORD)[:-9], "[]", "7", "\udc80"])
def test_a_record_that_is_damaged_is_named_with_what_to_do(tmp_path, text):
    (tmp_path / "a.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=r"a\.json is no record of a GPU \(.+\)\. .*git checkout"):
        measure.records(tmp_path)

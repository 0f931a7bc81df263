import copy
import json

import jsonschema
import pytest
import torch

from cs336kit import measure
from cs336kit.measure.recorded import RECORDS, check_record, write_stage
from cs336kit.measure.recorded import recorded as function

ROW = {"label": "product", "setting": {"precision": "bf16", "rows": 64}, "predicted": 1.0, "measured": 2.0,
       "unit": "s", "repeats": [2.0, 2.1]}  # fmt: skip
RECORD = {
    "gpu": "NVIDIA Example", "driver": "1.2", "torch": "2.13.0", "cuda": "13.0", "python": "3.11.0", "dry_run": False,
    "stages": {"products": {"date": "2026-01-02", "wall_seconds": 1.5, "skipped": ["fp8: too old"], "rows": [ROW]}},
}  # fmt: skip
SCHEMA = json.loads((RECORDS / "schema.json").read_text())


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
def test_both_validators_refuse(path, value):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(changed(path, value), SCHEMA)
    with pytest.raises(ValueError, match="record"):
        check_record(changed(path, value))


def test_numbers_must_be_finite():
    with pytest.raises(ValueError, match="finite"):
        check_record(changed((*STAGE, "rows", 0, "measured"), float("inf")))


def test_shipped_records_fit():
    for record in measure.records().values():
        jsonschema.validate(record, SCHEMA)
        assert not record["dry_run"] and record["gpu"] != "cpu"


def test_no_record_says_so(tmp_path):
    nothing = function("products", folder=tmp_path)
    assert not nothing and nothing.rows == () and nothing.named("product") == ()
    assert repr(nothing).startswith("There is no record of 'products' yet: `make gpu`")


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


def test_a_rehearsal_is_never_shown_as_a_record(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(changed(("dry_run",), True)))
    assert not function("products", folder=tmp_path)


def test_a_broken_record_is_an_error(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(changed((*STAGE, "date"), "soon")))
    with pytest.raises(ValueError, match=r"record.stages.products.date must match"):
        function("products", folder=tmp_path)


def test_writing_adds_stages_and_keeps_the_others(tmp_path):
    for stage in ("products", "memory"):
        path = write_stage(tmp_path, stage, rows=[ROW], skipped=[], wall_seconds=1.0, dry_run=True)
    data = json.loads(path.read_text())
    jsonschema.validate(data, SCHEMA)
    assert list(data["stages"]) == ["products", "memory"] and data["torch"] == torch.__version__
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_only_a_gpu_writes_among_the_records(tmp_path):
    before = sorted(RECORDS.iterdir())
    with pytest.raises(RuntimeError, match="only a full run on a CUDA device"):
        write_stage(RECORDS, "products", rows=[ROW], skipped=[], wall_seconds=1.0, dry_run=True)
    assert sorted(RECORDS.iterdir()) == before

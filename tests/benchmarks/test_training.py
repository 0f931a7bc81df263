import numpy as np
import torch

from benchmarks import training as bench
from cs336kit.lm import TokenFile, get_batch


def test_both_loaders_draw_the_same_batch(tmp_path):
    tokens = TokenFile.write(tmp_path / "t", np.arange(3000) % 700, vocab=700)
    draw = [
        loader(tokens, batch=4, sequence=9, generator=torch.Generator().manual_seed(2))
        for loader in (get_batch, bench.row_by_row)
    ]
    assert all(torch.equal(a, b) for a, b in zip(*draw, strict=True))


def test_the_tables_are_printed(capsys, monkeypatch):
    monkeypatch.setattr(bench, "loader_seconds", lambda tokens, **_: {"get_batch": 1e-5, "row by row": 3e-5})
    monkeypatch.setattr(bench, "step_seconds", lambda **_: {"bare loop": 0.02, "train, fp32": 0.021})
    monkeypatch.setattr(bench, "attention_seconds", lambda where, **_: {"eager": 0.0028, "sdpa": 0.002})
    bench.main()
    out = capsys.readouterr().out
    assert "3.0×" in out and "1.05" in out and out.count("2.80 ms     2.00 ms    1.40\n") == len(bench.SMALL)


def test_a_step_is_timed_with_both_kinds_of_attention():
    seconds = bench.attention_seconds("18, section 2", device="cpu", repeats=1)
    assert list(seconds) == ["eager", "sdpa"] and min(seconds.values()) > 0


def test_one_step_of_each_kind():
    seconds = bench.step_seconds(device="cpu", repeats=1)
    # A CPU has no units for fp8, and would take a minute.
    assert list(seconds) == ["bare loop", "train, fp32", "train, autocast"]
    assert all(value > 0 for value in seconds.values())

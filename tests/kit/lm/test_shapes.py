"""The shapes written in the signatures are true: every call of a training step and of generation, checked at run time."""

import runpy
import subprocess
import sys
import textwrap

import pytest
import torch

from cs336kit.lm import _shapes

pytestmark = pytest.mark.torch

PROGRAM = """
    from jaxtyping import install_import_hook

    with install_import_hook("cs336kit.lm", "beartype.beartype"):
        from cs336kit import lm

    from dataclasses import replace
    import torch
    from cs336kit import predict

    paper = predict.TransformerConfig(layers=2, d_model=16, heads=4, vocab=31, context=12, dropout=0.1)
    llama = predict.TransformerConfig(
        layers=2, d_model=16, heads=4, kv_heads=2, head_dim=6, d_ff=24, vocab=31, context=12, mlp="swiglu",
        norm="rmsnorm", positions="rope", bias="none", tied_head=False, window=5, experts=3, experts_per_token=2,
    )
    tokens = torch.randint(31, (2, 6))
    for config in (paper, llama):
        for attention in ("eager", "sdpa"):
            model = lm.DecoderOnly(config, attention=attention)
            lm.cross_entropy(model(tokens), tokens).backward()
            lm.clip_gradients(model.parameters(), max_norm=1.0)
            for cache in (True, False):
                lm.generate(model, tokens, new_tokens=5, cache=cache, temperature=1.0, top_k=3)
    latent = replace(llama, kv_heads=None, kv_latent=5, rotary_dim=2, query_latent=7, window=None, experts=0, experts_per_token=0)
    model = lm.DecoderOnly(latent)
    lm.cross_entropy(model(tokens), tokens).backward()
    for kind in ("growing", "contiguous", "paged", "int8", "int4"):
        lm.generate(model, tokens, new_tokens=5, cache=kind, temperature=1.0, top_p=0.9)
    lm.speculative(model, lm.DecoderOnly(paper), tokens[:1], new_tokens=5, guesses=2, temperature=1.0)
    z = torch.randn(2, 3, 4)
    lm.layer_norm(z, torch.ones(4), torch.zeros(4))
    try:
        lm.attention(torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 6, 8))
    except Exception as error:
        print(type(error).__name__, "value" in str(error))
"""


def test_every_annotated_shape_holds_and_a_wrong_one_is_caught():
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)], capture_output=True, text=True, timeout=200, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == "TypeCheckError True\n"


def test_without_jaxtyping_they_are_plain_tensors(monkeypatch):
    monkeypatch.setitem(sys.modules, "jaxtyping", None)
    plain = runpy.run_path(_shapes.__file__)
    assert {plain[name][torch.Tensor, "B S"] for name in ("Float", "Int", "Shaped")} == {torch.Tensor}

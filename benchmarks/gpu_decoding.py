"""One decoding step on a GPU beside its bounds: call by call, and as a graph, where the host has no part in it."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from benchmarks.gpu_rows import Run, row
from cs336kit import lm, measure, predict


@torch.no_grad()
def decoding(run: Run) -> Iterator[dict]:
    """Seconds of one step of Llama 3 8B in bf16 for some batches, each sequence with 1,024 tokens in its cache.

    The prediction is `predict.decode_bounds`' lower one: weights and caches are read once, and nothing waits.
    """
    config = predict.MODELS["llama-3-8b"]
    cached, batches = 1024, (1, 8, 32, 128)
    if run.tiny:
        config = replace(config, layers=2, d_model=64, heads=4, kv_heads=2, d_ff=128, vocab=256, context=64)
        cached, batches = 16, (2,)
    try:
        model = lm.Llama(config, attention="sdpa", device=run.device, dtype=torch.bfloat16).eval()
    except torch.OutOfMemoryError as error:
        run.skip("decoding: the model takes 16 GB", error)
        return
    run.free()
    for batch in batches:
        bounds = None
        if run.chip:
            bounds = predict.decode_bounds(config, accelerator=run.chip, batch=batch, cached=cached)
        setting = {"model": "llama-3-8b", "batch": batch, "cached": cached}
        if bounds:
            setting |= {"most": bounds.most, "bound": bounds.bound}
        step = graph = None
        try:
            step = _step(model, batch, cached, run.device)
            for how in ("call by call", "graph"):
                if how == "graph":
                    if run.device.type != "cuda":
                        run.skip("graphs", "this run has no CUDA device")
                        continue
                    graph = _graph(step)
                timing = measure.seconds(graph.replay if graph else step, device=run.device, **run.timing)
                yield row("decoding step", timing, "s", predicted=bounds and bounds.least, how=how, **setting)
        except RuntimeError as error:
            run.skip(f"decoding at batch {batch}", error)
        finally:
            step = graph = None
            run.free()


def _step(model: lm.DecoderOnly, batch: int, cached: int, device: torch.device) -> Callable[[], None]:
    """A step for `cached` tokens of each of `batch` sequences; it forgets its token, so that every call does the same."""
    config = model.config
    memory = lm.KVCache(config, kind="contiguous", tokens=cached + 1)
    shape = batch, config.kv_heads, cached, config.head_dim
    for layer in memory.layers:
        # The text's own keys would take logits for every token of every sequence; what they are changes no time.
        layer.extend(*(torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(2)))
    memory.tokens = cached
    token = torch.zeros(batch, 1, dtype=torch.int64, device=device)

    def step() -> None:
        model(token, cache=memory)
        memory.shorten(cached)

    return step


def _graph(step: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """The kernels of a step, recorded once: `replay` launches all of them with one call."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph

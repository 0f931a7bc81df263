"""Kernels that people run where transformers' module on a CPU writes the same out: fake operations that save what theirs save.

B batch · L or T sequence · D width of the scan · N its states · H heads · P or V values and K keys per head · G groups ·
Q length of a chunk. transformers leaves these functions to packages and has a fallback in torch for each. A fallback keeps
what nobody keeps (a written-out scan, every state of every position), so an answer that counted one is an upper bound.
FLOPs are those of the kernel's matrix products. Left out: workspace inside a kernel.
Sources: Dao-AILab/causal-conv1d `causal_conv1d_interface.py`; state-spaces/mamba `selective_scan_interface.py` and
`triton/ssd_combined.py`; fla-org/flash-linear-attention `ops/gated_delta_rule/chunk.py` and
`ops/kda/chunk.py`.
"""

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import register_flop_formula

from cs336plan.trace.cuda import on_cuda

#: Chunks of linear attention in fla; selective_scan keeps the states at the end of each run of so many positions.
DELTA_CHUNK, SCAN_RUN = 64, 2048

_library = torch.library.Library("cs336plan", "FRAGMENT")
_library.define("made(Tensor like, int[] shape, ScalarType dtype, int flops) -> Tensor")
_library.define("mark() -> ()")


def _made(like: Tensor, shape: Sequence[int], dtype: torch.dtype, flops: int) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=like.device)


_library.impl("made", _made, "CompositeExplicitAutograd")
_library.impl("mark", lambda: None, "CompositeExplicitAutograd")
torch.library.register_fake("cs336plan::made", _made, lib=_library)
#: Does nothing: a timeline shows where it ran.
mark = torch.ops.cs336plan.mark
MARK = str(mark.default)


@register_flop_formula(torch.ops.cs336plan.made, get_raw=True)
def _flops(like: Tensor, shape: Sequence[int], dtype: torch.dtype, flops: int, **kwargs: Any) -> int:
    return flops


#: Shape and type of a tensor that a kernel makes.
_Made = tuple[tuple[int, ...], torch.dtype]


@dataclass(frozen=True)
class _Kernel:
    """One call: shapes and types of what it returns and of what it saves besides inputs and results, and its FLOPs."""

    returns: tuple[_Made, ...]
    saves: tuple[_Made, ...] = ()
    keeps_result: bool = False
    forward: int = 0
    backward: int = 0


class _Fused(torch.autograd.Function):
    """Returns empty tensors; keeps those inputs that are wanted, and what the kernel makes for its backward pass."""

    @staticmethod
    def forward(ctx: Any, kernel: _Kernel, wanted: Sequence[bool], *inputs: Tensor | None) -> Any:
        like = next(t for t in inputs if t is not None)
        made = torch.ops.cs336plan.made
        results = [
            made(like, shape, dtype, 0 if i else kernel.forward) for i, (shape, dtype) in enumerate(kernel.returns)
        ]
        saved = [made(like, shape, dtype, 0) for shape, dtype in kernel.saves]
        kept = [t for t, keep in zip(inputs, wanted, strict=True) if keep and t is not None]
        ctx.save_for_backward(*kept, *saved, *results[: int(kernel.keeps_result)])
        ctx.kernel, ctx.shapes = kernel, [None if t is None else (t.shape, t.dtype) for t in inputs]
        ctx.mark_non_differentiable(*results[1:])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.saved_tensors  # noqa: B018 - what is recomputed under checkpointing is recomputed when this is read
        flops = ctx.kernel.backward
        found: list[Tensor | None] = []
        for shape, needed in zip(ctx.shapes, ctx.needs_input_grad[2:], strict=True):
            if shape is None or not needed:
                found.append(None)
                continue
            found.append(torch.ops.cs336plan.made(gradients[0], *shape, flops))
            flops = 0
        return (None, None, *found)


def _run(kernel: _Kernel, *inputs: Tensor | None, dropped: Sequence[Tensor | None] = ()) -> tuple[Tensor, ...]:
    """`inputs` are kept, `dropped` have a gradient only."""
    wanted = [True] * len(inputs) + [False] * len(dropped)
    found: tuple[Tensor, ...] = _Fused.apply(kernel, wanted, *inputs, *dropped)
    return found


def _lined_up(x: Tensor, dim: int = -1) -> Tensor:
    return x if x.stride(dim) == 1 else x.contiguous()


def _convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, **_: Any
) -> Tensor:
    x = x if 1 in (x.stride(1), x.stride(2)) else x.contiguous()
    flops = 2 * x.numel() * weight.shape[-1]
    return _run(_Kernel(((tuple(x.shape), x.dtype),), (), False, flops, 2 * flops), x, weight, bias)[0]


def _scan(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, z: Tensor | None = None,
    delta_bias: Tensor | None = None, delta_softplus: bool = False, return_last_state: bool = False, **_: Any,
) -> Any:  # fmt: skip
    batch, width, length = x.shape
    states = (batch, width, -(-length // SCAN_RUN), 2 * A.shape[-1])
    flops, shape = 2 * x.numel() * A.shape[-1], (tuple(x.shape), x.dtype)
    gated = z is not None
    returns = (shape, ((batch, width, A.shape[-1]), torch.float32)) if return_last_state else (shape,)
    # With a gate, the output before it is kept; without one, no output.
    saves = ((states, torch.float32), *([shape] if gated else []))
    kernel = _Kernel(returns, saves, False, flops, 2 * flops)
    lined = [t if t is None else _lined_up(t) for t in (x, dt, B, C, z)]
    results = _run(kernel, *lined, A, D, delta_bias)
    return results if return_last_state else results[0]


def _inner(
    xz: Tensor, conv1d_weight: Tensor, conv1d_bias: Tensor | None, x_proj_weight: Tensor, delta_proj_weight: Tensor,
    out_proj_weight: Tensor, out_proj_bias: Tensor | None, A: Tensor, B: Tensor | None = None, C: Tensor | None = None,
    D: Tensor | None = None, delta_bias: Tensor | None = None, b_rms_weight: Tensor | None = None,
    c_rms_weight: Tensor | None = None, dt_rms_weight: Tensor | None = None, **_: Any,
) -> Tensor:  # fmt: skip
    xz = _lined_up(xz)
    batch, double, length = xz.shape
    width, states, tokens, kind = double // 2, A.shape[-1], batch * length, xz.dtype
    convolution = 2 * tokens * width * conv1d_weight.shape[-1]
    dt = 2 * tokens * delta_proj_weight.numel()
    once = convolution + dt + 2 * tokens * (x_proj_weight.numel() + out_proj_weight.numel() + width * states)
    saves = (
        ((tokens, x_proj_weight.shape[0]), kind),
        *([((batch, 1, states, length), kind)] * 2),  # B and C
        ((batch, width, -(-length // SCAN_RUN), 2 * states), torch.float32),
        ((batch, width, length), kind),  # the output before the gate
    )
    # The convolution and the steps are computed again in the backward pass.
    kernel = _Kernel(
        (((batch, length, out_proj_weight.shape[0]), kind),), saves, False, once, 2 * once + convolution + dt
    )
    kept = (xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, out_proj_weight, A, D, delta_bias)
    return _run(kernel, *kept, b_rms_weight, c_rms_weight, dt_rms_weight, dropped=[out_proj_bias])[0]


def _chunk_flops(tokens: int, chunk: int, heads: int, head_dim: int, groups: int, states: int) -> tuple[int, int]:
    """Of the forward and of the backward pass, which makes the products of C and B and the states again."""
    scores, state = 2 * tokens * chunk * groups * states, 2 * tokens * heads * head_dim * states
    once = scores + 2 * tokens * chunk * heads * head_dim + 2 * state
    return once, 2 * once + scores + state


def _chunk_scan(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, chunk_size: int, D: Tensor | None = None,
    z: Tensor | None = None, dt_bias: Tensor | None = None, initial_states: Tensor | None = None,
    return_final_states: bool = False, **_: Any,
) -> Any:  # fmt: skip
    batch, length, heads, head_dim = x.shape
    groups, states = B.shape[2:]
    flops = _chunk_flops(batch * length, chunk_size, heads, head_dim, groups, states)
    steps = ((batch, heads, -(-length // chunk_size), chunk_size), torch.float32)
    final = ((batch, heads, head_dim, states), torch.float32)
    returns = ((tuple(x.shape), x.dtype), *([final] if return_final_states else []))
    gated = z is not None
    kernel = _Kernel(returns, (steps, *([returns[0]] if gated else [])), not gated, *flops)
    results = _run(kernel, x, dt, A, B, C, D, z, dt_bias, initial_states)
    return results if return_final_states else results[0]


def _split_scan(
    zxbcdt: Tensor, conv1d_weight: Tensor, conv1d_bias: Tensor | None, dt_bias: Tensor, A: Tensor, D: Tensor,
    chunk_size: int, rmsnorm_weight: Tensor | None = None, outproj_weight: Tensor | None = None,
    outproj_bias: Tensor | None = None, headdim: int | None = None, ngroups: int = 1, **_: Any,
) -> Tensor:  # fmt: skip
    batch, length, _width = zxbcdt.shape
    tokens, kind, heads = batch * length, zxbcdt.dtype, D.shape[0]
    head_dim = headdim if D.dim() == 1 and headdim else D.shape[-1]
    states = (conv1d_weight.shape[0] - heads * head_dim) // ngroups // 2
    forward, backward = _chunk_flops(tokens, chunk_size, heads, head_dim, ngroups, states)
    convolution = 2 * tokens * conv1d_weight.numel()
    last = 2 * tokens * (0 if outproj_weight is None else outproj_weight.numel())
    width = heads * head_dim if outproj_weight is None else outproj_weight.shape[0]
    saves: list[_Made] = [((batch, length, heads, head_dim), kind)]
    if rmsnorm_weight is not None:
        saves.append(((ngroups * tokens,), torch.float32))
    flops = (forward + convolution + last, backward + 3 * convolution + 2 * last)
    kernel = _Kernel((((batch, length, width), kind),), tuple(saves), False, *flops)
    kept = (zxbcdt, conv1d_weight, conv1d_bias, A, D, dt_bias, rmsnorm_weight, outproj_weight)
    return _run(kernel, *kept, dropped=[outproj_bias])[0]


def _delta_rule(
    query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, initial_state: Tensor | None = None,
    output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False, **_: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    batch, length, heads, values = value.shape
    keys, chunk, half = key.shape[-1], DELTA_CHUNK, value.dtype
    query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    rows = 2 * batch * length * heads
    once = rows * (chunk * (3 * keys + 2 * values) + 3 * keys * values)
    again = rows * (chunk * (keys + values) + 2 * keys * values)
    # The sums of the decays, the inverse of a chunk's triangle, and norms. With a decay for each key (kda), what it is given
    # is kept beside its sums, and the scores beside the inverse.
    each_key = g.dim() == 4
    triangle = ((batch, length, heads, chunk), half)
    saves: list[_Made] = [(tuple(g.shape), torch.float32), *([triangle] * (2 if each_key else 1))]
    kept: list[Tensor | None] = [value, beta, initial_state, *([g] if each_key else [])]
    dropped: list[Tensor | None] = [] if each_key else [g]
    if use_qk_l2norm_in_kernel:
        saves += [(tuple(t.shape), half) for t in (query, key)] + [
            (tuple(t.shape[:3]), torch.float32) for t in (query, key)
        ]
        dropped += [query, key]
    else:
        kept += [query, key]
    final = ((batch, heads, keys, values), torch.float32)
    returns = ((tuple(value.shape), half), *([final] if output_final_state else []))
    results = _run(_Kernel(returns, tuple(saves), False, once, 2 * once + again), *kept, dropped=dropped)
    return results[0], results[1] if output_final_state else None


_explicit = F.scaled_dot_product_attention


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Fused attention where a CPU takes the explicit path and GPUs do not: with dropout, and for narrower values.

    Kept, as by every flash attention: queries, keys, values, the mask, the output, and the logarithm of each row's sum in fp32.
    """
    if value.shape[-1] == query.shape[-1] and not dropout_p:
        return _explicit(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if torch.is_autocast_enabled("cpu"):
        query, key, value = (t.to(torch.get_autocast_dtype("cpu")) for t in (query, key, value))
    batch, heads, length, width = query.shape
    wide = value.shape[-1]
    products = 2 * batch * heads * length * key.shape[-2]
    # Positions before heads, as flash attention writes its output.
    shape, sums = (batch, length, heads, wide), ((batch, heads, length), torch.float32)
    flops = products * (width + wide), products * (3 * width + 2 * wide)
    kernel = _Kernel(((shape, query.dtype),), (sums,), True, *flops)
    return _run(kernel, query, key, value, attn_mask)[0].transpose(1, 2)


#: The package's own name of a function → what takes its place.
KERNELS: dict[str, Callable[..., Any]] = {
    "causal_conv1d_fn": _convolution,
    "selective_scan_fn": _scan,
    "mamba_inner_fn": _inner,
    "mamba_chunk_scan_combined": _chunk_scan,
    "mamba_split_conv1d_scan_combined": _split_scan,
    "chunk_gated_delta_rule": _delta_rule,
    "chunk_kda": _delta_rule,
}
#: For one token at a time: the fallback multiplies what the kernel multiplies, and nothing is kept.
_ONE_TOKEN = (
    "causal_conv1d_update",
    "selective_state_update",
    "fused_recurrent_gated_delta_rule",
    "fused_recurrent_kda",
)


def fallbacks(model: nn.Module) -> dict[tuple[Any, str], tuple[str, str, Callable[..., Any]]]:
    """(Python module, name there) → (function of a package, the package, what runs in its place) for what a model may call."""
    found = {}
    for where in {
        type(part).__module__ for part in model.modules() if type(part).__module__.startswith("transformers.models.")
    }:
        module = sys.modules[where]
        for name, value in vars(module).items():
            if not inspect.isfunction(value) or not hasattr(value, "__wrapped__"):
                continue
            inside = inspect.getclosurevars(value).nonlocals
            if {"func_name", "package", "torch_function"} <= set(inside):
                found[module, name] = (inside["func_name"], inside["package"], inside["torch_function"])
    return found


@contextlib.contextmanager
def kernels(model: nn.Module, *, fused: bool = True) -> Iterator[set[str]]:
    """Fake kernels in place of fallbacks; yields the set of "function of package" whose fallback has run.

    Without `fused`, all fallbacks run, as they do on a CPU without those packages.
    """
    written: set[str] = set()

    def noted(name: str, package: str, fallback: Callable[..., Any]) -> Callable[..., Any]:
        parameters = inspect.signature(fallback).parameters

        def run(*args: Any, **kwargs: Any) -> Any:
            result = fallback(*args, **{k: v for k, v in kwargs.items() if k in parameters})
            # Some have none: None says that the module itself is written out.
            if result is not None and name not in _ONE_TOKEN:
                written.add(f"{name} of {package}")
            return result

        return run

    with contextlib.ExitStack() as stack:
        if fused and not on_cuda(model):  # which has its own rule
            stack.enter_context(mock.patch.object(F, "scaled_dot_product_attention", _attention))
        for (module, place), (name, package, fallback) in fallbacks(model).items():
            stand_in = KERNELS[name] if fused and name in KERNELS else noted(name, package, fallback)
            stack.enter_context(mock.patch.object(module, place, stand_in))
        yield written

"""What the kit uses of torch without a promise: when one of these fails, torch changed it, and _torch follows."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from cs336kit import _torch
from cs336kit._torch import collectives, flops

pytestmark = pytest.mark.torch

aten = torch.ops.aten


def test_private_names_stand_in_one_folder():
    private = re.compile(
        r"torch\._[a-zC]|\._cdata|\._schema|_saved_|_input_metadata|_python_dispatch|_pytree|flop_counter import"
    )
    kit = Path(_torch.__file__).parents[1]
    found = {path for path in kit.rglob("*.py") if private.search(path.read_text(encoding="utf-8"))}
    assert found == set((kit / "_torch").glob("*.py"))


def test_operations_are_found_by_their_names():
    for value, name in ((torch.ops, "ops"), (torch.ops.aten, "ops.aten"), (aten.mm, "ops.aten.mm")):
        assert _torch.operation_name(value) == name
    assert _torch.operation_name(aten.mm.default) == "ops.aten.mm.default"
    assert _torch.operation_name(torch.mm) is None and _torch.operation_name(3) is None


def test_nested_tensors_are_found():
    a, b = torch.ones(1), torch.ones(2)
    assert [id(t) for t in _torch.tensors(({"x": [a, 3]}, (b, None)))] == [id(a), id(b)]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize(
    ("layout", "sizes"),
    [
        (torch.sparse_coo, (2 * 4 * 8, 4 * 4)), (torch.sparse_csr, (5 * 8, 4 * 8, 4 * 4)),
        (torch.sparse_csc, (5 * 8, 4 * 8, 4 * 4)), (torch.sparse_bsr, (3 * 8, 2 * 8, 2 * 16)),
        (torch.sparse_bsc, (3 * 8, 2 * 8, 2 * 16)),
    ],
)  # fmt: skip
def test_a_sparse_tensor_is_the_tensors_it_is_made_of(layout, sizes):
    blocks = {"blocksize": (2, 2)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}
    sparse = torch.eye(4).to_sparse(layout=layout, **blocks)
    assert tuple(part.nbytes for part in _torch.tensors([sparse])) == sizes
    assert [_torch.storage_key(a) for a in _torch.tensors(sparse)] == [
        _torch.storage_key(b) for b in _torch.tensors(sparse)
    ]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_storage_has_one_key_and_two_have_two(device):
    a, b = torch.ones(4, device=device), torch.ones(4, device=device)
    assert _torch.storage_key(a) == _torch.storage_key(a[1:]) != _torch.storage_key(b)


def test_a_resized_storage_is_announced_only_while_someone_watches():
    known, seen = torch.ones(4), []
    with _torch.storage_resizes(
        lambda storage, before: seen.append((_torch.key_of(storage), before, storage.nbytes()))
    ):
        known.untyped_storage().resize_(0)
    known.untyped_storage().resize_(8)
    assert seen == [(_torch.storage_key(known), 16, 0)]


def test_those_who_watch_resizes_may_leave_in_any_order():
    own, seen = torch.UntypedStorage.resize_, []
    first, second = (_torch.storage_resizes(lambda *_, name=name: seen.append(name)) for name in ("first", "second"))
    first.__enter__()
    second.__enter__()
    torch.ones(4).untyped_storage().resize_(0)
    first.__exit__(None, None, None)
    torch.ones(4).untyped_storage().resize_(0)
    second.__exit__(None, None, None)
    torch.ones(4).untyped_storage().resize_(0)
    assert seen == ["first", "second", "second"] and torch.UntypedStorage.resize_ is own


def test_operators_know_whether_they_write():
    assert _torch.writes(aten.relu_.default) and _torch.writes(aten.add.out)
    assert not _torch.writes(aten.relu.default) and not _torch.writes(aten.view.default)


def test_nodes_are_numbered_in_the_order_of_the_forward_pass():
    x, seen = torch.ones(2, requires_grad=True), []
    numbers = [_torch.next_node()]
    for _ in range(3):
        x = x.exp()
        x.register_hook(lambda _: seen.append((_torch.in_backward(), _torch.running_node())))
        numbers.append(_torch.next_node())
    assert numbers == list(range(numbers[0], numbers[0] + 4))
    assert not _torch.in_backward() and _torch.running_node() is None
    _torch.run_backward(x.sum(), torch.ones(()))
    assert all(inside for inside, _ in seen) and len(seen) == 3


def test_the_running_node_is_the_one_whose_backward_runs():
    numbers = []

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            numbers.append(_torch.running_node())
            return gradient

    x = torch.ones(2, requires_grad=True)
    first = _torch.next_node()
    Watched.apply(x).sum().backward()
    assert numbers == [first]


def test_run_backward_equals_backward_and_keeps_a_function_mode_in_force():
    class Names(torch.overrides.TorchFunctionMode):
        seen = ()

        def __torch_function__(self, function, types, args=(), kwargs=None):
            self.seen = (*self.seen, function.__name__)
            return function(*args, **(kwargs or {}))

    x = torch.randn(3, requires_grad=True)
    (x * x).sum().backward()
    expected, x.grad = x.grad, None
    loss = torch.utils.checkpoint.checkpoint(lambda x: x * x, x, use_reentrant=False).sum()
    with Names() as names:
        _torch.run_backward(loss, torch.ones(()))
    assert torch.equal(x.grad, expected) and "mul" in names.seen
    # What was kept is released, and the gradient has no graph of its own.
    with pytest.raises(RuntimeError, match="a second time"):
        loss.backward()
    assert not x.grad.requires_grad


def test_a_node_tells_its_shape_and_what_it_keeps():
    x = torch.randn(2, 3, requires_grad=True)
    y = x.exp()
    assert _torch.node_shape(y.grad_fn) == (2, 3)
    ((name, kept),) = _torch.node_saved(y.grad_fn)
    assert name == "result" and _torch.storage_key(kept) == _torch.storage_key(y)


def test_module_hooks_are_called_around_every_module_and_removed():
    calls = []
    hooks = _torch.module_hooks(lambda m, x: calls.append("before"), lambda m, x, y: calls.append("after"))
    nn.Sequential(nn.ReLU())(torch.ones(1))
    for hook in hooks:
        hook.remove()
    nn.ReLU()(torch.ones(1))
    assert calls == ["before", "before", "after", "after"]


def test_the_scaled_product():
    a, b = torch.randn(16, 32).to(torch.float8_e4m3fn), torch.randn(16, 32).to(torch.float8_e4m3fn)
    one = torch.tensor(1.0)
    found = _torch.scaled_product(a, b.t(), scale_a=one, scale_b=one)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), a.float() @ b.float().t(), rtol=0.02, atol=0.05)


def test_the_scaled_product_is_the_one_that_the_peak_of_fp8_means(monkeypatch):
    monkeypatch.setattr(torch, "_scaled_mm", lambda *factors, **how: how)
    assert _torch.scaled_product(None, None, scale_a=None, scale_b=None)["use_fast_accum"] is True


def fp8(*shape):
    return torch.randn(*shape).to(torch.float8_e4m3fn)


def int8(*shape):
    return torch.randint(-8, 8, shape, dtype=torch.int8)


B, M, K, N = 3, 32, 16, 48
one = torch.tensor(1.0)
#: operator, a call of it, and its FLOPs by hand
PRODUCTS = {
    "mm": (lambda: torch.randn(M, K) @ torch.randn(K, N), 2 * M * K * N),
    "addmm": (lambda: torch.addmm(torch.ones(N), torch.randn(M, K), torch.randn(K, N)), 2 * M * K * N),
    "bmm": (lambda: torch.bmm(torch.randn(B, M, K), torch.randn(B, K, N)), 2 * B * M * K * N),
    "baddbmm": (
        lambda: torch.baddbmm(torch.ones(B, M, N), torch.randn(B, M, K), torch.randn(B, K, N)), 2 * B * M * K * N
    ),
    "addbmm": (lambda: torch.addbmm(torch.ones(M, N), torch.randn(B, M, K), torch.randn(B, K, N)), 2 * B * M * K * N),
    "int_mm": (lambda: torch._int_mm(int8(M, K), int8(K, N)), 2 * M * K * N),
    "scaled_mm": (lambda: _torch.scaled_product(fp8(M, K), fp8(N, K).t(), scale_a=one, scale_b=one), 2 * M * K * N),
    "mv": (lambda: torch.randn(M, K) @ torch.randn(K), 2 * M * K),
    "addmv": (lambda: torch.addmv(torch.ones(M), torch.randn(M, K), torch.randn(K)), 2 * M * K),
    "dot": (lambda: torch.randn(K) @ torch.randn(K), 2 * K),
    "vdot": (lambda: torch.vdot(torch.randn(K), torch.randn(K)), 2 * K),
}  # fmt: skip


@pytest.mark.parametrize("operator", PRODUCTS)
def test_every_product_is_counted_once_with_its_factor(operator):
    call, expected = PRODUCTS[operator]
    counted = {}
    with flops.flop_counter(lambda name, amount: counted.update({name: counted.get(name, 0) + amount})):
        call()
    assert counted == {operator: expected}


@pytest.mark.parametrize("name", ["_int_mm", "_scaled_mm_v2", "addbmm"])
def test_formulas_of_products_by_shapes(name):
    if not hasattr(aten, name):
        pytest.skip(f"this torch has no {name}")
    shapes = [torch.empty(B, M, K, device="meta"), torch.empty(B, K, N, device="meta")]
    a, b = shapes if name == "addbmm" else [shape[0] for shape in shapes]
    arguments = (torch.empty(M, N, device="meta"), a, b) if name == "addbmm" else (a, b)
    assert flops.FORMULAS[getattr(aten, name)](*arguments) == 2 * M * K * N * (B if name == "addbmm" else 1)


def test_kernels_of_other_devices_by_shapes():
    """What a CPU cannot run: the formulas on meta tensors, by hand."""
    q, k, v = (torch.empty(2, 3, rows, width, device="meta") for rows, width in ((5, 8), (7, 8), (7, 6)))
    formula = flops.FORMULAS
    assert formula[aten._scaled_dot_product_fused_attention_overrideable](q, k, v) == 2 * 2 * 3 * 5 * 7 * (8 + 6)
    backward = formula[aten._scaled_dot_product_fused_attention_overrideable_backward]
    assert backward(q, q, k, v) == 2 * 2 * 3 * 5 * 7 * (3 * 8 + 2 * 6)
    x, weights = torch.empty(4, 2, 16, device="meta"), [torch.empty(96, 16), torch.empty(96, 32), torch.empty(96)]
    assert formula[aten._cudnn_rnn](x, weights) == 2 * 4 * 2 * 96 * (16 + 32)
    assert formula[aten._cudnn_rnn_backward](x, weights) == 2 * formula[aten._cudnn_rnn](x, weights)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((B, M, K), (B, K, N), 2 * B * M * K * N),  # every group is a product of its own
        ((M, K), (B, K, N), 2 * M * K * N),  # the groups share the rows
        ((B, M, K), (K, N), 2 * M * K * N),  # or the columns
        ((M, K), (K, N), 2 * M * K * N),  # or what is added up
    ],
)
def test_grouped_products_by_shapes(a, b, expected):
    a, b = torch.empty(a, device="meta"), torch.empty(b, device="meta")
    assert flops.FORMULAS[aten._grouped_mm](a, b) == expected


def test_the_instruments_draw_in_no_figures_and_not_the_compiler():
    code = """
# To search for garbage takes a third of the time of imports, and to clean up after torch a second.
import gc
gc.disable()
import os, sys, torch
from cs336kit import measure
x = torch.ones(3, 3, requires_grad=True)
def product():
    return (x @ x).sum()
first = measure.flops(lambda: product().backward()), measure.memory_timeline(product)
with measure.collectives():
    product()
assert not {'matplotlib', 'jsonschema', 'IPython', 'torch._dynamo'} & {*sys.modules}, 'imported too early'
# Where the compiler is imported, in the middle of a measurement even, what a mode does is kept from it as by torch.
compiled = []
def compile_and_run():
    compiled.append(torch.compile(product, backend="eager"))
    return compiled[-1]()
assert measure.memory_timeline(compile_and_run) == first[1]
assert measure.flops(lambda: compiled[0]().backward()) == first[0]
from cs336kit.measure import _trace
from cs336kit._torch import flops
for mode in (_trace.LiveStorages, flops._Counter):
    assert mode.__torch_dispatch__.__code__.co_filename == torch._compile.__file__, mode
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_collective_of_torch_is_known_by_its_operator():
    ours = set(collectives.COLLECTIVES)
    for namespace in (torch.ops.c10d, torch.ops._c10d_functional):
        for name in ours & set(dir(namespace)):
            assert callable(getattr(namespace, name))
    for name in ("allreduce_", "_allgather_base_", "_reduce_scatter_base_", "alltoall_base_", "broadcast_", "gather_"):
        assert hasattr(torch.ops.c10d, name) and name in ours


def test_several_ranks_in_one_process_are_told_apart():
    import torch.distributed as dist

    seen = []
    mode, watch = collectives.start_local_ranks(2, lambda *facts: seen.append(facts))
    try:
        with mode, watch:
            x = mode.rank_map(lambda rank: torch.full((3,), float(rank)))
            assert [value.tolist() for value in collectives.rank_values(x, 2)] == [[0, 0, 0], [1, 1, 1]]
            dist.all_reduce(x)
            assert _torch.local(x).tolist() == [1, 1, 1]
    finally:
        dist.destroy_process_group()
    assert seen == [("all-reduce", 12, 2)]

"""Compare the operations that `predict` lists with those that torch ran, row by row."""

from collections.abc import Iterator

from cs336kit.measure.program import TracedProgram
from cs336kit.predict import Breakdown, Op, Program
from cs336kit.predict._common.checks import known
from cs336kit.predict.operations import Item, Repeat
from cs336kit.teach.comparison import compare
from cs336kit.teach.tables import Table

#: The quantities that can be compared, with their units.
_QUANTITIES = {"flops": "FLOPs", "saved_bytes": "bytes"}
#: Kind of an operation → name of the function that runs it, where they differ.
_FUNCTIONS = {"nll_loss": "cross_entropy", "log_softmax": "cross_entropy", "index": "getitem"}
_MODULES = {"attention norm": "norm1", "mlp norm": "norm2", "final norm": "final_norm", "head": "head"}


def side_by_side(said: Program, ran: TracedProgram, quantity: str = "flops") -> Table:
    """Compare a program of `predict` with what `measure.program` traced of `lm.DecoderOnly`, operation by operation.

    `quantity`: "flops" of the forward pass, or "saved_bytes", those kept for the backward pass. A row is a module and a
    torch function; calls that share both are added up, and rows that are zero on both sides are left out.
    """
    unit = known("quantity", quantity, _QUANTITIES)
    counted: dict[str, int] = {}
    for call in ran.operations:
        _add(counted, f"{call.place} {call.name}".strip(), getattr(call, quantity))
    predicted: dict[str, int] = {}
    for name, op, new in _one_by_one(said.items, {"block": -1, "expert": -1}, set()):
        _add(predicted, name, op.forward_flops if quantity == "flops" else new)
    return compare(Breakdown(predicted, unit=unit), Breakdown(counted, unit=unit), how="counted")


def _add(parts: dict[str, int], name: str, amount: int) -> None:
    if amount:
        parts[name] = parts.get(name, 0) + amount


def _one_by_one(items: tuple[Item, ...], places: dict[str, int], seen: set) -> Iterator[tuple[str, Op, int]]:
    """Every run of every operation: its name, the operation, and the bytes that it is the first to keep."""
    for item in items:
        if isinstance(item, Repeat):
            for _ in range(item.count):
                if item.name == "block":
                    places.update(block=places["block"] + 1, expert=-1)
                # What is made and kept in one run is new in the next.
                yield from _one_by_one(item.items, places, set(seen))
        elif isinstance(item, Op):
            places["expert"] += item.kind == "compare"
            new = {storage for storage in item.keeps if not storage.leaf and storage.name != "indices"} - seen
            seen |= new
            yield _name(item, places), item, sum(storage.bytes for storage in new)


def _name(op: Op, places: dict[str, int]) -> str:
    """Module path and function, such as "blocks.0.attention.query linear"."""
    path, function = op.place.split("/"), _FUNCTIONS.get(op.kind, op.kind)
    if path[0] != "block":
        return f"{_MODULES.get(path[0], '')} {function}".strip()
    part, inside = path[1], path[2:]
    module = f"blocks.{places['block']}"
    if part in _MODULES:
        module += f".{_MODULES[part]}"
    elif inside:
        module += f".{part}"
        if "expert" in inside and op.kind not in ("index", "index_add") and inside[-1] != "weighted":
            module += f".experts.{places['expert']}"
        if op.kind == "linear" or inside[0].endswith(" norm"):
            module += f".{inside[-1 if op.kind == 'linear' else 0].replace(' ', '_')}"
        if "sdpa" in inside:
            function = "scaled_dot_product_attention"
    return f"{module} {function}"

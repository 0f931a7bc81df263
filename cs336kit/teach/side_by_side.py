"""Compare the operations that `predict` lists with those that torch ran, row by row."""

from collections.abc import Iterator

from cs336kit.measure.program import TracedProgram
from cs336kit.predict import Breakdown, Op, Program
from cs336kit.predict.checks import known
from cs336kit.predict.engine.operations import Item, Repeat, operations
from cs336kit.teach.comparison import compare
from cs336kit.teach.tables import Table

#: The quantities that can be compared, with their units.
_QUANTITIES = {"flops": "FLOPs", "saved_bytes": "bytes"}
#: Kind of an operation → name of the function that runs it, where they differ.
_FUNCTIONS = {"nll_loss": "cross_entropy", "log_softmax": "cross_entropy", "index": "getitem"}
_MODULES = {
    "attention norm": "norm1", "mlp norm": "norm2", "attention post norm": "post1", "mlp post norm": "post2",
    "embedding norm": "embedding_norm", "final norm": "final_norm", "head": "head",
}  # fmt: skip
#: What a shared expert's own gate does, in the module that holds the shared expert and the mixture.
_GATED = ("weight", "sigmoid", "weighted")


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
    for name, flops, new in _one_by_one(said.items, {"block": -1, "expert": -1}, set(), frozenset()):
        _add(predicted, name, flops if quantity == "flops" else new)
    return compare(Breakdown(predicted, unit=unit), Breakdown(counted, unit=unit), how="counted")


def _add(parts: dict[str, int], name: str, amount: int) -> None:
    if amount:
        parts[name] = parts.get(name, 0) + amount


def _one_by_one(
    items: tuple[Item, ...], places: dict[str, int], seen: set, parts: frozenset[str]
) -> Iterator[tuple[str, int, int]]:
    """Every run of every operation: its name, its FLOPs, and the bytes that it is the first to keep.

    `parts` are those of all places of the block.
    """
    for item in items:
        if isinstance(item, Repeat):
            if item.name == "block":
                parts = frozenset(part for op, _ in operations(item.items) for part in op.place.split("/"))
            for _ in range(item.count):
                if item.name == "block":
                    places.update(block=places["block"] + 1, expert=-1)
                # What is made and kept in one run is new in the next.
                run = _one_by_one(item.items, places, set(seen), parts)
                if item.checkpoint is None:
                    yield from run
                else:
                    yield from ((name, flops, 0) for name, flops, _ in run)
                    yield "checkpoint", 0, item.checkpoint.bytes
        elif isinstance(item, Op):
            places["expert"] += item.kind == "compare"
            new = {storage for storage in item.saves if not storage.leaf and storage.name != "indices"} - seen
            seen |= new
            yield _name(item, places, parts), item.forward_flops, sum(storage.bytes for storage in new)


def _name(op: Op, places: dict[str, int], parts: frozenset[str]) -> str:
    """Module path and function, such as "blocks.0.attention.query linear"."""
    path, function = op.place.split("/"), _FUNCTIONS.get(op.kind, op.kind)
    if path[0] != "block":
        return f"{_MODULES.get(path[0], '')} {function}".strip()
    part, inside = path[1], path[2:]
    module = f"blocks.{places['block']}"
    if part in _MODULES:
        front = part.replace(" post", "")  # without norms in front, those behind have their modules
        module += "." + _MODULES[part if front in parts else front]
    elif inside:
        module += f".{part}"
        if part == "mlp" and "shared" in parts and inside[0] != "shared sum":
            own = inside[0] == "shared"
            if not (own and inside[1] in _GATED):
                module += ".shared" if own else ".mixture"
        if "expert" in inside and op.kind not in ("index", "index_add") and inside[-1] != "weighted":
            module += f".experts.{places['expert']}"
        norms = [name for name in inside if name.endswith(" norm")]
        if op.kind == "linear" or norms:
            name = norms[0] if norms else "gate" if inside[-1] == "weight" else inside[-1]
            module += f".{name.replace(' ', '_')}"
        if "sdpa" in inside:
            function = "scaled_dot_product_attention"
    return f"{module} {function}"

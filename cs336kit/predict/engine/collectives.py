"""Communication between the ranks of a layout, as operations of one rank's program."""

from collections.abc import Callable, Iterator, Sequence
from math import prod

from cs336kit.predict.checks import known, non_negative_int, positive_int
from cs336kit.predict.engine.operations import Collective, Group, Leaf, Op, Shares, Storage, Tensor
from cs336kit.predict.engine.writer import Writer
from cs336kit.predict.layouts import Layout, shard_elements
from cs336kit.predict.precision import ELEMENT_BYTES, PrecisionPolicy

#: Components of a mixture's experts, which ep divides.
OF_EXPERTS = frozenset({"mlp gate", "mlp up", "mlp down"})
#: Components that every rank of tp holds whole, and of which sp gives each rank a part of the positions.
ALIKE = frozenset(
    {"norms", "final norm", "position embedding", "embedding norm", "embedding projections", "shared weight"}
)
#: Components that every rank of tp holds whole, but uses only for its own heads or its part of the MLP: latent attention, the
#: router, whose weights multiply results that are not summed yet, and the parameters of an activation.
PARTLY_SEEN = frozenset({"latent", "latent norms", "query latent", "router", "activations"})
#: Components whose matrices the ranks of tp divide by rows: their biases are added after the ranks' sum.
BEHIND_ROWS = frozenset({"attention output", "mlp down", "dense down", "shared down"})


#: The kind of an operation that stands for the communication about a group of parameters.
GROUP = "collectives"


#: Collective → what the busiest of n ranks sends in a ring, in shares of 1/n of the whole.
RINGS: dict[str, Callable[[int], int]] = {
    "all-reduce": lambda n: 2 * (n - 1), "all-gather": lambda n: n - 1, "reduce-scatter": lambda n: n - 1,
    "all-to-all": lambda n: n - 1, "scatter": lambda n: n - 1, "gather": lambda n: 1, "broadcast": lambda n: n,
    "reduce": lambda n: n, "send": lambda n: n,
}  # fmt: skip


def ring_bytes(kind: str, size: int, ranks: int) -> int:
    """Bytes that each rank sends so that `size` bytes are gathered, reduced, exchanged or passed on by a ring.

    `size` is the whole, not the share: what every rank holds after an all-gather, before a reduce-scatter or an
    all-to-all. A ring sends a share in each of its ranks − 1 steps; an all-reduce is a reduce-scatter and an all-gather.
    If ranks send different amounts (broadcast, reduce, gather, scatter), it is that of the busiest.
    """
    shares = known("collective", kind, RINGS)
    size, ranks = non_negative_int("size", size), positive_int("ranks", ranks)
    if ranks == 1:
        return 0
    return shares(ranks) * -(-size // ranks)


def strides(layout: Layout) -> dict[str, int]:
    """How far apart neighbors of each axis are: adjacent in tp, farthest apart between the stages of a pipeline."""
    experts, sequence = layout.tp, layout.tp * layout.ep
    shards = sequence * layout.cp
    replicas = shards * layout.shards
    return {"tp": 1, "ep": experts, "cp": sequence, "shards": shards, "dp": replicas, "pp": replicas * layout.dp}


def _group(
    kind: str, axis: str, ranks: int, stride: int, size: int, when: str = "forward", alike: int = 1
) -> Collective:
    return Collective(kind, axis, ranks, stride, ranks * stride, size, when, alike)


class Ranks:
    """Writes the collectives of a layout into the program of one rank. With one rank it writes nothing."""

    def __init__(self, b: Writer):
        self.b, self.layout = b, b.layout

    def _wire(self, kind: str, axis: str, size: int, when: str = "forward", alike: int = 1) -> Collective:
        ranks = getattr(self.layout, axis)
        sent = size if kind in ("send", "ring") else ring_bytes(kind, size, ranks)
        return _group(kind, axis, ranks, strides(self.layout)[axis], sent, when, alike)

    def _both(self, x: Tensor, there: str, back: str, axis: str, size: int, alike: int = 1) -> tuple[Collective, ...]:
        """The collective for x, and the one for its gradient if it has one."""
        collectives = self._wire(there, axis, size, "forward", alike), self._wire(back, axis, size, "backward", alike)
        return collectives[: 1 + x.needs_gradient]

    def _sent(self, y: Tensor, collectives: tuple[Collective, ...], *, copy: int = 0) -> Tensor:
        """The output of the last operation, which sends; `copy`: bytes of another copy of it to send."""
        op = self.b.last
        op.collectives = collectives
        if copy:
            op.workspace = (copy,)
        return y

    # -- tensor and sequence parallel ----------------------------------------------------------------------------------

    def enter(self, x: Tensor, place: str = "enter") -> Tensor:
        """Before matrices that are divided by columns: every rank needs the whole sequence, and x's gradient is a sum."""
        if self.layout.tp == 1:
            return x
        if not self.layout.sp:
            back = (self._wire("all-reduce", "tp", x.bytes, "backward"),) if x.needs_gradient else ()
            return self._sent(self.b.viewed(place, "copy to ranks", (x,), x.shape), back)
        B, S, D = x.shape
        size = x.bytes * self.layout.tp
        collectives = self._both(x, "all-gather", "reduce-scatter", "tp", size)
        y = self.b.computed(place, "all-gather", (x,), (B, S * self.layout.tp, D), name=x.storage.name)
        # In both passes, there is another copy of it to send, in which each rank's positions are contiguous.
        return self._sent(y, collectives, copy=size)

    def leave(self, x: Tensor, place: str = "leave", *, name: str = "") -> Tensor:
        """After matrices that are divided by rows: the ranks' results are summed, and with sp each rank keeps its positions."""
        if self.layout.tp == 1:
            return x
        B, S, D = x.shape
        if self.layout.sp:
            collectives = self._both(x, "reduce-scatter", "all-gather", "tp", x.bytes)
            shape = (B, S // self.layout.tp, D)
            y = self._sent(self.b.computed(place, "reduce-scatter", (x,), shape, name=name), collectives, copy=x.bytes)
        else:
            collectives = (self._wire("all-reduce", "tp", x.bytes),)
            y = self._sent(self.b.passed(place, "all-reduce", (x,), x.shape, name=name), collectives)
        self.b.free(x)
        return y

    def summed(self, place: str, rows: int) -> None:
        """One fp32 number of each row, summed (or compared) over the ranks that divide the vocabulary."""
        wire = self._wire("all-reduce", "tp", 4 * rows)
        self.b.free(self._sent(self.b.made(place, "all-reduce", (rows,), "fp32"), (wire,)))

    # -- context and expert parallel -----------------------------------------------------------------------------------

    def positions(self, k: Tensor, v: Tensor, *, ring: bool) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Keys and values for the queries of this rank's positions, and the tensors to free after attention.

        In a ring, a fused kernel processes one rank's keys and values after another's, while the next arrive; other
        ways to compute attention gather them all.
        """
        cp = self.layout.cp
        if cp == 1:
            return k, v, []
        if ring:
            size = k.bytes + v.bytes
            # In the backward pass, their gradients travel with them, and one step further, to their own rank.
            both = self._wire("ring", "cp", (cp - 1) * size), self._wire("ring", "cp", (2 * cp - 1) * size, "backward")
            arriving = self.b.made("exchange", "ring", (2 * (k.elements + v.elements),), k.dtype)
            return k, v, [self._sent(arriving, both[: 1 + k.needs_gradient])]
        every = []
        for name, t in (("key", k), ("value", v)):
            collectives = self._both(t, "all-gather", "reduce-scatter", "cp", t.bytes * cp)
            shape = (*t.shape[:-2], t.shape[-2] * cp, t.shape[-1])
            every.append(
                self._sent(self.b.computed(f"{name}/gather", "all-gather", (t,), shape, name=name), collectives)
            )
        return every[0], every[1], every

    def ring_bytes(self, k: Tensor, v: Tensor) -> tuple[int, ...]:
        """Temporary tensors of attention's backward pass in a ring: keys and values of two ranks, and gradients."""
        return () if self.layout.cp == 1 else (k.bytes, v.bytes) * 3

    def exchange(self, place: str, x: Tensor, *, experts: int, name: str = "") -> Tensor:
        """Rows of tokens, `experts` of each, go to the ranks that have their experts, or come back; so do their gradients."""
        collectives = self._both(x, "all-to-all", "all-to-all", "ep", x.bytes, experts)
        return self._sent(self.b.computed(place, "all-to-all", (x,), x.shape, name=name), collectives)

    # -- gradients and gathered parameters -----------------------------------------------------------------------------

    def parameters(
        self, leaves: Sequence[Leaf], repeated: int = 0, *, also: Sequence[Tensor] = (), shares: Shares | None = None
    ) -> None:  # fmt: skip
        """Communication about these parameters, at the place in the program where their backward pass ends: see `Group`."""
        b = self.b
        if self.layout.count > 1:
            group = Group(tuple(leaves), repeated, tuple(also) if b.train else (), shares)
            b.groups.append(group)
            if collectives := parameter_collectives(group, self.layout, b.policy):
                op = Op(f"{b.prefix}parameters", GROUP, (), (), (), (), (), b.part, collectives=collectives)
                b.items.insert(0, op)

    # -- pipeline ------------------------------------------------------------------------------------------------------

    def receive(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        """The output of the stage before, held until its gradient is sent back."""
        b = self.b
        storage = Storage("attention norm", prod(shape) * ELEMENT_BYTES[dtype])
        x = Tensor(shape, dtype, storage, b.train)
        collectives = (self._wire("send", "pp", x.bytes, "backward"),) if b.train else ()
        b.items.append(
            Op(f"{b.prefix}receive", "receive", (), (x,), (storage,), (), (), b.part, collectives=collectives)
        )
        if b.train:
            b.hold(x)
        return x

    def send(self, x: Tensor) -> None:
        """The output of this stage goes to the next."""
        collectives = (self._wire("send", "pp", x.bytes),)
        self.b.items.append(
            Op(f"{self.b.prefix}send", "send", (x,), (), (), (), (), self.b.part, collectives=collectives)
        )


def _summed(group: Group, layout: Layout) -> Iterator[tuple[int, Leaf]]:
    """Parameters that several ranks of tp hold but use only in part, and how many ranks: their gradients have to be summed."""
    shares = group.shares or Shares(1, False, False)
    norms = [leaf for leaf in group.leaves if leaf.component == "query and key norms"]
    of, factor = "", 0
    for leaf in group.leaves:
        # Adapters are listed after their matrix. Beside columns, the one that reads its input is whole; beside rows, the one that
        # writes its output.
        of, factor = (of, factor + 1) if leaf.component == "adapters" else (leaf.component, 0)
        behind = of in BEHIND_ROWS
        # The biases of experts are added before the sum; each rank has their whole gradients.
        late = behind and len(leaf.tensor.shape) == 1 and not (shares.experts and of in OF_EXPERTS)
        if of in ALIKE or late:
            ranks = layout.tp if layout.sp else 1
        elif of in PARTLY_SEEN or (leaf in norms and shares.head_norms) or factor == 1 + behind:
            ranks = layout.tp
        else:
            ranks = shares.of_a_head if of in ("key", "value") or leaf in norms[len(norms) // 2 :] else 1
        if ranks > 1 and leaf.tensor.needs_gradient:
            yield ranks, leaf


def parameter_collectives(group: Group, layout: Layout, policy: PrecisionPolicy) -> tuple[Collective, ...]:
    """What is sent of these parameters: gradients, the parameters themselves if they are sharded, and gradients of copies."""
    apart, size = strides(layout), ELEMENT_BYTES[policy.gradients]
    experts = [leaf for leaf in group.leaves if leaf.component in OF_EXPERTS] if layout.ep > 1 else []
    dense = [leaf for leaf in group.leaves if leaf.component not in OF_EXPERTS] if experts else group.leaves
    collectives = _data_collectives(dense, group.repeated, layout, policy, apart, expert=False)
    if experts:
        collectives += _data_collectives(experts, group.repeated, layout, policy, apart, expert=True)
    # Where ranks shard gradients, further communication is about a rank's shard.
    shares = layout.shards * layout.cp * layout.ep if layout.zero_stage >= 2 else 1
    summed: dict[int, int] = {}
    for ranks, leaf in _summed(group, layout) if layout.tp > 1 else ():
        elements = leaf.count // max(1, group.repeated) * shard_elements(leaf.tensor.shape, shares)
        summed[ranks] = summed.get(ranks, 0) + elements
    for ranks, elements in summed.items():
        collectives.append(
            _group("all-reduce", "tp", ranks, 1, ring_bytes("all-reduce", size * elements, ranks), "step")
        )
    for table in [each for each in group.also if each.needs_gradient]:
        held = shard_elements(table.shape, shares)
        sent, far = ring_bytes("all-reduce", held * size, 2), apart["pp"]
        collectives.append(Collective("all-reduce", "pp", 2, (layout.pp - 1) * far, layout.pp * far, sent, "step"))
    return tuple([wire for wire in collectives if wire.bytes])


def gathered_share(leaf: Leaf, ranks: int, policy: PrecisionPolicy) -> int:
    """Bytes that one of `ranks` adds to a gathered parameter: as it is stored if quantized, else in the products' type."""
    held, size, elements = shard_elements(leaf.tensor.shape, ranks), leaf.tensor.storage.bytes, leaf.tensor.elements
    if size < elements * ELEMENT_BYTES[policy.weights]:
        return -(-size * held // elements)
    return held * ELEMENT_BYTES[policy.products]


def _data_collectives(
    leaves: Sequence[Leaf],
    repeated: int,
    layout: Layout,
    policy: PrecisionPolicy,
    apart: dict[str, int],
    *,
    expert: bool,
) -> list[Collective]:
    ranks, stride = layout.shards * layout.cp * (1 if expert else layout.ep), apart["cp" if expert else "ep"]
    trained = [leaf for leaf in leaves if leaf.tensor.needs_gradient]
    gradient, weight = ELEMENT_BYTES[policy.gradients], ELEMENT_BYTES[policy.weights]
    if not layout.zero_stage:
        ranks *= layout.dp
        size = gradient * sum(leaf.count // max(1, repeated) * leaf.tensor.elements for leaf in trained)
        return [_group("all-reduce", "data", ranks, stride, ring_bytes("all-reduce", size, ranks), "step")]

    def share(of: Sequence[Leaf]) -> int:
        return sum([leaf.count // max(1, repeated) * shard_elements(leaf.tensor.shape, ranks) for leaf in of])

    mine = share(trained)
    sent = (ranks - 1) * mine
    when = "step" if layout.zero_stage == 1 else "backward"
    collectives = [_group("reduce-scatter", "data", ranks, stride, gradient * sent, when)]
    if layout.zero_stage == 3:
        each = [leaf.count // max(1, repeated) * gathered_share(leaf, ranks, policy) for leaf in leaves]
        whole = (ranks - 1) * sum(each)
        passes = ("forward", "backward") if repeated else ("forward",)
        collectives += [_group("all-gather", "data", ranks, stride, whole, when) for when in passes]
    else:
        collectives.append(_group("all-gather", "data", ranks, stride, weight * sent, "step"))
    size = ring_bytes("all-reduce", gradient * mine, layout.dp)
    return [*collectives, _group("all-reduce", "data", layout.dp, apart["dp"], size, "step")]

"""How a model is laid out over the ranks of a cluster: which of them share what, and whether the model can be divided so."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import isqrt, prod

from cs336kit.predict.checks import checked, known, positive_int, shown
from cs336kit.predict.transformer import TransformerConfig

#: What each word of a layout means; also the table of allowed words.
AXES = {
    "pp": "pipeline parallel: stages, each with its share of the layers (those in the middle one more where they do not divide)",
    "microbatches": "micro-batches whose gradients add up to one step: gradient accumulation, and what fills a pipeline",
    "schedule": "of a pipeline: gpipe or 1f1b; interleaved and zero-bubble schedules are not counted",
    "dp": "data parallel: replicas, each with data of its own",
    "zero1": "ZeRO stage 1: replicas that share optimizer state",
    "zero2": "ZeRO stage 2: replicas that share optimizer state and gradients",
    "fsdp": "ZeRO stage 3: replicas that share optimizer state, gradients and parameters; HSDP is dp=2,fsdp=8",
    "cp": "context parallel: ranks that divide each sequence, and pass keys and values around",
    "ep": "expert parallel: replicas that divide the experts of each layer",
    "tp": "tensor parallel: ranks that divide heads, MLP and vocabulary of every layer",
    "sp": "true: sequence parallel, the ranks of tp divide the sequence between their matrix products",
}
SCHEDULES = {
    "gpipe": "all microbatches forward, then all backward",
    "1f1b": "one forward, one backward: a stage holds a microbatch for itself and one for each stage behind it, at most",
}
#: Axes of which a layout has at most one → the stage of ZeRO that each of them is.
STAGES = {"zero1": 1, "zero2": 2, "fsdp": 3}
_ALIASES = {
    "zero3": "fsdp", "zero-1": "zero1", "zero-2": "zero2", "zero-3": "fsdp", "micro-batches": "microbatches", "ddp": "dp",
    "fsdp2": "fsdp",
}  # fmt: skip
#: Terms of the field that are not an axis here → what to write instead.
_NO_AXES = {
    "hsdp": "hsdp is dp and fsdp together: dp=2,fsdp=8 are 2 replicas, each of which 8 ranks share",
    "zero": "zero has stages: write zero1=8, zero2=8 or fsdp=8 (stage 3), with the ranks that share",
    "vpp": "stages that each hold several parts of the layers (vpp) are not counted: schedule is gpipe or 1f1b, with pp=8",
}
#: Fields of a configuration that the ranks of tp divide, where they are given.
_WIDTHS = ("d_ff", "dense_d_ff", "shared_d_ff")
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How many ranks share what. `Layout.parse("fsdp=64,tp=8")` reads the text that `str` gives back.

    The ranks are pp · dp · (zero1, zero2 or fsdp) · cp · ep · tp, from the outermost axis to the innermost: neighbors share tp.
    Each of the dp · (zero1, zero2 or fsdp) · ep data ranks works on its own sequences. What zero1, zero2 or fsdp shards, the
    ranks of cp and ep shard, too (experts: only those of cp). Errors: ValueError for sizes that do not go together.
    """

    dp: int = 1
    zero1: int = 1
    zero2: int = 1
    fsdp: int = 1
    tp: int = 1
    sp: bool = False
    pp: int = 1
    #: micro-batches of a step; None: as many as there are stages
    microbatches: int = None  # type: ignore[assignment]
    schedule: str = "1f1b"
    ep: int = 1
    cp: int = 1
    #: what is sharded: 0 nothing, 1 optimizer state, 2 gradients too, 3 parameters too
    zero_stage: int = field(init=False, repr=False, compare=False)
    #: ranks of the axis that shards it: zero1, zero2 or fsdp
    shards: int = field(init=False, repr=False, compare=False)
    #: ranks in total
    count: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.microbatches is None:
            object.__setattr__(self, "microbatches", self.pp)
        for name, value in checked(self, choices={"schedule": SCHEDULES}).items():
            object.__setattr__(self, name, value)
        several = [name for name in STAGES if getattr(self, name) > 1]
        if len(several) > 1:
            raise ValueError(
                f"{' and '.join(several)} are given together: fsdp shares what zero2 shares and more, and zero2 what zero1 "
                "shares, so keep one of them (dp may be given with it)"
            )
        if self.sp and self.tp == 1:
            raise ValueError(
                "sp=true divides the sequence over the ranks of tp, and tp is 1: give tp too, or leave sp out"
            )
        if self.pp == 1 and self.schedule != "1f1b":
            raise ValueError(f"schedule={self.schedule!r} is about the stages of a pipeline, and pp is 1: give pp too")

        stage = next((stage for name, stage in STAGES.items() if getattr(self, name) > 1), 0)
        object.__setattr__(self, "zero_stage", stage)
        object.__setattr__(self, "shards", self.zero1 * self.zero2 * self.fsdp)
        object.__setattr__(self, "count", self.pp * self.data_ranks * self.cp * self.tp)

    @classmethod
    def parse(cls, text: str) -> "Layout":
        """The layout of a text such as "fsdp=64,tp=8,sp=true"; a text without a meaning raises ValueError."""
        if not isinstance(text, str):
            raise ValueError(f'a layout is a text such as "fsdp=64,tp=8", got {shown(text)}')
        values: dict[str, object] = {}
        for part in filter(None, (piece.strip() for piece in text.replace(";", ",").split(","))):
            name, equals, value = (piece.strip().lower() for piece in part.partition("="))
            name = _ALIASES.get(name, name)
            if name in _NO_AXES:
                raise ValueError(_NO_AXES[name])
            known("axis of a layout", name, AXES)
            if name in values:
                raise ValueError(f"{name} is given twice in the layout {shown(text)}: give it once")
            if name == "schedule":
                values[name] = value
            elif name == "sp":
                values[name] = known("answer for sp", value if equals else "true", _TRUTH)
            elif value.isdecimal() and len(value) < 100:  # Python refuses to read thousands of digits
                values[name] = int(value)
            else:
                raise ValueError(
                    f'{shown(part)} in the layout {shown(text)}: give a number of ranks, such as "{name}=8"'
                )
        if not values:
            raise ValueError(
                f'the layout {shown(text)} is empty: name the ranks, such as "fsdp=64,tp=8", or "dp=1" for one'
            )
        return cls(**values)  # type: ignore[arg-type]

    def __str__(self) -> str:
        parts = []
        for name in AXES:
            value = getattr(self, name)
            if value != (self.pp if name == "microbatches" else getattr(Layout, name)):
                parts.append(f"{name}={'true' if value is True else value}")
        return ",".join(parts) or "dp=1"

    @property
    def data_ranks(self) -> int:
        """Ranks that work on sequences of their own."""
        return self.dp * self.shards * self.ep

    def global_batch(self, batch: int) -> int:
        """Sequences of one step: micro-batch × data ranks × accumulation."""
        return positive_int("batch", batch) * self.data_ranks * self.microbatches

    def sharing(self, expert: bool) -> int:
        """The number of ranks over which the state of a parameter is divided."""
        return self.shards * self.cp * (1 if expert else self.ep) if self.zero_stage else 1

    def in_flight(self, stage: int) -> int:
        """The most micro-batches at a time whose saved tensors a stage holds."""
        return self.microbatches if self.schedule == "gpipe" else min(self.pp - stage, self.microbatches)

    @property
    def bubble(self) -> float:
        """The pipeline bubble, the share of a step in which a stage waits: (p − 1) / (m + p − 1).

        Source: Narayanan et al. 2021, section 2.2, for both schedules.
        """
        return (self.pp - 1) / (self.microbatches + self.pp - 1)


def as_layout(layout: "Layout | str | None", *, shards: int = 1) -> Layout:
    """The layout that is meant by a text, by None (one rank), or by the number of `shards` (fsdp alone)."""
    shards = positive_int("shards", shards)
    if layout is None:
        return Layout(fsdp=shards) if shards > 1 else ALONE
    if shards > 1:
        raise ValueError(f"shards={shards} and a layout are both given: shards=n is short for layout='fsdp=n'")
    return layout if isinstance(layout, Layout) else Layout.parse(layout)


#: One rank.
ALONE = Layout()


def divisors(number: int, at_most: int) -> list[int]:
    """Every number up to `at_most` that divides it."""
    small = [size for size in range(1, min(isqrt(number), at_most) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small if number // size <= at_most)})


def _sizes(choices: Iterable[int]) -> str:
    *most, last = map(str, choices)
    return f"{', '.join(most)} or {last}" if most else last


def check_layout(config: TransformerConfig, layout: Layout, *, sequence: int | None = None) -> None:
    """Raise a ValueError that says what would fit, unless the layout divides the model."""
    _check_model(config, layout)
    if sequence is None:
        return
    divided = {f"cp={layout.cp}": layout.cp}
    if layout.sp:
        divided[f"sp over tp={layout.tp}" + f" and cp={layout.cp}" * (layout.cp > 1)] = layout.cp * layout.tp
    for what, over in divided.items():
        if sequence % over:
            raise ValueError(
                f"{what} does not divide a sequence of {sequence}: the next that it divides are "
                f"{_sizes(size for size in (sequence - sequence % over, -(-sequence // over) * over) if size)}"
            )


@lru_cache(maxsize=1024)
def _check_model(config: TransformerConfig, layout: Layout) -> None:
    for axis, what, number in (("tp", "heads", config.heads), ("ep", "experts", config.experts)):
        size = getattr(layout, axis)
        if size > 1 and not number:
            raise ValueError(f"{axis}={size} divides {what}, and this model has none: leave {axis} out")
        if number % size:
            raise ValueError(f"{axis}={size} does not divide {number} {what}: {_sizes(divisors(number, number))} do")
    if layout.pp > config.layers:
        raise ValueError(f"pp={layout.pp} needs a layer for each stage, and this model has {config.layers}: give fewer")
    if layout.cp > 1 and config.kv_latent:
        raise ValueError(
            f"cp={layout.cp} with latent attention cannot be counted yet: leave cp out, or give a model without kv_latent"
        )
    tp, K = layout.tp, config.kv_heads
    if K % tp and tp % K:
        fits = [size for size in divisors(config.heads, config.heads) if K % size == 0 or size % K == 0]
        raise ValueError(f"tp={tp} neither divides {K} key/value heads nor is a multiple of them: {_sizes(fits)} are")
    for name in _WIDTHS:
        width = getattr(config, name)
        if width and width % tp:
            fits = [size for size in divisors(config.heads, config.heads) if width % size == 0]
            raise ValueError(f"tp={tp} does not divide {name}={width}: {_sizes(fits)} divide it and the heads")


@lru_cache(maxsize=256)
def local_config(config: TransformerConfig, tp: int) -> TransformerConfig:
    """What one of `tp` ranks holds of a layer: its heads, its part of the MLP, its rows of the tables.

    If there are fewer key/value heads than ranks, several ranks hold the same; a vocabulary that does not divide is padded.
    """
    if tp == 1:
        return config
    widths = {name: getattr(config, name) // tp for name in _WIDTHS if getattr(config, name)}
    return replace(
        config, heads=config.heads // tp, kv_heads=max(1, config.kv_heads // tp), head_dim=config.head_dim,
        vocab=-(-config.vocab // tp), **widths,
    )  # fmt: skip


@lru_cache(maxsize=4096)
def shard_shape(shape: tuple[int, ...], ranks: int) -> tuple[int, ...]:
    """What one of `ranks` holds of a parameter: rows of its first axis, rounded up.

    Source: torch's fully_shard, which pads the last ranks. A tensor with fewer rows than ranks has one row on every rank. Experts
    in one tensor are divided along the axis that makes the smaller shard, as torchtitan does.
    """
    if not shape:
        return shape
    first, *rest = shape
    shards = [(-(-first // ranks), *rest)]
    if len(shape) == 3:
        shards.append((first, -(-rest[0] // ranks), rest[1]))
    return min(shards, key=prod)


@lru_cache(maxsize=4096)
def shard_elements(shape: tuple[int, ...], ranks: int) -> int:
    """Elements of `shard_shape`."""
    return prod(shard_shape(shape, ranks))

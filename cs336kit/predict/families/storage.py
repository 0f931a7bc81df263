"""How a checkpoint stores its weights: its quantization_config, applied to the modules of its model."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from cs336kit.predict.checks import shown
from cs336kit.predict.families.methods import OTHERWISE, groups_of, refuse
from cs336kit.predict.families.modules import Modules, components
from cs336kit.predict.packed import EXPERTS, packing_called

if TYPE_CHECKING:
    from cs336kit.predict.transformer import TransformerConfig

#: Names of lists of modules that are stored as they are.
_KEPT = (
    "modules_to_not_convert", "ignore", "exclude_modules", "exclude", "ignored_layers", "llm_int8_skip_modules",
    "linear_weights_not_to_quantize",
)  # fmt: skip


def _kept(config: Mapping[str, Any]) -> Modules:
    """The modules that a file leaves as they are."""
    names: list[str] = []
    for field in _KEPT:
        listed = config.get(field)
        if listed is None:
            continue
        if not isinstance(listed, (list, tuple)) or not all(
            isinstance(name, str) and name.isprintable() for name in listed
        ):
            raise refuse(field, listed, "is no list of names of modules")
        names += listed
    return Modules(names)


class Storage(NamedTuple):
    """How weights are stored: `stored` and `stored_apart` of a TransformerConfig, and notes on what that leaves out."""

    stored: str = ""
    apart: tuple[tuple[str, str, float], ...] = ()
    notes: tuple[str, ...] = ()


def storage(config: Any, c: "TransformerConfig") -> Storage:
    """How the weights of a model are stored that has this quantization_config; ValueError for what is not understood.

    Quantized are matrices of the blocks, without routers; embeddings, head, and what a file leaves as it is are in bf16.
    """
    if config is None or config == {}:
        return Storage()
    if not isinstance(config, Mapping):
        raise ValueError(f"quantization_config={shown(config)} is no object of names and values: {OTHERWISE}")
    if isinstance(inner := config.get("quantization"), Mapping):  # as in modelopt's own file
        config = {"quant_method": "modelopt", **inner}
    groups, kept = groups_of(config), _kept(config)
    usual = next((group.stored for group in groups if group.targets is None), "bf16")
    named = [(group.stored, Modules(group.targets)) for group in groups if group.targets is not None]
    shares: dict[str, dict[str, float]] = {}
    sizes: dict[str, float] = {}
    for component, paths, layers, experts, width in components(c):
        together: dict[str, float] = {}
        for layer in layers:
            for stored, share in _types(layer, paths, experts, kept, named, usual).items():
                together[stored] = together.get(stored, 0) + share
        shares[component] = {stored: share / len(layers) for stored, share in together.items()}
        for stored, share in together.items():
            sizes[stored] = sizes.get(stored, 0) + share * width
    notes = _notes([*kept.unused(c.layers), *(name for _, modules in named for name in modules.unused(c.layers))])
    packed = {stored: size for stored, size in sizes.items() if packing_called(stored)}
    if not packed:
        return Storage("", (), notes)
    main = max(packed, key=lambda stored: packed[stored])
    of_experts = [types for name, types in shares.items() if name.startswith("mlp ")]
    others = [types for name, types in shares.items() if not name.startswith("mlp ")]
    if (
        c.experts
        and all(list(types) == [main] for types in of_experts)
        and all(list(types) == ["bf16"] for types in others)
    ):
        return Storage(main + EXPERTS, (), notes)
    apart = (
        (component, stored, min(share, 1.0))
        for component, types in shares.items()
        for stored, share in types.items()
        if stored != main
    )
    return Storage(main, tuple(apart), notes)


def _types(
    layer: int, paths: tuple[str, ...], experts: int, kept: Modules, named: list[tuple[str, Modules]], usual: str
) -> dict[str, float]:
    """Type → the share of one module of a layer, under whichever of its names, that is stored in it."""
    types: dict[str, float] = {}
    left = 1.0
    for stored, modules in (("bf16", kept), *named):
        share = min(left, max(modules.share(layer, path, experts) for path in paths)) if modules.patterns else 0.0
        if share > 0:
            types[stored] = types.get(stored, 0) + share
            left -= share
    if left > 1e-9:
        types[usual] = types.get(usual, 0) + left
    return types


def _notes(unused: list[str]) -> tuple[str, ...]:
    """A note on modules that a file names and that are none of those counted here."""
    if not unused:
        return ()
    more = f" and {len(unused) - 1:,} more" if len(unused) > 1 else ""
    return (f"quantization_config names {shown(unused[0])}{more}: no module that is counted here is called so",)

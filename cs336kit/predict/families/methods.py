"""What a quantization_config says of bits, groups and scales: METHODS reads each quant_method. The rest is refused by name.

Sources: transformers v5.23.0, utils/quantization_config.py and quantizers/quantizers_utils.py; NVIDIA/Model-Optimizer@0030d2b,
modelopt/torch/export/convert_hf_config.py; vllm-project/vllm@006bce4, layers/quantization/quark/quark.py; the configurations of
torchao 0.13 as `config_to_dict` writes them; arguments of a scheme: compressed-tensors, quantization/quant_args.py.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from cs336kit.predict.checks import shown
from cs336kit.predict.packed import packing_called

OTHERWISE = (
    "take quantization_config out of the file to count the weights in bf16, or name the type that is served (--weights)"
)


class Group(NamedTuple):
    """Modules that are stored in one type; `targets` None: all that no other group names."""

    stored: str
    targets: tuple[str, ...] | None = None


def refuse(field: str, value: object, why: str) -> ValueError:
    """The error for an entry of a quantization_config that says nothing which could be counted."""
    return ValueError(f"{field}={shown(value)} of quantization_config {why}: {OTHERWISE}")


#: Floating-point codes by their bits and by what has a scale: 0 for a matrix, None for a row, else a number of weights.
_FLOATS: dict[tuple[int, int | None], str] = {
    (4, 16): "nvfp4", (4, 32): "mxfp4", (6, 32): "mxfp6", (8, 32): "mxfp8", (8, 0): "fp8", (8, None): "fp8-channel",
    (8, 128): "fp8-g128", (8, 128 * 128): "fp8-block",
}  # fmt: skip


def _float(bits: object, group: object) -> str:
    """The name of floating-point codes."""
    name = _FLOATS.get((bits, group)) if isinstance(bits, int) and (group is None or isinstance(group, int)) else None
    if name is None:
        scale = {None: "each row", 0: "each matrix"}.get(group if group in (None, 0) else 1, f"{shown(group)} weights")
        raise refuse(
            "bits", bits, f"with a scale for {scale} is no storage of floating-point weights that is known here"
        )
    return name


def _int(bits: object, group: object, zero: str = "") -> str:
    """The name of integers; `group` None, 0 or -1: a scale for each row (or matrix). `zero`: the suffix for zero points."""
    if group in (None, 0, -1):
        name = "int8" if bits == 8 else f"int{bits}-channel"
    else:
        name = f"int{bits}-g{group}{zero}"
    name = "int4" if name == "int4-g128-zero" else name
    if isinstance(bits, bool) or isinstance(group, bool) or packing_called(name) is None:
        raise refuse("bits", bits, f"with group_size={shown(group)} is no storage of integers that is known here")
    return name


def _scheme(weights: object) -> str:
    """The name for `weights` of a group of compressed-tensors, also as modelopt writes it."""
    if not isinstance(weights, Mapping):
        raise refuse("weights", weights, "is no description of weights")
    bits, strategy, group = weights.get("num_bits"), weights.get("strategy"), weights.get("group_size")
    block = weights.get("block_structure")
    if strategy not in (None, "tensor", "channel", "group", "tensor_group", "block"):
        raise refuse("strategy", strategy, "is none that is known here")
    if strategy == "block":
        if not (isinstance(block, (list, tuple)) and len(block) == 2 and all(type(size) is int for size in block)):
            raise refuse("block_structure", block, "is no pair of sizes, such as [128, 128]")
        group = block[0] * block[1]
    elif strategy == "channel":
        group = None
    elif strategy == "tensor" or (strategy is None and group is None):
        group = 0
    if weights.get("type", "int") == "float":
        return _float(bits, group)
    return _int(bits, group, "" if weights.get("symmetric", True) else "-zero")


#: quant_algo of modelopt → the storage of its weights; None: each module of `quantized_layers` says its own.
ALGORITHMS: dict[str, str | None] = {
    "FP8": "fp8", "FP8_PER_CHANNEL_PER_TOKEN": "fp8-channel", "FP8_PB_WO": "fp8-block", "FP8_PB_REAL_QUANT": "fp8-block",
    "NVFP4": "nvfp4", "NVFP4_AWQ": "nvfp4", "W4A16_NVFP4": "nvfp4", "W4A8_NVFP4_FP8": "nvfp4", "W4A8_MXFP4_FP8": "mxfp4",
    "MXFP4": "mxfp4", "MXFP8": "mxfp8", "W4A16_AWQ": "int4-g128", "W4A8_AWQ": "int4-g128", "INT4_AWQ": "int4-g128",
    "W8A16": "int8", "W8A8_SQ_PER_CHANNEL": "int8", "INT8_SQ": "int8", "MIXED_PRECISION": None,
}  # fmt: skip


def _algorithm(said: Mapping[str, Any]) -> str | None:
    algorithm, group = said.get("quant_algo"), said.get("group_size")
    if not isinstance(algorithm, str) or (name := algorithm.upper()) not in ALGORITHMS:
        raise refuse("quant_algo", algorithm, f"is none of {', '.join(ALGORITHMS)}")
    stored = ALGORITHMS[name]
    if stored == "int4-g128":
        return _int(4, group or 128)
    kind = packing_called(stored)
    if group and kind and kind.group != group and not (stored == "fp8-block" and group == 128):
        raise refuse(
            "group_size",
            group,
            f"does not go with quant_algo {algorithm}, whose groups have {kind.group or 'no'} weights",
        )
    return stored


def _modelopt(c: Mapping[str, Any]) -> list[Group]:
    if c.get("quant_algo") is None and c.get("config_groups"):
        return _compressed_tensors(c)
    if (stored := _algorithm(c)) is not None:
        return [Group(stored)]
    if c.get("quantized_layers") is None and c.get("config_groups"):
        return _compressed_tensors(c)
    layers = c.get("quantized_layers")
    if not isinstance(layers, Mapping) or not all(isinstance(one, Mapping) for one in layers.values()):
        raise refuse("quantized_layers", layers, "does not say how the modules of MIXED_PRECISION are stored")
    named: dict[str, list[str]] = {}
    for module, one in layers.items():
        if (stored := _algorithm(one)) is None:
            raise refuse("quant_algo", one.get("quant_algo"), f"says nothing of {shown(module)}")
        named.setdefault(stored, []).append(str(module))
    return [Group(stored, tuple(modules)) for stored, modules in named.items()]


def _compressed_tensors(c: Mapping[str, Any]) -> list[Group]:
    groups = c.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise refuse("config_groups", groups, "does not say how weights are stored")
    found = []
    for name, group in groups.items():
        if not isinstance(group, Mapping):
            raise refuse(f"config_groups.{name}", group, "is no group")
        if group.get("weights") is None:  # one that is about activations or a cache
            continue
        targets = group.get("targets") or ["Linear"]
        every = not isinstance(targets, (list, tuple)) or any(str(target) in _CLASSES for target in targets)
        found.append(Group(_scheme(group["weights"]), None if every else tuple(map(str, targets))))
    return found


#: Classes of modules by which a group of compressed-tensors means all matrices.
_CLASSES = ("Linear", "FusedMoE", "MoEGPTOSS", "RowParallelLinear", "ColumnParallelLinear")


def _quark(c: Mapping[str, Any]) -> list[Group]:
    everywhere, named = c.get("global_quant_config"), c.get("layer_quant_config") or {}
    if not isinstance(everywhere, Mapping):
        raise refuse("global_quant_config", everywhere, "does not say how weights are stored")
    if not isinstance(named, Mapping) or not all(isinstance(one, Mapping) for one in named.values()):
        raise refuse("layer_quant_config", named, "does not say how its modules are stored")
    rest = [Group(_of_quark(everywhere.get("weight")))]
    return [*(Group(_of_quark(one.get("weight")), (str(module),)) for module, one in named.items()), *rest]


def _of_quark(weight: object) -> str:
    """The name for `weight` of Quark; of two that are applied one after the other, the narrower one is stored."""
    if weight is None:
        return "bf16"
    steps = [step for step in _listed(weight) if isinstance(step, Mapping)]
    if not steps or len(steps) < len(_listed(weight)):
        raise refuse("weight", weight, "is no description of weights")
    found = [(re.fullmatch(r"(u?int|fp|mx_?fp)(\d)(?:_\w+)?", str(step.get("dtype"))), step) for step in steps]
    kinds = [(kind, step) for kind, step in found if kind]
    if len(kinds) < len(steps):
        raise refuse("dtype", steps[0].get("dtype"), "is none that is known here")
    kind, step = min(kinds, key=lambda each: int(each[0][2]))
    bits, scheme, group = int(kind[2]), step.get("qscheme"), step.get("group_size")
    size = {"per_tensor": 0, "per_channel": None, "per_group": group}.get(str(scheme), -2)
    if size == -2:
        raise refuse("qscheme", scheme, "is none of per_tensor, per_channel and per_group")
    if "int" in kind[1]:
        return _int(bits, size, "" if step.get("symmetric", True) else "-zero")
    return _float(bits, size)


def _listed(value: object) -> list[object]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


#: Configuration of torchao → its type ("float", "int" or a name), bits, and the usual group; None: a scale for each row.
_TORCHAO: dict[str, tuple[str, int, int | None]] = {
    "Int4WeightOnlyConfig": ("zero16", 4, 128), "Float8DynamicActivationInt4WeightConfig": ("int", 4, 128),
    "Int8DynamicActivationInt4WeightConfig": ("int", 4, 32), "Int8WeightOnlyConfig": ("int", 8, None),
    "Int8DynamicActivationInt8WeightConfig": ("int", 8, None), "Float8WeightOnlyConfig": ("float", 8, None),
    "Float8DynamicActivationFloat8WeightConfig": ("float", 8, 0), "Float8StaticActivationFloat8WeightConfig": ("float", 8, 0),
    "NVFP4WeightOnlyConfig": ("float", 4, 16), "NVFP4InferenceConfig": ("float", 4, 16),
    "NVFP4DynamicActivationNVFP4WeightConfig": ("float", 4, 16),
    # Before 0.10, as texts.
    "int4_weight_only": ("zero16", 4, 128), "int8_weight_only": ("int", 8, None), "float8_weight_only": ("float", 8, None),
    "int8_dynamic_activation_int8_weight": ("int", 8, None), "float8_dynamic_activation_float8_weight": ("float", 8, 0),
}  # fmt: skip


def _torchao(c: Mapping[str, Any]) -> list[Group]:
    said = c.get("quant_type")
    if isinstance(said, str):
        return [Group(_of_torchao({"_type": said, "_data": c.get("quant_type_kwargs")}))]
    said = said.get("default") if isinstance(said, Mapping) else said
    if isinstance(said, Mapping) and said.get("_type") in ("FqnToConfig", "ModuleFqnToConfig"):
        data = said.get("_data")
        named = (
            next((value for value in data.values() if isinstance(value, Mapping)), {})
            if isinstance(data, Mapping)
            else {}
        )
        groups = [
            Group("bf16" if one is None else _of_torchao(one), None if name == "_default" else (str(name),))
            for name, one in named.items()
        ]
        return groups
    return [Group(_of_torchao(said))]


def _of_torchao(said: object) -> str:
    name = said.get("_type") if isinstance(said, Mapping) else said
    data = said.get("_data") if isinstance(said, Mapping) else None
    if not isinstance(name, str) or name not in _TORCHAO:
        raise refuse("quant_type", name, f"is none of {', '.join(_TORCHAO)}")
    data = data if isinstance(data, Mapping) else {}
    kind, bits, group = _TORCHAO[name]
    if kind == "float":
        return _float(bits, None if group == 0 and "PerRow" in repr(data.get("granularity")) else group)
    return _int(bits, data.get("group_size") or group, "-zero16" if kind == "zero16" else "")


def _bitsandbytes(c: Mapping[str, Any]) -> str:
    """fp4 takes the bytes of nf4."""
    if c.get("load_in_8bit") or c.get("_load_in_8bit"):
        return "int8"
    if c.get("bnb_4bit_quant_type", "fp4") not in ("nf4", "fp4") or not (
        c.get("load_in_4bit") or c.get("_load_in_4bit")
    ):
        raise refuse(
            "bnb_4bit_quant_type", c.get("bnb_4bit_quant_type"), "is not nf4 or fp4 with load_in_4bit, nor load_in_8bit"
        )
    return "nf4" if c.get("bnb_4bit_use_double_quant") else "nf4-fp32"


def _fp8(c: Mapping[str, Any]) -> str:
    if c.get("expert_dtype") not in (None, "fp8"):
        raise refuse("expert_dtype", c["expert_dtype"], "is another storage of experts, which is not counted")
    block = c.get("weight_block_size")
    if block is None:
        return "fp8"
    if not (isinstance(block, (list, tuple)) and len(block) == 2 and all(type(size) is int for size in block)):
        raise refuse("weight_block_size", block, "is no pair of sizes, such as [128, 128]")
    return _float(8, block[0] * block[1])


def _aqlm(c: Mapping[str, Any]) -> str:
    books, bits = c.get("num_codebooks", 1), c.get("nbits_per_codebook", 16)
    group = (c.get("in_group_size", 8), c.get("out_group_size", 1))
    name = f"aqlm-{books}x{bits}-g{group[0]}"
    if group[1] != 1 or packing_called(name) is None:
        raise refuse("num_codebooks", books, f"with {shown(bits)} bits for {shown(group)} weights is not known here")
    return name


def _gptq(c: Mapping[str, Any]) -> list[Group]:
    """With what single modules have otherwise: `dynamic` of GPTQModel, `extra_config` of AutoRound."""
    usual = _int(c.get("bits"), c.get("group_size", 128), "-zero")
    groups = []
    for field, sign in (("dynamic", "re:"), ("extra_config", "")):
        named = c.get(field) or {}
        if not isinstance(named, Mapping):
            raise refuse(field, named, "does not say how its modules are stored")
        for module, own in named.items():
            own = own if isinstance(own, Mapping) else {}
            bits, group = own.get("bits", c.get("bits")), own.get("group_size", c.get("group_size", 128))
            wide = str(module).startswith("-:") or (isinstance(bits, int) and bits >= 16)
            name = sign + str(module).removeprefix("-:").removeprefix("+:")
            groups.append(Group("bf16" if wide else _int(bits, group, "-zero"), (name,)))
    inside = c.get("modules_in_block_to_quantize")
    if inside is None:
        return [*groups, Group(usual)]
    listed = (
        [name for each in inside for name in (each if isinstance(each, list) else [each])]
        if isinstance(inside, list)
        else []
    )
    if not listed:
        raise refuse("modules_in_block_to_quantize", inside, "is no list of modules")
    return [*groups, Group(usual, tuple(map(str, listed)))]


def _hqq(c: Mapping[str, Any]) -> str:
    inner = c.get("quant_config")
    inner = inner.get("weight_quant_params") if isinstance(inner, Mapping) else None
    if not isinstance(inner, Mapping):
        raise refuse("quant_config", c.get("quant_config"), "has no weight_quant_params for all modules")
    return _int(inner.get("nbits"), inner.get("group_size"), "-zero16")


_AWQ_BITS, _AWQ_GROUP = ("bits", "w_bit"), ("group_size", "q_group_size")


def _first(c: Mapping[str, Any], names: Sequence[str], usual: Any) -> Any:
    return next((c[name] for name in names if c.get(name) is not None), usual)


#: quant_method → the groups of its file, or the one type of all of them.
METHODS: dict[str, Callable[[Mapping[str, Any]], "str | list[Group]"]] = {
    "aqlm": _aqlm,
    "auto-round": _gptq,
    "awq": lambda c: _int(
        _first(c, _AWQ_BITS, 4), _first(c, _AWQ_GROUP, 128), "-zero" if c.get("zero_point", True) else ""
    ),
    "bitnet": lambda c: "bf16" if c.get("quantization_mode") == "online" else "bitnet",
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed_tensors,
    "eetq": lambda c: "int8",
    "fbgemm_fp8": lambda c: "fp8-channel",
    "fp8": _fp8,
    "fp_quant": lambda c: _float(4, {"nvfp4": 16, "mxfp4": 32}.get(str(c.get("forward_dtype", "nvfp4")), -1)),
    "gptq": _gptq,
    "hqq": _hqq,
    "modelopt": _modelopt,
    "mxfp4": lambda c: "mxfp4",
    "mxfp8": lambda c: "mxfp8",
    "nvfp4": lambda c: "nvfp4",
    "quark": _quark,
    "torchao": _torchao,
}
_SAME_METHOD = {"modelopt_fp4": "modelopt", "modelopt_mixed": "modelopt", "gptq_marlin": "gptq", "awq_marlin": "awq"}


def groups_of(config: Mapping[str, Any]) -> list[Group]:
    """The groups of a quantization_config."""
    method = config.get("quant_method") or ("modelopt" if "quant_algo" in config else None)
    reader = METHODS.get(_SAME_METHOD.get(method, method)) if isinstance(method, str) else None
    if reader is None:
        raise refuse("quant_method", method, f"is none of {', '.join(METHODS)}")
    found = reader(config)
    return [Group(found)] if isinstance(found, str) else found

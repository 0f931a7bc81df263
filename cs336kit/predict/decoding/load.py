"""What a served model is asked to do, and the programs and the chip from which its bytes and times follow."""

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from cs336kit.predict.accounting import CACHE_TYPES
from cs336kit.predict.checks import checked, fraction, known
from cs336kit.predict.chip import chip
from cs336kit.predict.decoder.step import check_sizes
from cs336kit.predict.devices import FLASH
from cs336kit.predict.hardware import Accelerator
from cs336kit.predict.layouts import Layout, check_layout
from cs336kit.predict.links import link_speed, node_of
from cs336kit.predict.models import MODELS
from cs336kit.predict.packed import EXPERTS, PACKINGS, packing_called
from cs336kit.predict.settle import LARGEST
from cs336kit.predict.transformer import TransformerConfig

#: Types of served weights: element types, and packings of the matrices in blocks, or of those of experts alone (all else stays
#: in bf16, as do embeddings, head, norms and routers with either). Packings by their sizes ("int4-g64") are types, too.
WEIGHT_TYPES = dict.fromkeys(("bf16", "fp16", "fp32", *PACKINGS, *(name + EXPERTS for name in PACKINGS)))
#: Largest power of two in a table, and largest batch of a search that memory does not limit.
LARGEST_BATCH = 2**16


#: Tokens of a prompt in one pass unless the question says otherwise: the default of engines on an H100 (the
#: max_num_batched_tokens of vLLM's server, the chunked_prefill_size of SGLang).
CHUNK = 8192


@dataclass(frozen=True)
class Load:
    """Which model, on what, for prompts and answers of how many tokens."""

    model: TransformerConfig | str
    accelerator: str | Accelerator | None = "h100-sxm"
    #: accelerators that divide heads, MLP and vocabulary of every layer among them (tensor parallel)
    count: int = 1
    #: tokens of a prompt and of an answer; None: half of the model's context each, at most 2048 and 512
    prompt: int | None = None
    output: int | None = None
    #: a name of WEIGHT_TYPES; None: as the model is published if that is known, else bf16
    weights: str | None = None
    cache: str = "bf16"
    #: tokens of one page of the cache
    page: int = 16
    memory_bytes: int | float | None = None
    peak_flops_per_second: float | None = None
    bandwidth: float | None = None
    allowance: int | float | None = None
    #: bytes per second each way from one accelerator to other nodes, and accelerators of a node (None: see `node_of`)
    between_nodes: float | None = None
    node: int | None = None
    #: tokens of a prompt that one pass takes; None: CHUNK
    chunk: int | None = None
    #: share of the memory's bandwidth and of the peak that is reached; links keep their full rates
    efficiency: float = 1.0
    #: bytes per second each way that one accelerator has to its neighbors in the node, in place of the table's
    link: float | None = None

    @property
    def config(self) -> TransformerConfig:
        """The configuration that is meant."""
        return MODELS[self.model] if isinstance(self.model, str) else self.model

    @property
    def prompt_tokens(self) -> int:
        """Tokens of a prompt: as given, or half of the context, at most 2048."""
        return min(max(self.config.context // 2, 1), 2048) if self.prompt is None else self.prompt

    @property
    def output_tokens(self) -> int:
        """Tokens of an answer: as given, or half of the context, at most 512."""
        return min(max(self.config.context // 2, 1), 512) if self.output is None else self.output

    @property
    def length(self) -> int:
        """Tokens of a sequence at the end of its answer."""
        return self.prompt_tokens + self.output_tokens

    @property
    def pass_tokens(self) -> int:
        """Tokens of a prompt's longest pass: a chunk, or the whole prompt if attention writes out the scores of all pairs."""
        flash = _attention(self.config) == "flash_attention"
        return min(self.chunk or CHUNK, self.prompt_tokens) if flash else self.prompt_tokens

    @property
    def stored(self) -> str:
        """The type of the weights: as given, or as published, or else bf16."""
        return self.config.stored or "bf16" if self.weights is None else self.weights

    @property
    def stored_apart(self) -> tuple[tuple[str, str, float], ...]:
        """What a published checkpoint stores otherwise, as `TransformerConfig.stored_apart`; nothing with other weights."""
        return self.config.stored_apart if self.stored == self.config.stored else ()

    @property
    def per_node(self) -> int:
        """Accelerators of a node: as given, or as the table has them."""
        return self.node or node_of(self.accelerator, self.count)


Asked = TypeVar("Asked", bound=Load)


def settled_load(q: Asked) -> Asked:
    """What is asked with every default filled in, for a configuration; ValueError for what cannot be."""
    if not isinstance(q.stored, str) or packing_called(packing_of(q.stored)) is None:
        known("type of weights", q.stored, WEIGHT_TYPES)
    if q.stored.endswith(EXPERTS) and not q.config.experts:
        raise ValueError(f"weights in {q.stored}, but this model has no experts: give {packing_of(q.stored)}")
    known("precision of a cache", q.cache, CACHE_TYPES)
    q = replace(q, **checked(q, limits={"page": LARGEST["context"]}, efficiency=fraction, allowance=None))
    check_layout(q.config, Layout(tp=q.count))
    prompt, output = q.prompt_tokens, q.output_tokens
    try:
        check_sizes(q.config, batch=1, sequence=prompt + output)
    except ValueError:
        otherwise = (
            ""
            if q.config.positions == "learned"
            else ", or give a configuration with a longer one; to `cs336kit serve`, --context"
        )
        raise ValueError(
            f"a prompt of {prompt:,} and an answer of {output:,} tokens are longer than the context of {q.config.context:,}: "
            f"shorten one{otherwise}"
        ) from None
    return replace(q, weights=q.stored, prompt=prompt, output=output)


def chip_of(q: Load) -> tuple[Accelerator, tuple[str, ...]]:
    """The chip, and notes about it, with the peak of the matrix products; fp8 weights use fp8 products if that peak is known."""
    given = {name: getattr(q, name) for name in ("memory_bytes", "peak_flops_per_second", "bandwidth", "link")}
    products = products_of(q.stored)
    what, notes = chip(q.accelerator, precision="fp32" if products == "fp32" else "bf16", **given)
    if link_speed(what) is None and q.count > 1 and q.per_node > 1:
        raise ValueError(
            f"{what.title} has no sourced link to its neighbors: give link, that of one accelerator each way, such as 32e9 bytes "
            "per second (32GB/s), or take another accelerator"
        )
    if "bandwidth" not in what.facts:
        raise ValueError("a latency needs the bandwidth of the memory: give bandwidth, such as 3.35e12")
    if products in ("fp8", "fp4") and q.peak_flops_per_second is None and q.accelerator is not None:
        try:
            return chip(q.accelerator, precision=products, **given)
        except ValueError:
            notes = (*notes, f"{what.name} has no sourced {products} peak: products in bf16; --peak counts others")
    return what, notes


def packing_of(weights: str) -> str:
    """The packing of a type of weights, whichever matrices are quantized; an element type is returned as it is."""
    return weights.removesuffix(EXPERTS)


def products_of(weights: str) -> str:
    """The type in which weights so stored are multiplied where the chip has it; what it lacks is unpacked to bf16.

    Source: vLLM's quantization/modelopt.py, whose NVFP4 multiplies in fp4 on Blackwell, and unpacks (Marlin) before it.
    """
    packing = packing_of(weights)
    if packing.startswith("fp8") or packing == "mxfp8":
        return "fp8"
    return {"nvfp4": "fp4", "fp32": "fp32"}.get(packing, "bf16")


def _attention(config: TransformerConfig) -> str:
    return "flash_attention" if config.head_dim <= (FLASH.widest or 0) else "sdpa"


def options_of(q: Load) -> dict[str, Any]:
    """Options of every program here. Attention is that of serving engines, except for heads that are too wide for it.

    Activations and attention are in bf16, even with fp32 weights, whose bytes and peak count. An engine that serves such
    weights has activations that take more.
    """
    layout = Layout(tp=q.count)
    return {"precision": "bf16", "attention": _attention(q.config), "causal": True, "device": "cuda", "layout": layout}

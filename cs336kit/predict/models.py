"""Well-known decoder-only models as configurations, each with the paper or published configuration it follows."""

from collections.abc import Mapping
from types import MappingProxyType

from cs336kit.predict._common.checks import known
from cs336kit.predict.transformer import TransformerConfig


def _gpt2(
    layers, d_model, heads, *, context=1024, source="Radford et al. 2019, table 2; config.json of openai-community"
):
    return TransformerConfig(layers=layers, d_model=d_model, heads=heads, vocab=50257, context=context, source=source)


def _llama(layers, d_model, heads, kv_heads, d_ff, vocab, context, *, source, **more):
    """The Llama family: RMSNorm, RoPE, SwiGLU, no biases, and an untied head unless told."""
    settings = {"bias": "none", "tied_head": False, **more}
    return TransformerConfig(
        layers=layers,
        d_model=d_model,
        heads=heads,
        kv_heads=kv_heads,
        d_ff=d_ff,
        vocab=vocab,
        context=context,
        mlp="swiglu",
        norm="rmsnorm",
        positions="rope",
        source=source,
        **settings,
    )


def _pythia(layers, d_model, heads, vocab):
    return TransformerConfig(
        layers=layers,
        d_model=d_model,
        heads=heads,
        vocab=vocab,
        context=2048,
        positions="rope",
        tied_head=False,
        source="Biderman et al. 2023, arXiv:2304.01373, table 1; config.json of EleutherAI",
    )


def _falcon(layers, d_model, heads, kv_heads, norms_per_block):
    return TransformerConfig(
        layers=layers,
        d_model=d_model,
        heads=heads,
        kv_heads=kv_heads,
        vocab=65024,
        context=2048,
        positions="rope",
        bias="none",
        norms_per_block=norms_per_block,
        source="Almazrouei et al. 2023, arXiv:2311.16867; config.json of tiiuae (attention and MLP in parallel)",
    )


_LLAMA_1 = "Touvron et al. 2023, arXiv:2302.13971, table 2"
_LLAMA_2 = "Touvron et al. 2023, arXiv:2307.09288; config.json of meta-llama"
_LLAMA_3 = "Grattafiori et al. 2024, arXiv:2407.21783, table 3; config.json of meta-llama"
_MISTRAL = "Jiang et al. 2023, arXiv:2310.06825, table 1"
_MIXTRAL = "Jiang et al. 2024, arXiv:2401.04088, table 1; config.json of mistralai"
_QWEN = "Qwen Team 2024, arXiv:2412.15115; config.json of Qwen"
_GEMMA = "Gemma Team 2024, arXiv:2403.08295, table 1 (GeGLU: the matrices of SwiGLU with another activation)"

_BY_NAME = {
    "gpt2": _gpt2(12, 768, 12),
    "gpt2-medium": _gpt2(24, 1024, 16),
    "gpt2-large": _gpt2(36, 1280, 20),
    "gpt2-xl": _gpt2(48, 1600, 25),
    # Sparse attention alternates with dense in the paper; every parameter count and estimate treats it as dense.
    "gpt3-175b": _gpt2(96, 12288, 96, context=2048, source="Brown et al. 2020, arXiv:2005.14165, table 2.1"),
    "llama-7b": _llama(32, 4096, 32, 32, 11008, 32000, 2048, source=_LLAMA_1),
    "llama-65b": _llama(80, 8192, 64, 64, 22016, 32000, 2048, source=_LLAMA_1),
    "llama-2-7b": _llama(32, 4096, 32, 32, 11008, 32000, 4096, source=_LLAMA_2),
    "llama-2-13b": _llama(40, 5120, 40, 40, 13824, 32000, 4096, source=_LLAMA_2),
    "llama-2-70b": _llama(80, 8192, 64, 8, 28672, 32000, 4096, source=_LLAMA_2),
    "llama-3-8b": _llama(32, 4096, 32, 8, 14336, 128256, 8192, source=_LLAMA_3),
    "llama-3-70b": _llama(80, 8192, 64, 8, 28672, 128256, 8192, source=_LLAMA_3),
    "llama-3.1-405b": _llama(126, 16384, 128, 8, 53248, 128256, 131072, source=_LLAMA_3),
    "llama-3.2-1b": _llama(
        16, 2048, 32, 8, 8192, 128256, 131072, tied_head=True, source="config.json of meta-llama/Llama-3.2-1B"
    ),
    "llama-3.2-3b": _llama(
        28, 3072, 24, 8, 8192, 128256, 131072, tied_head=True, source="config.json of meta-llama/Llama-3.2-3B"
    ),
    "tinyllama-1.1b": _llama(22, 2048, 32, 4, 5632, 32000, 2048, source="Zhang et al. 2024, arXiv:2401.02385, table 2"),
    "smollm2-135m": _llama(
        30, 576, 9, 3, 1536, 49152, 8192, tied_head=True, source="config.json of HuggingFaceTB/SmolLM2-135M"
    ),
    "yi-34b": _llama(60, 7168, 56, 8, 20480, 64000, 4096, source="01.AI 2024, arXiv:2403.04652, table 1"),
    "deepseek-67b": _llama(95, 8192, 64, 8, 22016, 102400, 4096, source="DeepSeek-AI 2024, arXiv:2401.02954, table 2"),
    "mistral-7b": _llama(32, 4096, 32, 8, 14336, 32000, 8192, window=4096, source=_MISTRAL),
    "mixtral-8x7b": _llama(32, 4096, 32, 8, 14336, 32000, 32768, experts=8, experts_per_token=2, source=_MIXTRAL),
    "mixtral-8x22b": _llama(
        56, 6144, 48, 8, 16384, 32000, 65536, experts=8, experts_per_token=2, source="config.json of mistralai"
    ),
    "qwen2.5-0.5b": _llama(24, 896, 14, 2, 4864, 151936, 32768, bias="qkv", tied_head=True, source=_QWEN),
    "qwen2.5-1.5b": _llama(28, 1536, 12, 2, 8960, 151936, 131072, bias="qkv", tied_head=True, source=_QWEN),
    "qwen2.5-3b": _llama(36, 2048, 16, 2, 11008, 151936, 32768, bias="qkv", tied_head=True, source=_QWEN),
    "qwen2.5-7b": _llama(28, 3584, 28, 4, 18944, 152064, 131072, bias="qkv", source=_QWEN),
    "qwen2.5-14b": _llama(48, 5120, 40, 8, 13824, 152064, 131072, bias="qkv", source=_QWEN),
    "qwen2.5-32b": _llama(64, 5120, 40, 8, 27648, 152064, 131072, bias="qkv", source=_QWEN),
    "qwen2.5-72b": _llama(80, 8192, 64, 8, 29568, 152064, 131072, bias="qkv", source=_QWEN),
    "gemma-2b": _llama(18, 2048, 8, 1, 16384, 256000, 8192, head_dim=256, tied_head=True, source=_GEMMA),
    "gemma-7b": _llama(28, 3072, 16, 16, 24576, 256000, 8192, head_dim=256, tied_head=True, source=_GEMMA),
    "falcon-7b": _falcon(32, 4544, 71, 1, norms_per_block=1),
    "falcon-40b": _falcon(60, 8192, 128, 8, norms_per_block=2),
    "pythia-70m": _pythia(6, 512, 8, 50304),
    "pythia-6.9b": _pythia(32, 4096, 32, 50432),
    # ALiBi adds a bias to the scores and has no parameters.
    "mpt-7b": TransformerConfig(
        layers=32,
        d_model=4096,
        heads=32,
        vocab=50432,
        context=2048,
        positions="none",
        bias="none",
        norm_bias=False,
        source="config.json of mosaicml/mpt-7b",
    ),
    "starcoder-15b": TransformerConfig(
        layers=40,
        d_model=6144,
        heads=48,
        kv_heads=1,
        vocab=49152,
        context=8192,
        source="Li et al. 2023, arXiv:2305.06161, table 7; config.json of bigcode/starcoder",
    ),
    "palm-540b": TransformerConfig(
        layers=118,
        d_model=18432,
        heads=48,
        kv_heads=1,
        head_dim=256,
        d_ff=73728,
        vocab=256000,
        context=2048,
        mlp="swiglu",
        positions="rope",
        bias="none",
        norm_bias=False,
        norms_per_block=1,
        source="Chowdhery et al. 2022, arXiv:2204.02311, table 1 (540.35 billion parameters)",
    ),
}


class _Models(Mapping):
    """Read-only; "Llama-3 8B" finds "llama-3-8b", and an unknown name raises a ValueError that lists the known ones."""

    def __init__(self, models: dict[str, TransformerConfig]):
        self._models = MappingProxyType(models)
        self._folded = {_fold(name): name for name in models} | {"gpt3": "gpt3-175b", "gpt2small": "gpt2"}

    def __getitem__(self, name: str) -> TransformerConfig:
        return known("model", self._folded.get(_fold(name), name), self._models)

    def __contains__(self, name: object) -> bool:
        return _fold(name) in self._folded

    def get(self, name: str, default=None):
        return self._models.get(self._folded.get(_fold(name)), default)

    def __iter__(self):
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    def __repr__(self) -> str:
        return f"MODELS({', '.join(self)})"


def _fold(name: object) -> str:
    return "".join(filter(str.isalnum, name.lower())) if isinstance(name, str) else ""


#: name → configuration. Contexts are those of pretraining as published. Dropout, a choice of the run, is 0 here.
MODELS = _Models(_BY_NAME)


def model(name: str) -> TransformerConfig:
    """The configuration of a known model; an unknown name raises a ValueError that lists the known ones."""
    return MODELS[name]

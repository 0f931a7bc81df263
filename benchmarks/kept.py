"""`python -m benchmarks.kept`: bytes kept for the backward pass by transformers' own modules, predicted and counted.

Nineteen small models of as many architectures, 40 policies each: precision, attention, dropout, checkpointing. Counted by
the hooks of saved tensors while the module runs with its own loss, without a cache of keys and values. Some families alone:
`python -m benchmarks.kept llama mixtral`. With `--device cuda` by CUDA's rules, on a GPU or, with a CUDA build of torch, on
fake tensors.
"""

import argparse
import contextlib
import dataclasses
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import torch
import transformers

from benchmarks.fake_cuda import UNSEEN, autocast, cuda
from cs336kit import measure
from cs336kit.predict import DEVICES, Device, TransformerConfig, saved_activation_bytes
from cs336kit.predict import POLICIES as PRECISIONS
from cs336kit.predict._common.checks import known
from cs336kit.predict._common.grid import as_text


class Sizes(NamedTuple):
    """Sizes of a small model and of its batch; no two products of them are alike."""

    layers: int = 2
    d_model: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 12
    d_ff: int = 40
    vocab: int = 29
    context: int = 32
    window: int = 5
    batch: int = 3
    sequence: int = 11


USUAL = Sizes()
#: Heads that no kernel of CUDA pads: what transformers' modules keep of padded ones is not described.
SIZES = {"cpu": USUAL, "cuda": USUAL._replace(head_dim=16)}


class Family(NamedTuple):
    """An architecture: its configuration in transformers, and the same in ours."""

    theirs: Callable[[Sizes, float], Any]
    ours: Callable[[Sizes], dict[str, Any]]


def _told(values: dict[str, Any], sizes: Sizes) -> dict[str, Any]:
    """Values as they are, or as these sizes make them."""
    return {key: value(sizes) if callable(value) else value for key, value in values.items()}


def _old(name: str, *dropouts: str, **more: Any) -> Callable[[Sizes, float], Any]:
    """A configuration with the names of GPT-2 and those after it."""

    def make(s: Sizes, dropout: float) -> Any:
        return getattr(transformers, name)(vocab_size=s.vocab, **_told(more, s), **dict.fromkeys(dropouts, dropout))

    return make


def _usual(name: str, *dropouts: str, grouped: bool = True, **more: Any) -> Callable[[Sizes, float], Any]:
    """A configuration with the names that most architectures share."""
    usual = {
        "num_hidden_layers": lambda s: s.layers, "hidden_size": lambda s: s.d_model,
        "num_attention_heads": lambda s: s.heads, "intermediate_size": lambda s: s.d_ff,
        "max_position_embeddings": lambda s: s.context,
    }  # fmt: skip
    heads = {"num_key_value_heads": lambda s: s.kv_heads} if grouped else {}
    return _old(name, *dropouts, **usual | heads | more)


_GPT2_SIZES = {
    "n_layer": lambda s: s.layers, "n_embd": lambda s: s.d_model, "n_head": lambda s: s.heads,
    "n_inner": lambda s: s.d_ff, "n_positions": lambda s: s.context,
}  # fmt: skip


def _llama(**more: Any) -> Callable[[Sizes], dict[str, Any]]:
    usual = {"norm": "rmsnorm", "positions": "rope", "mlp": "swiglu", "bias": "none", "tied_head": False}
    return _ours(kv_heads=lambda s: s.kv_heads, **{**usual, **more})


def _ours(**more: Any) -> Callable[[Sizes], dict[str, Any]]:
    return lambda s: _told(more, s)


def _rotary(part: int) -> Callable[[Sizes], int]:
    """One of so many parts of each head turns."""
    return lambda s: s.d_model // s.heads // part


_ROPE = {"positions": "rope", "tied_head": False}
_GEMMA = {"mlp": "geglu_tanh", "norm_unit_offset": True, "tied_head": True, "head_dim": lambda s: s.head_dim}
_ATTENTION, _HIDDEN = "attention_dropout", "hidden_dropout"
_OF_GPT2 = ("resid_pdrop", "embd_pdrop", "attn_pdrop")

#: model_type → the architecture in both words.
FAMILIES: dict[str, Family] = {
    "gpt2": Family(_old("GPT2Config", *_OF_GPT2, **_GPT2_SIZES), _ours(mlp="gelu_new")),
    "opt": Family(
        _old(
            "OPTConfig", "dropout", _ATTENTION, num_hidden_layers=lambda s: s.layers, hidden_size=lambda s: s.d_model,
            num_attention_heads=lambda s: s.heads, ffn_dim=lambda s: s.d_ff, word_embed_proj_dim=lambda s: s.d_model,
            max_position_embeddings=lambda s: s.context,
        ),
        _ours(mlp="relu", extra_positions=2),
    ),
    "gpt_neox": Family(
        _usual("GPTNeoXConfig", _ATTENTION, _HIDDEN, grouped=False), _ours(parallel=True, rotary_dim=_rotary(4), **_ROPE)
    ),
    "llama": Family(_usual("LlamaConfig", _ATTENTION), _llama()),
    "mistral": Family(
        _usual("MistralConfig", _ATTENTION, sliding_window=lambda s: s.window), _llama(window=lambda s: s.window)
    ),
    "qwen2": Family(_usual("Qwen2Config", _ATTENTION), _llama(bias="qkv")),
    "qwen3": Family(
        _usual("Qwen3Config", _ATTENTION, head_dim=lambda s: s.head_dim),
        _llama(head_dim=lambda s: s.head_dim, qk_norm="head"),
    ),
    "gemma": Family(_usual("GemmaConfig", _ATTENTION, head_dim=lambda s: s.head_dim), _llama(**_GEMMA)),
    "gemma2": Family(
        _usual("Gemma2Config", _ATTENTION, head_dim=lambda s: s.head_dim, sliding_window=lambda s: s.window),
        _llama(
            **_GEMMA, norm_placement="sandwich", window=lambda s: s.window, window_layers=(True, False),
            attention_softcap=50.0, logit_softcap=30.0,
        ),
    ),
    "phi": Family(
        _usual("PhiConfig", _ATTENTION, "resid_pdrop", "embd_pdrop"),
        _ours(
            kv_heads=lambda s: s.kv_heads, norms_per_block=1, rotary_dim=_rotary(2), mlp="gelu_new", head_bias=True, **_ROPE
        ),
    ),
    "mixtral": Family(
        _usual("MixtralConfig", _ATTENTION, num_local_experts=3, num_experts_per_tok=2),
        _llama(experts=3, experts_per_token=2),
    ),
    "olmo2": Family(_usual("Olmo2Config", _ATTENTION), _llama(norm_placement="post", qk_norm="width")),
    "stablelm": Family(
        _usual("StableLmConfig", _ATTENTION, _HIDDEN),
        _ours(kv_heads=lambda s: s.kv_heads, mlp="swiglu", bias="none", rotary_dim=_rotary(4), **_ROPE),
    ),
    "bloom": Family(
        _old(
            "BloomConfig", _ATTENTION, _HIDDEN, n_layer=lambda s: s.layers, hidden_size=lambda s: s.d_model,
            n_head=lambda s: s.heads,
        ),
        _ours(positions="alibi", embedding_norm=True, mlp="gelu_new", d_ff=lambda s: 4 * s.d_model),
    ),
    "falcon": Family(
        _old(
            "FalconConfig", _ATTENTION, _HIDDEN, num_hidden_layers=lambda s: s.layers, hidden_size=lambda s: s.d_model,
            num_attention_heads=lambda s: s.heads, max_position_embeddings=lambda s: s.context,
        ),
        _ours(kv_heads=1, norms_per_block=1, bias="none", d_ff=lambda s: 4 * s.d_model, positions="rope"),
    ),
    "gptj": Family(
        _old("GPTJConfig", *_OF_GPT2, rotary_dim=4, **_GPT2_SIZES),
        _ours(norms_per_block=1, bias=("up", "down"), rotary_dim=4, mlp="gelu_new", head_bias=True, **_ROPE),
    ),
    "starcoder2": Family(
        _usual("Starcoder2Config", _ATTENTION, "residual_dropout", "embedding_dropout", sliding_window=None),
        _ours(kv_heads=lambda s: s.kv_heads, mlp="gelu_tanh", positions="rope"),
    ),
    "granite": Family(_usual("GraniteConfig", _ATTENTION), _llama()),
    "cohere": Family(
        _usual("CohereConfig", _ATTENTION), _llama(norm="layernorm", norm_bias=False, norms_per_block=1, tied_head=True)
    ),
}  # fmt: skip


class Policy(NamedTuple):
    precision: str
    attention: str
    dropout: float
    checkpointing: bool


#: Precisions without a second copy of the weights: what a module alone can show.
ONE_COPY = [name for name, kind in PRECISIONS.items() if kind.master_weights is None]
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
POLICIES = [Policy(*choice) for choice in itertools.product(ONE_COPY, ("eager", "sdpa"), (0.0, 0.1), (False, True))]


def rules(device: str) -> Device:
    """The device with the rules of the torch that runs here, where they are others than in torch 2.13."""
    found = DEVICES[device]
    if device == "cpu" and tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14):
        kernels = (dataclasses.replace(kernel, broadcast=True) for kernel in found.kernels)
        found = dataclasses.replace(found, kernels=tuple(kernels))
    return found


def config_of(name: str, sizes: Sizes, dropout: float) -> TransformerConfig:
    """The architecture in our words."""
    s = sizes
    usual = {
        "layers": s.layers, "d_model": s.d_model, "heads": s.heads, "d_ff": s.d_ff, "vocab": s.vocab,
        "context": s.context, "dropout": dropout,
    }  # fmt: skip
    return TransformerConfig(**{**usual, **FAMILIES[name].ours(s)})


def predicted(
    name: str, policy: Policy, sizes: Sizes, *, device: str | Device = "cpu", flavour: str = "transformers"
) -> int:
    """What the list of operations says."""
    return saved_activation_bytes(
        config_of(name, sizes, policy.dropout), batch=sizes.batch, sequence=sizes.sequence, precision=policy.precision,
        attention=policy.attention, checkpointing=policy.checkpointing, device=device, flavour=flavour,
    ).total  # fmt: skip


def model_of(name: str, policy: Policy, sizes: Sizes) -> Any:
    """transformers' own module, ready to train."""
    config = FAMILIES[name].theirs(sizes, policy.dropout)
    config.use_cache = False
    config.pad_token_id = config.bos_token_id = config.eos_token_id = None
    model = transformers.AutoModelForCausalLM.from_config(
        config,
        # Asked for nothing it takes fused attention, and eager where an architecture has no fused one.
        attn_implementation="eager" if policy.attention == "eager" else None,
        dtype=TYPES[PRECISIONS[policy.precision].weights],
    )
    model.train()
    if policy.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def counted(name: str, policy: Policy, sizes: Sizes, *, device: str = "cpu") -> int:
    """What autograd holds after a forward pass with the loss; on "cuda" of fake tensors where there is no GPU."""
    kind = PRECISIONS[policy.precision]
    with _cuda() if device == "cuda" else contextlib.nullcontext():
        with torch.device(device):
            model = model_of(name, policy, sizes)
            tokens = torch.randint(sizes.vocab, (sizes.batch, sizes.sequence))

        def cast() -> Any:
            if not kind.casts:
                return contextlib.nullcontext()
            return autocast(TYPES[kind.products]) if device == "cuda" else torch.autocast("cpu", TYPES[kind.products])

        def loss() -> torch.Tensor:
            with cast():
                return model(input_ids=tokens, labels=tokens, use_cache=False).loss

        return measure.saved_activation_bytes(loss).total


@contextlib.contextmanager
def _cuda() -> Iterator[None]:
    """What transformers asks is answered as on a GPU of compute capability 8.0 or more that nobody exports a model from."""
    # It takes fake tensors for a sign that somebody exports the model, and makes masks that it makes for nobody else.
    tracing = mock.patch("transformers.masking_utils.is_tracing", lambda *tensors: False)
    # In fp32 and fp16 the grouped product asks the driver: fake tensors take the fallback, which keeps the same.
    grouped = mock.patch(
        "transformers.integrations.moe._can_use_grouped_mm", lambda x, *rest: x.dtype == torch.bfloat16
    )
    with tracing, grouped, cuda():
        yield


class Row(NamedTuple):
    """One model under one policy: bytes predicted and counted."""

    name: str
    policy: Policy
    predicted: int
    counted: int

    def cells(self) -> tuple[str, ...]:
        precision, attention, dropout, checkpointing = self.policy
        how = (precision, attention, str(dropout), "checkpointed" if checkpointing else "")
        return (self.name, *how, f"{self.predicted:,}", f"{self.counted:,}", f"{self.predicted - self.counted:,}")


HEADERS = ("model", "precision", "attention", "dropout", "", "predicted", "counted", "difference")


def rows_of(name: str, *, device: str = "cpu") -> list[Row]:
    """An architecture under every policy."""
    sizes, here = SIZES[device], rules(device)
    return [
        Row(name, policy, predicted(name, policy, sizes, device=here), counted(name, policy, sizes, device=device))
        for policy in POLICIES
    ]


def main(arguments: list[str] | None = None) -> int:
    """Compare the families named, all of them for none: a table for each, and at the end what differs by name."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kept", description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"some of: {', '.join(FAMILIES)}")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args(arguments)
    try:
        for name in options.families:
            known("family", name, FAMILIES)
        if options.device == "cuda" and UNSEEN:
            raise RuntimeError(UNSEEN)
    except (ValueError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 2
    transformers.logging.set_verbosity_error()
    started, rows = time.monotonic(), []
    names = options.families or list(FAMILIES)
    for place, name in enumerate(names, start=1):
        rows += (new := rows_of(name, device=options.device))
        exact = sum(row.predicted == row.counted for row in new)
        print(as_text([HEADERS, *(row.cells() for row in new)], "<<<<<>>>"))
        seconds = time.monotonic() - started
        print(f"[{place} of {len(names)}] {name}: {exact} of {len(new)} exact, after {seconds:.0f} s\n", flush=True)
    off = [row for row in rows if row.predicted != row.counted]
    versions = f"transformers {transformers.__version__} and torch {torch.__version__}"
    print(f"{len(rows) - len(off)} of {len(rows)} exact on {options.device}, with {versions}")
    if off:
        print(as_text([HEADERS, *(row.cells() for row in off)], "<<<<<>>>"))
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())

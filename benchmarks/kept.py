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
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from benchmarks.fake_cuda import UNSEEN, autocast, cuda
from cs336kit import measure
from cs336kit.predict import DEVICES, Device, TransformerConfig, from_hf, saved_activation_bytes
from cs336kit.predict import POLICIES as PRECISIONS
from cs336kit.predict.checks import known
from cs336kit.predict.grid import as_text


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
    """An architecture: the names of its dropouts in transformers' configuration, and the values of other names there.

    A value is as it is, or a function of the sizes.
    """

    dropouts: tuple[str, ...]
    values: dict[str, Any]


#: What most architectures call their sizes, and GPT-2 and those after it.
_USUAL = {
    "num_hidden_layers": lambda s: s.layers, "hidden_size": lambda s: s.d_model,
    "num_attention_heads": lambda s: s.heads, "intermediate_size": lambda s: s.d_ff,
    "max_position_embeddings": lambda s: s.context,
}  # fmt: skip
_GPT2 = {
    "n_layer": lambda s: s.layers, "n_embd": lambda s: s.d_model, "n_head": lambda s: s.heads,
    "n_inner": lambda s: s.d_ff, "n_positions": lambda s: s.context,
}  # fmt: skip
_GROUPED = {**_USUAL, "num_key_value_heads": lambda s: s.kv_heads}
_HEAD, _WINDOW = {"head_dim": lambda s: s.head_dim}, {"sliding_window": lambda s: s.window}
_ATTENTION, _HIDDEN = "attention_dropout", "hidden_dropout"
_OF_GPT2 = ("resid_pdrop", "embd_pdrop", "attn_pdrop")

#: model_type → the architecture.
FAMILIES: dict[str, Family] = {
    "gpt2": Family(_OF_GPT2, _GPT2),
    "opt": Family(
        ("dropout", _ATTENTION),
        {
            "num_hidden_layers": lambda s: s.layers, "hidden_size": lambda s: s.d_model,
            "num_attention_heads": lambda s: s.heads, "ffn_dim": lambda s: s.d_ff,
            "word_embed_proj_dim": lambda s: s.d_model, "max_position_embeddings": lambda s: s.context,
        },
    ),
    "gpt_neox": Family((_ATTENTION, _HIDDEN), _USUAL),
    "llama": Family((_ATTENTION,), _GROUPED),
    "mistral": Family((_ATTENTION,), _GROUPED | _WINDOW),
    "qwen2": Family((_ATTENTION,), _GROUPED),
    "qwen3": Family((_ATTENTION,), _GROUPED | _HEAD),
    "gemma": Family((_ATTENTION,), _GROUPED | _HEAD),
    "gemma2": Family((_ATTENTION,), _GROUPED | _HEAD | _WINDOW),
    "phi": Family((_ATTENTION, "resid_pdrop", "embd_pdrop"), _GROUPED),
    "mixtral": Family((_ATTENTION,), {**_GROUPED, "num_local_experts": 3, "num_experts_per_tok": 2}),
    "olmo2": Family((_ATTENTION,), _GROUPED),
    "stablelm": Family((_ATTENTION, _HIDDEN), _GROUPED),
    "bloom": Family(
        (_ATTENTION, _HIDDEN),
        {"n_layer": lambda s: s.layers, "hidden_size": lambda s: s.d_model, "n_head": lambda s: s.heads},
    ),
    "falcon": Family(
        (_ATTENTION, _HIDDEN),
        {
            "num_hidden_layers": lambda s: s.layers, "hidden_size": lambda s: s.d_model,
            "num_attention_heads": lambda s: s.heads, "max_position_embeddings": lambda s: s.context,
        },
    ),
    "gptj": Family(_OF_GPT2, {**_GPT2, "rotary_dim": 4}),
    "starcoder2": Family((_ATTENTION, "residual_dropout", "embedding_dropout"), {**_GROUPED, "sliding_window": None}),
    "granite": Family(
        (_ATTENTION,),
        {**_GROUPED, "embedding_multiplier": 12.0, "residual_multiplier": 0.25, "logits_scaling": 8.0},
    ),
    "cohere": Family((_ATTENTION,), _GROUPED),
}  # fmt: skip


def their_config(name: str, sizes: Sizes, dropout: float) -> Any:
    """The architecture as transformers describes it."""
    family = FAMILIES[name]
    values = {key: value(sizes) if callable(value) else value for key, value in family.values.items()}
    return CONFIG_MAPPING[name](vocab_size=sizes.vocab, **values, **dict.fromkeys(family.dropouts, dropout))


def config_of(name: str, sizes: Sizes, dropout: float) -> TransformerConfig:
    """The same in our words; dropout is a choice of the run there, and no part of a config.json that is read."""
    return dataclasses.replace(from_hf(their_config(name, sizes, dropout).to_dict()), dropout=dropout)


class Policy(NamedTuple):
    precision: str
    attention: str
    dropout: float
    checkpointing: bool


#: Precisions without a second copy of the weights: what a module alone can show.
#: Those in which a module and a plain torch optimizer train; what is kept depends on nothing else.
ONE_COPY = [name for name, kind in PRECISIONS.items() if not kind.master_weights and kind.states == kind.weights]
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
POLICIES = [Policy(*choice) for choice in itertools.product(ONE_COPY, ("eager", "sdpa"), (0.0, 0.1), (False, True))]


def rules(device: str) -> Device:
    """The device with the rules of the torch that runs here, where they are others than in torch 2.13."""
    found = DEVICES[device]
    if device == "cpu" and tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14):
        kernels = (dataclasses.replace(kernel, broadcast=True) for kernel in found.kernels)
        found = dataclasses.replace(found, kernels=tuple(kernels))
    return found


def flavour(name: str) -> str:
    """The architecture as the transformers that runs here writes it, where that is otherwise than in transformers 5.23."""
    later = name == "gptj" and tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 24)
    return "transformers:gptj-5.24" if later else "transformers"


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
    config = their_config(name, sizes, policy.dropout)
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
        Row(
            name,
            policy,
            predicted(name, policy, sizes, device=here, flavour=flavour(name)),
            counted(name, policy, sizes, device=device),
        )
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

"""A config.json becomes transformers' own module on fake tensors: read, refused in a sentence, or built."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import transformers
import transformers.masking_utils as masks
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.loss.loss_utils import ForCausalLMLoss
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_MAPPING_NAMES

#: Precision → the type of the weights, and the type to which autocast casts inputs of products.
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16} | dict.fromkeys(
    ("fp32", "autocast", "autocast-fp16"), torch.float32
)
CASTS = {"autocast": torch.bfloat16, "autocast-fp16": torch.float16}
#: More layers than any model has: building them would take minutes and gigabytes of Python objects.
MOST_LAYERS = 1000
#: What the text model of a file with more than text is called in it.
_TEXTS = ("text_config", "llm_config", "language_config")
#: Names of a layer's own number, which say nothing of what it computes.
_NUMBERS = ("layer_idx", "layer_id", "layer_index", "layer_number", "layer_num", "block_idx")


@dataclass(frozen=True)
class Read:
    """The fields of a text model, what of the file is not counted, and what is counted otherwise than it says."""

    values: dict[str, Any]
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read(config: Mapping[str, Any] | str | Path) -> Read:
    """The fields of a config.json that transformers can build by its own code; ValueError says what is wrong with it."""
    if not isinstance(config, Mapping):
        path = Path(config)
        path = path / "config.json" if path.is_dir() else path
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
        except ValueError:
            raise ValueError(f"{path} is not JSON: give the config.json of a model") from None
    if not isinstance(config, Mapping) or not isinstance(config.get("model_type"), str):
        raise ValueError("this is no config.json of a model: it has no model_type")
    values, notes = dict(config), list[str]()
    left_out: tuple[str, ...] = ()
    kind = values["model_type"]
    if values.pop("auto_map", None) and kind not in CONFIG_MAPPING:
        raise ValueError(
            f"the file names code of its own (auto_map), which is never executed here, and transformers "
            f"{transformers.__version__} has no {kind!r} itself"
        )
    if kind not in CONFIG_MAPPING:
        raise ValueError(
            f"transformers {transformers.__version__} does not know the architecture {kind!r}: a newer one may"
        )
    if values.pop("quantization_config", None):
        notes.append("the file's quantization is left aside: weights are counted in the precision asked for")
    if text := next((name for name in _TEXTS if isinstance(values.get(name), Mapping)), None):
        parts = {name for name, value in values.items() if name.endswith("_config") and isinstance(value, Mapping)}
        left_out = tuple(sorted(parts - {text, "generation_config"}))
        # What the file leaves out has the defaults that its architecture gives to its text model.
        whole = values
        values = _configured(whole).get_text_config().to_dict()
        if "tie_word_embeddings" in whole:  # the head belongs to the whole
            values["tie_word_embeddings"] = whole["tie_word_embeddings"]
    alone = left_out and values["model_type"] in MODEL_MAPPING_NAMES
    if values["model_type"] not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not alone:
        raise ValueError(
            f"transformers has no causal language model for {values['model_type']!r}, so there is none to count"
        )
    for name in (
        "torch_dtype",
        "dtype",
        "architectures",
        "transformers_version",
        "_name_or_path",
        "attn_implementation",
    ):
        values.pop(name, None)
    return Read(values, left_out, tuple(notes))


def _refused(error: BaseException) -> str:
    said = " ".join(str(error).split()) or type(error).__name__
    return f"transformers {transformers.__version__} refuses this file: {said[:300]}"


def _configured(values: Mapping[str, Any]) -> Any:
    try:
        return CONFIG_MAPPING[values["model_type"]](**{k: v for k, v in values.items() if k != "model_type"})
    except Exception as error:
        raise ValueError(_refused(error)) from None


def configuration(values: Mapping[str, Any]) -> Any:
    """transformers' configuration of these fields, ready for a pass over whole sequences without padding."""
    config = _configured(values)
    layers = getattr(config, "num_hidden_layers", None)
    if isinstance(layers, int) and layers > MOST_LAYERS:
        raise ValueError(
            f"{layers:,} layers are more than any model has, and building them takes more memory than there is"
        )
    # A token that pads would be looked for in the ids, and may lie beyond a small vocabulary; some insist on a number.
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        with contextlib.suppress(Exception):
            setattr(config, name, None)
    return config


class _Grouped(TorchDispatchMode):
    """Grouped products of other types than bf16, for which torch runs a kernel on a CPU and has no shapes for fake tensors."""

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if operator is not torch.ops.aten._grouped_mm.default or args[0].dtype == torch.bfloat16:
            return operator(*args, **kwargs)
        half = [t.to(torch.bfloat16) if isinstance(t, Tensor) and t.is_floating_point() else t for t in args]
        return operator(*half, **kwargs).to(args[0].dtype)


@contextlib.contextmanager
def fake() -> Iterator[None]:
    """Fake tensors, and transformers asked as by somebody who runs: the only two places of it that are patched.

    It takes fake tensors for a sign that somebody exports the model, and then makes masks that nobody else has; and it
    looks into the positions for several texts packed into a row.
    """
    packed = mock.patch.object(masks, "find_packed_sequence_indices", lambda positions: None)
    tracing = mock.patch.object(masks, "is_tracing", lambda *tensors: False)
    with FakeTensorMode(allow_non_fake_inputs=True), _Grouped(), packed, tracing:
        yield


class Headed(nn.Module):
    """The text model of something with more than text, which transformers has without a head, and the head that it has there."""

    def __init__(self, model: Any, config: Any):
        super().__init__()
        self.model, self.config = model, config
        weight = model.get_input_embeddings().weight
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False, dtype=weight.dtype)
        if getattr(config, "tie_word_embeddings", False):
            self.lm_head.weight = weight
        self.gradient_checkpointing_enable = model.gradient_checkpointing_enable

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def forward(self, input_ids: Tensor, labels: Tensor | None = None, logits_to_keep: int = 0, **options: Any) -> Any:
        result = self.model(input_ids=input_ids, **options)
        logits = self.lm_head(result.last_hidden_state[:, -logits_to_keep:])
        loss = None if labels is None else ForCausalLMLoss(logits, labels, vocab_size=self.config.vocab_size)
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=result.get("past_key_values"))


def _from(config: Any, **options: Any) -> Any:
    if config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return transformers.AutoModelForCausalLM.from_config(config, **options)
    return Headed(transformers.AutoModel.from_config(config, **options), config)


def model_of(
    config: Any, *, precision: str, attention: str, checkpointing: bool = False, device: str = "cpu"
) -> tuple[Any, str]:
    """transformers' module ready to train, and the attention that it took: some architectures have no fused one."""
    with contextlib.nullcontext() if device == "cpu" else torch.device(device):
        model, attention = _model_of(config, precision, attention)
    for part in model.modules():
        # Some are made by functions that do not ask for the default device.
        for name, held in part.named_parameters(recurse=False):
            if held.device.type != device:
                part.register_parameter(name, nn.Parameter(held.detach().to(device), held.requires_grad))
        for name, held in part.named_buffers(recurse=False):
            if held.device.type != device:
                part._buffers[name] = held.to(device)
    model.train()
    if checkpointing:
        # Fake tensors have no random state on a GPU to go back to, and it is none of the bytes.
        how = {"use_reentrant": False} | ({} if device == "cpu" else {"preserve_rng_state": False})
        try:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)
        except ValueError as error:
            raise ValueError(f"gradient checkpointing: {error}") from None
    return model, attention


def _model_of(config: Any, precision: str, attention: str) -> tuple[Any, str]:
    try:
        try:
            model = _from(config, dtype=DTYPES[precision], attn_implementation=attention)
        except ValueError as error:
            if attention == "eager" or "does not support" not in str(error):
                raise
            attention = "eager"
            model = _from(config, dtype=DTYPES[precision], attn_implementation=attention)
    except (MemoryError, OverflowError) as error:
        raise ValueError(f"these sizes exceed what memory can address: {error}") from None
    except RuntimeError as error:
        if "overflow" in str(error) or "invalid size" in str(error) or "allocate" in str(error):
            raise ValueError("these sizes exceed what memory can address, even without a value in it") from None
        raise ValueError(_refused(error)) from None
    except Exception as error:
        raise ValueError(_refused(error)) from None
    return model, attention


def layers_of(model: nn.Module, config: Any) -> nn.ModuleList | None:
    """The list of the decoder's layers, None if there is none of that length."""
    count = getattr(config, "num_hidden_layers", None)
    lists = [part for part in model.modules() if isinstance(part, nn.ModuleList) and len(part) == count]
    return lists[0] if len(lists) == 1 else None


def signature(layer: nn.Module, number: int, config: Any) -> tuple[Any, ...]:
    """What tells a layer from another: classes, shapes, and every plain attribute but its number and real numbers."""
    plain: list[tuple[Any, ...]] = []
    for name, part in layer.named_modules():
        plain.append((name, type(part).__name__))
        plain += [
            (name, key, value)
            for key, value in sorted(vars(part).items())
            if isinstance(value, (bool, str, int)) and key not in _NUMBERS
        ]
    shapes = tuple((name, tuple(p.shape), p.dtype) for name, p in layer.named_parameters())
    return tuple(plain), shapes, tuple(str(value[number]) for value in _lists(config, number + 1).values())


def _lists(config: Any, least: int) -> dict[str, Sequence[Any]]:
    """The configuration's lists with an entry for each layer."""
    count = max(least, config.num_hidden_layers)
    return {n: v for n, v in vars(config).items() if isinstance(v, (list, tuple)) and len(v) == count}


@contextlib.contextmanager
def only(model: Any, config: Any, layers: nn.ModuleList, numbers: Sequence[int]) -> Iterator[list[nn.Module]]:
    """The model with these of its layers alone, numbered anew."""
    whole, lists, count = list(layers), _lists(config, 0), config.num_hidden_layers
    chosen = [whole[i] for i in numbers]
    parts = [(i, part) for i, each in enumerate(chosen) for part in each.modules()]
    own = [
        (i, part, key, vars(part)[key]) for i, part in parts for key in _NUMBERS if isinstance(vars(part).get(key), int)
    ]
    try:
        layers._modules = {str(i): each for i, each in enumerate(chosen)}
        config.num_hidden_layers = len(chosen)
        for name, values in lists.items():
            setattr(config, name, [values[i] for i in numbers])
        for i, part, key, _ in own:
            setattr(part, key, i)
        yield chosen
    finally:
        layers._modules = {str(i): each for i, each in enumerate(whole)}
        config.num_hidden_layers = count
        for name, values in lists.items():
            setattr(config, name, values)
        for _, part, key, value in own:
            setattr(part, key, value)

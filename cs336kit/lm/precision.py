"""Precision policies: how a training step differs in fp32, tf32, bf16, fp16 and fp8."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from cs336kit import _torch
from cs336kit.lm.float8 import transformer_engine, use_float8, use_transformer_engine
from cs336kit.predict import POLICIES as TYPES
from cs336kit.predict import PrecisionPolicy
from cs336kit.predict.checks import known, non_negative_int, positive_int, positive_number

_TORCH = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class LossScaler:
    """Multiply the loss by a scale before backward, divide the gradients by it before the step, and adapt the scale.

    A step whose gradients contain an infinity or NaN is skipped and halves the scale; after `growth_interval` finite steps
    in a row the scale doubles. The defaults, and the scale after every step, are those of torch.amp.GradScaler.
    The order in a step: `scale(loss).backward()`, `unscale(optimizer)`, clip, `step(optimizer)`. It serves one optimizer: a
    second one in the same step, whose gradients still have the old scale, raises RuntimeError.
    Checking whether a gradient overflowed synchronizes with the GPU once per step. Source: Micikevicius et al. 2018, section 3.2.
    """

    def __init__(
        self, *, scale: float = 65536.0, growth: float = 2.0, backoff: float = 0.5, growth_interval: int = 2000
    ):
        self.factor = float(positive_number("scale", scale))
        self.growth, self.backoff = positive_number("growth", growth), positive_number("backoff", backoff)
        self.growth_interval = positive_int("growth_interval", growth_interval)
        if not self.backoff < 1 < self.growth:
            raise ValueError(f"growth must be above 1 and backoff below 1, got {growth} and {backoff}.")
        self.clean_steps = 0
        self.finite: bool | None = None  # of the gradients unscaled in this step; None before unscale
        self.of: int | None = None  # id of the optimizer of this step; None until one is given

    def scale(self, loss: Tensor) -> Tensor:
        """Return the loss, at least in fp32, times the factor, by which every gradient becomes larger.

        A new step begins here, whether or not the last one was finished.
        """
        self.finite = self.of = None
        return loss.to(torch.promote_types(loss.dtype, torch.float32)) * self.factor

    @torch.no_grad()
    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients by the factor, in place, and record whether all are finite.

        Gradients in fp16 raise ValueError: divided, the small ones would underflow again. Keep the parameters in fp32.
        """
        self._only(optimizer)
        if self.finite is not None:
            raise RuntimeError("the gradients of this step are unscaled already: call unscale once, before clipping.")
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if any(gradient.dtype == torch.float16 for gradient in gradients):
            raise ValueError("fp16 gradients would underflow when they are unscaled: keep the parameters in fp32.")
        for gradient in gradients:
            gradient.mul_(1 / self.factor)
        self.finite = all(bool(torch.isfinite(gradient).all()) for gradient in gradients)

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Step if the gradients are finite, adapt the factor, and return whether the step was taken."""
        self._only(optimizer)
        if self.finite is None:
            self.unscale(optimizer)
        stepped, self.finite = bool(self.finite), None
        if stepped:
            optimizer.step()
            self.clean_steps += 1
            if self.clean_steps == self.growth_interval:
                grown = self.factor * self.growth
                self.factor = grown if grown <= torch.finfo(torch.float32).max else self.factor
                self.clean_steps = 0
        else:
            self.factor, self.clean_steps = self.factor * self.backoff, 0
        return stepped

    def _only(self, optimizer: torch.optim.Optimizer) -> None:
        if self.of not in (None, id(optimizer)):
            raise RuntimeError(
                "another optimizer uses this scaler in this step, and its factor may have changed since: give each a LossScaler "
                "of its own, or use one optimizer for all parameters."
            )
        self.of = id(optimizer)

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self.factor, "clean_steps": self.clean_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        scale, clean = positive_number("scale", state["scale"]), non_negative_int("clean_steps", state["clean_steps"])
        self.factor, self.clean_steps = float(scale), clean


class Policy:
    """fp32 for everything, with the methods that other precisions override.

    `types` are its dtypes, from which `predict` counts bytes. `prepare` changes the model before the optimizer is made;
    `forward` is the context for model and loss; call `backward`, `unscale` and `step` in this order, with clipping
    between the last two.
    """

    types: PrecisionPolicy = TYPES["fp32"]
    name = types.name
    matmul = "ieee"
    scaler: LossScaler | None = None

    def __init__(self, device: torch.device | str = "cpu"):
        self.device = torch.device(device)

    def prepare(self, model: nn.Module) -> nn.Module:
        kind = _TORCH[self.types.weights]
        return model if kind is torch.float32 else model.to(kind)

    def forward(self) -> AbstractContextManager[Any]:
        if not self.types.casts:
            return _torch.fp32_products(self.matmul)
        return torch.autocast(self.device.type, dtype=_TORCH[self.types.products])

    def backward(self, loss: Tensor) -> None:
        with _torch.fp32_products(self.matmul):
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Restore the true scale of the gradients; does nothing unless the loss was scaled."""
        if self.scaler is not None:
            self.scaler.unscale(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Update the parameters; return False if the step was skipped because a gradient overflowed."""
        if self.scaler is not None:
            return self.scaler.step(optimizer)
        optimizer.step()
        return True

    def state_dict(self) -> dict[str, Any]:
        return {} if self.scaler is None else self.scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state; most policies have none."""
        if self.scaler is not None:
            self.scaler.load_state_dict(state)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(device={str(self.device)!r})"


class TF32(Policy):
    """fp32 tensors, whose matmuls may round their inputs to 10 fraction bits on a GPU's tensor cores.

    Only GPUs have TF32: on a CPU the results equal fp32.
    """

    name, matmul = "tf32", "tf32"


class BF16(Policy):
    """Everything in bf16: parameters, gradients, optimizer state. Half the memory, but small updates are rounded away.

    Floating-point inputs of the model must be bf16, too.
    """

    types = TYPES["bf16"]
    name = types.name


class Autocast(Policy):
    """fp32 parameters, gradients and optimizer state; autocast runs matmuls in bf16 and sensitive operations in fp32."""

    types = TYPES["autocast"]
    name = types.name


class AutocastFP16(Policy):
    """Autocast to fp16 with fp32 masters. fp16's smallest number is 6e-8, so the loss is scaled up before backward."""

    types = TYPES["autocast-fp16"]
    name = types.name

    def __init__(self, device: torch.device | str = "cpu", *, scaler: LossScaler | None = None):
        super().__init__(device)
        self.scaler: LossScaler = LossScaler() if scaler is None else scaler


class FP8(Autocast):
    """fp8 products in the hidden linear layers, forward (E4M3) and backward (E5M2 gradients); bf16 autocast elsewhere.

    `engine="torch"` scales every tensor by its own largest magnitude and runs on CPUs and on GPUs from compute
    capability 8.9. `engine="transformer_engine"` hands the same layers to NVIDIA's library, with its delayed scaling.
    """

    name = "fp8"

    def __init__(self, device: torch.device | str = "cpu", *, engine: str = "torch"):
        super().__init__(device)
        self.engine = known("fp8 engine", engine, {"torch": "torch", "transformer_engine": "transformer_engine"})
        if engine == "transformer_engine":
            transformer_engine()  # if it is missing, fail now and not in the middle of a run

    def prepare(self, model: nn.Module) -> nn.Module:
        if self.device.type == "cuda" and torch.cuda.get_device_capability(self.device) < (8, 9):
            name = torch.cuda.get_device_name(self.device)
            raise RuntimeError(f"{name} has no fp8 units, which came with compute capability 8.9: use autocast.")
        return use_float8(model) if self.engine == "torch" else use_transformer_engine(model)

    @contextmanager
    def forward(self) -> Iterator[None]:
        inner: AbstractContextManager[Any] = nullcontext()
        if self.engine == "transformer_engine":
            engine = transformer_engine()
            make = engine.autocast if hasattr(engine, "autocast") else engine.fp8_autocast  # the name before 2.8
            inner = make(enabled=True)
        with super().forward(), inner:
            yield


#: Name → class of the policy.
POLICIES: dict[str, type[Policy]] = {
    policy.name: policy for policy in (Policy, TF32, BF16, Autocast, AutocastFP16, FP8)
}


def precision(name: str, *, device: torch.device | str = "cpu", **options: Any) -> Policy:
    """Return the policy of this name: fp32, tf32, bf16, autocast, autocast-fp16 or fp8; another name raises ValueError.

    A name that `predict.POLICIES` also has means the same there. `options` are passed to the policy: `scaler=` for autocast-fp16,
    `engine=` for fp8.
    """
    return known("precision policy", name, POLICIES)(device, **options)

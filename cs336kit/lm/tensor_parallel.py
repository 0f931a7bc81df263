"""Tensor parallelism: matrices divided over ranks, the collectives around them, and the vocabulary's table and loss.

Source: Shoeybi et al. 2019, section 3 (columns, then rows, and one sum behind); Korthikanti et al. 2022, section 4 (with the
positions divided in between, the sum is a reduce-scatter, and its partner an all-gather).
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from cs336kit.lm.layers import Linear
from cs336kit.lm.models import DecoderOnly
from cs336kit.predict import TransformerConfig
from cs336kit.predict.layouts import local_config


@dataclass(frozen=True)
class Ranks:
    """The ranks that divide every layer: their group, their number, which of them this is, and whether they also divide
    the positions between the layers (sp)."""

    group: Any
    count: int
    rank: int
    sp: bool

    def gathered(self, x: Tensor) -> Tensor:
        """(B, S/n, D) of each rank → (B, S, D) on all."""
        every = x.new_empty(self.count * x.shape[0], *x.shape[1:])
        dist.all_gather_into_tensor(every, x.contiguous(), group=self.group)
        return torch.cat(every.chunk(self.count), dim=1)

    def scattered(self, x: Tensor) -> Tensor:
        """(B, S, D) on all → (B, S/n, D): the sum over the ranks, at the positions of this rank."""
        parts = torch.cat(x.chunk(self.count, dim=1))
        mine = x.new_empty(x.shape[0], x.shape[1] // self.count, x.shape[2])
        dist.reduce_scatter_tensor(mine, parts, group=self.group)
        return mine

    def summed(self, x: Tensor) -> Tensor:
        """The sum over the ranks, in place."""
        dist.all_reduce(x, group=self.group)
        return x


class Enter(torch.autograd.Function):
    """Before column-parallel matrices. Forward: every rank uses the whole input; backward: sum the gradients of the ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return ranks.gathered(x) if ranks.sp else x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        return (ctx.ranks.scattered(gradient) if ctx.ranks.sp else ctx.ranks.summed(gradient.clone())), None


class Leave(torch.autograd.Function):
    """After row-parallel matrices. Forward: sum the results of the ranks; backward: every rank uses the whole gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return ranks.scattered(x) if ranks.sp else ranks.summed(x.clone())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        return (ctx.ranks.gathered(gradient) if ctx.ranks.sp else gradient), None


class RowLinear(nn.Module):
    """A row-parallel linear layer, whose inputs are divided: sums over the ranks, then adds the bias once."""

    def __init__(self, linear: Linear, ranks: Ranks):
        super().__init__()
        self.weight, self.bias, self.ranks = linear.weight, linear.bias, ranks

    def forward(self, x: Tensor) -> Tensor:
        y = Leave.apply(F.linear(x, self.weight), self.ranks)
        return y if self.bias is None else y.add_(self.bias)


class _Lookup(torch.autograd.Function):
    """Look up rows in the part of a table that starts at token `first`; other tokens give zeros and no gradient."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, tokens: Tensor, first: int) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.rows, ctx.first = len(table), first
        own = _own(tokens, first, len(table))
        return F.embedding(own.clamp(min=0), table).masked_fill_((own < 0)[..., None], 0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (tokens,) = ctx.saved_tensors
        own = _own(tokens, ctx.first, ctx.rows)
        return torch.ops.aten.embedding_dense_backward(gradients[0], own, ctx.rows, -1, False), None, None


def _own(tokens: Tensor, first: int, count: int) -> Tensor:
    """Indices of the tokens in this rank's part of the vocabulary; −1 for tokens of other parts."""
    own = tokens - first
    return own.masked_fill_((own < 0) | (own >= count), -1)


class VocabularyEmbedding(nn.Module):
    """An embedding table whose rows are divided over the ranks."""

    def __init__(self, weight: nn.Parameter, ranks: Ranks):
        super().__init__()
        self.weight, self.ranks = weight, ranks

    def forward(self, tokens: Tensor) -> Tensor:
        return Leave.apply(_Lookup.apply(self.weight, tokens, self.ranks.rank * len(self.weight)), self.ranks)


class VocabularyLoss(torch.autograd.Function):
    """Cross-entropy of logits whose columns are divided over ranks, (N, V/n) each: three all-reduces of a number per token."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, ranks: Ranks, vocab: int) -> Tensor:
        columns = logits.shape[1]
        ctx.first = ranks.rank * columns
        real = max(0, min(columns, vocab - ctx.first))  # the rest is padding
        greatest = logits[:, :real].amax(-1) if real else logits.new_full((len(logits),), -torch.inf)
        dist.all_reduce(greatest, op=dist.ReduceOp.MAX, group=ranks.group)
        logs = logits - greatest[:, None]
        del greatest
        if real < columns:
            logs[:, real:] = -torch.inf
        logs -= ranks.summed(logs.exp().sum(-1)).log_()[:, None]
        own = _own(targets, ctx.first, columns)
        found = logs.gather(1, own.clamp(min=0)[:, None]).squeeze(1).masked_fill_(own < 0, 0)
        count = logs.new_full((), float(len(targets)))
        ctx.save_for_backward(logs, targets, count)
        return -ranks.summed(found).sum() / count

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        logs, targets, count = ctx.saved_tensors
        gradient, own = logs.exp(), _own(targets, ctx.first, logs.shape[1])
        gradient.scatter_add_(1, own.clamp(min=0)[:, None], -(own >= 0).to(gradient.dtype)[:, None])
        return gradient.mul_(gradients[0] / count), None, None, None


#: How the names of divided parameters end: by rows (axis 0) or columns (axis 1). Every rank has all others in full.
PROJECTIONS = ("query", "key", "value", "gate", "up")
ROWS = ("embedding.weight", *(f"{name}.{part}" for name in ("head", *PROJECTIONS) for part in ("weight", "bias")))
COLUMNS = ("attention.output.weight", "mlp.down.weight")


def cut_of(name: str) -> int | None:
    """The axis along which the ranks of tp divide a parameter; None if each has it in full."""
    return 0 if name.endswith(ROWS) else 1 if name.endswith(COLUMNS) else None


def check_divisible(config: TransformerConfig, tp: int) -> None:
    """Raise ValueError for models that predict covers under tp and this module does not run."""
    if tp > config.kv_heads:
        raise ValueError(
            f"tp={tp} is more than the {config.kv_heads} key/value heads, which predict supports, but lm does not. "
            f"Give tp={config.kv_heads} or a divisor of it."
        )
    for what, there in (
        ("experts", config.experts), ("norms of queries and keys", config.qk_norm != "none"),
        ("norms inside attention or MLP", config.inner_norms),
    ):  # fmt: skip
        if there:
            raise ValueError(f"tp={tp} of a model with {what} is supported by predict, but not by lm: leave tp out.")


def divide(model: DecoderOnly, ranks: Ranks) -> DecoderOnly:
    """This rank's part of a decoder: its heads, its part of every MLP, its rows of the tables, and the collectives between."""
    config, table = local_config(model.config, ranks.count), model.embedding.weight
    part = DecoderOnly(
        config, checkpointing=model.checkpointing, device=table.device, dtype=table.dtype, **model.options
    )
    wholes = dict(model.named_parameters())
    with torch.no_grad():
        for name, own in part.named_parameters():
            whole, cut = wholes[name], cut_of(name)
            own.requires_grad_(whole.requires_grad)
            if cut is not None:
                size = own.shape[cut]
                left = max(0, min(size, whole.shape[cut] - ranks.rank * size))
                own.zero_()
                own = own.narrow(cut, 0, left)
                whole = whole.narrow(cut, min(ranks.rank * size, whole.shape[cut] - left), left)
            own.copy_(whole)

    def enter(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return Enter.apply(inputs[0], ranks), *inputs[1:]

    for block in part.blocks:
        block.attention.output = RowLinear(block.attention.output, ranks)
        block.mlp.down = RowLinear(block.mlp.down, ranks)
        for module in (block.attention, block.mlp):
            module.register_forward_pre_hook(enter)
    part.embedding = VocabularyEmbedding(part.embedding.weight, ranks)
    part.head.register_forward_pre_hook(enter)
    return part

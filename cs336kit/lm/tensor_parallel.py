"""Matrices divided over ranks: what stands before and behind them, and the vocabulary's table and loss.

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
    """The ranks that divide every layer: their group, how many they are, which of them this is, and whether they divide
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
        """(B, S, D) on all → (B, S/n, D), the sum over the ranks at the positions of this one."""
        parts = torch.cat(x.chunk(self.count, dim=1))
        mine = x.new_empty(x.shape[0], x.shape[1] // self.count, x.shape[2])
        dist.reduce_scatter_tensor(mine, parts, group=self.group)
        return mine

    def summed(self, x: Tensor) -> Tensor:
        """The sum over the ranks, in place of x."""
        dist.all_reduce(x, group=self.group)
        return x


class Enter(torch.autograd.Function):
    """Before matrices divided by columns. Forward: every rank takes the whole; backward: the ranks' gradients add up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return ranks.gathered(x) if ranks.sp else x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        return (ctx.ranks.scattered(gradient) if ctx.ranks.sp else ctx.ranks.summed(gradient.clone())), None


class Leave(torch.autograd.Function):
    """Behind matrices divided by rows. Forward: the ranks' results add up; backward: every rank takes the whole."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return ranks.scattered(x) if ranks.sp else ranks.summed(x.clone())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        return (ctx.ranks.gathered(gradient) if ctx.ranks.sp else gradient), None


class RowLinear(nn.Module):
    """A linear layer whose inputs are divided: the sum over the ranks, and then, once, the bias."""

    def __init__(self, linear: Linear, ranks: Ranks):
        super().__init__()
        self.weight, self.bias, self.ranks = linear.weight, linear.bias, ranks

    def forward(self, x: Tensor) -> Tensor:
        y = Leave.apply(F.linear(x, self.weight), self.ranks)
        return y if self.bias is None else y.add_(self.bias)


class _Lookup(torch.autograd.Function):
    """Rows of a part of the table; tokens of other parts, which are −1, give zeros and no gradient."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, tokens: Tensor) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.rows = len(table)
        return F.embedding(tokens.clamp(min=0), table).masked_fill_((tokens < 0)[..., None], 0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (tokens,) = ctx.saved_tensors
        return torch.ops.aten.embedding_dense_backward(gradients[0], tokens, ctx.rows, -1, False), None


class VocabularyEmbedding(nn.Module):
    """A table of which each rank holds some rows."""

    def __init__(self, weight: nn.Parameter, ranks: Ranks):
        super().__init__()
        self.weight, self.ranks = weight, ranks

    def forward(self, tokens: Tensor) -> Tensor:
        rows = len(self.weight)
        own = tokens - self.ranks.rank * rows
        rows_of = _Lookup.apply(self.weight, own.masked_fill((own < 0) | (own >= rows), -1))
        return Leave.apply(rows_of, self.ranks)


class VocabularyLoss(torch.autograd.Function):
    """Cross-entropy of logits (N, V/n) of which each rank has some columns: three sums of a number for each token."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, ranks: Ranks, vocab: int) -> Tensor:
        first, columns = ranks.rank * logits.shape[1], logits.shape[1]
        greatest = (
            logits[:, : max(0, min(columns, vocab - first))].amax(-1) if first < vocab else logits[:, 0] * -torch.inf
        )
        dist.all_reduce(greatest, op=dist.ReduceOp.MAX, group=ranks.group)
        logs = logits - greatest[:, None]
        logs[:, max(0, vocab - first) :] = -torch.inf  # what pads the vocabulary
        logs -= ranks.summed(logs.exp().sum(-1)).log()[:, None]
        own = targets - first
        mine = (own >= 0) & (own < columns)
        own = own.masked_fill(~mine, 0)
        found = ranks.summed(logs.gather(1, own[:, None]).squeeze(1).masked_fill(~mine, 0))
        count = torch.full((), float(len(targets)), device=logits.device)
        ctx.save_for_backward(logs, own.masked_fill_(~mine, -1), count)
        return -found.sum() / count

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        logs, own, count = ctx.saved_tensors
        gradient = logs.exp()
        gradient.scatter_add_(1, own.clamp(min=0)[:, None], -(own >= 0).to(gradient.dtype)[:, None])
        return gradient.mul_(gradients[0] / count), None, None, None


#: Ends of the names of parameters → along which axis the ranks divide them; all others they have whole.
PROJECTIONS = ("query", "key", "value", "gate", "up")
ROWS = ("embedding.weight", *(f"{name}.{part}" for name in ("head", *PROJECTIONS) for part in ("weight", "bias")))
COLUMNS = ("attention.output.weight", "mlp.down.weight")


def cut_of(name: str) -> int | None:
    """Along which axis the ranks of tp divide a parameter; None: each has it whole."""
    return 0 if name.endswith(ROWS) else 1 if name.endswith(COLUMNS) else None


def check_divisible(config: TransformerConfig, tp: int) -> None:
    """Raise ValueError for what predict counts under tp and this module does not run."""
    if tp > config.kv_heads:
        raise ValueError(
            f"tp={tp} is more than the {config.kv_heads} key/value heads: predict counts that, and lm does not run it. "
            f"Give tp={config.kv_heads} or a divisor of it."
        )
    for what, there in (
        ("experts", config.experts), ("norms of queries and keys", config.qk_norm != "none"),
        ("norms inside of attention or MLP", config.inner_norms),
    ):  # fmt: skip
        if there:
            raise ValueError(
                f"tp={tp} of a model with {what} is counted by predict, and lm does not run it: leave tp out."
            )


def divide(model: DecoderOnly, ranks: Ranks, **options: Any) -> DecoderOnly:
    """This rank's part of a decoder: its heads, its part of every MLP, its rows of the tables, with what is said between."""
    config = local_config(model.config, ranks.count)
    part = DecoderOnly(config, **options)
    wholes = dict(model.named_parameters())
    with torch.no_grad():
        for name, own in part.named_parameters():
            whole, cut = wholes[name], cut_of(name)
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

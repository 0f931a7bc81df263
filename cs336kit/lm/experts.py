"""Expert parallelism: tokens are sent to the ranks of their experts and back (Lepikhin et al. 2020, section 3)."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cs336kit.lm.mlp import MixtureOfExperts


class Exchange(torch.autograd.Function):
    """All-to-all: send rows to the other ranks and receive theirs; in backward, the gradients take the reverse way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, given: list[int], taken: list[int], group: Any) -> Tensor:
        ctx.given, ctx.taken, ctx.group = given, taken, group
        y = x.new_empty(sum(taken), *x.shape[1:])
        dist.all_to_all_single(y, x.contiguous(), taken, given, group=group)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = gradients
        return Exchange.apply(gradient, ctx.taken, ctx.given, ctx.group), None, None, None


class DividedExperts(nn.Module):
    """The experts of this rank, and the router over all of them: every token is sent to the ranks that have its experts."""

    def __init__(self, mixture: MixtureOfExperts, group: Any, ranks: int, rank: int):
        super().__init__()
        self.router, self.experts_per_token = mixture.router, mixture.experts_per_token
        self.each = len(mixture.experts) // ranks
        self.group, self.ranks, self.first = group, ranks, rank * self.each
        mine = range(self.first, self.first + self.each)
        self.experts = nn.ModuleDict({str(number): mixture.experts[number] for number in mine})

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        scores, chosen = self.router(tokens).topk(self.experts_per_token, dim=-1)
        weights = torch.softmax(scores.to(torch.promote_types(scores.dtype, torch.float32)), dim=-1).to(x.dtype)
        # Sort rows by expert, so that those for one rank are contiguous.
        order = chosen.flatten().argsort(stable=True)
        experts = chosen.flatten()[order]
        visits = order // self.experts_per_token
        given = torch.bincount(experts, minlength=self.each * self.ranks)
        taken = torch.empty_like(given)
        dist.all_to_all_single(taken, given, group=self.group)
        # Rows arrive rank by rank, and from each rank in the order of the experts.
        arrived = torch.arange(self.each, device=x.device).repeat(self.ranks).repeat_interleave(taken) + self.first
        sizes = [each.view(self.ranks, -1).sum(-1).tolist() for each in (given, taken)]
        rows = Exchange.apply(tokens[visits], *sizes, self.group)
        done = torch.zeros_like(rows)
        for number, expert in self.experts.items():
            (place,) = (arrived == int(number)).nonzero(as_tuple=True)
            done = done.index_put((place,), expert(rows[place]))
        back = Exchange.apply(done, sizes[1], sizes[0], self.group)
        z = torch.zeros_like(tokens).index_add(0, visits, back * weights.flatten()[order, None])
        return z.view_as(x)

"""The decoder under a layout: each rank's part of the model and of the batch, and the communication between ranks."""

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from cs336kit import _torch
from cs336kit.lm.experts import DividedExperts
from cs336kit.lm.mlp import MixtureOfExperts
from cs336kit.lm.models import DecoderOnly, check_positions
from cs336kit.lm.stages import Stage, schedule_of, tie
from cs336kit.lm.tensor_parallel import Ranks, VocabularyLoss, check_divisible, cut_of, divide
from cs336kit.lm.zero import ShardedOptimizer
from cs336kit.predict import Layout
from cs336kit.predict.checks import boolean, positive_number
from cs336kit.predict.layouts import as_layout, check_layout

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
#: The axes of a layout from the outermost to the innermost, as `Layout` orders its ranks.
AXES = ("pp", "dp", "shards", "ep", "tp")


def parallelize(model: DecoderOnly, layout: Layout | str) -> "Parallel":
    """This rank's part of a decoder under a layout; every rank of the process group calls it, with the same configuration.

    The weights are those of the first rank, which sends them to the others: replicas that start differently would stay so.
    dp averages the gradients, zero1 and zero2 shard the optimizer's state (and the gradients) by rows, fsdp is torch's
    fully_shard, tp and sp divide heads, MLP and vocabulary, pp the blocks (torch's pipelining), ep the experts.
    Losses and gradients equal those of the undivided model on the whole batch, up to rounding.
    Errors: ValueError for a layout that does not divide the model, that does not match this process group, or that
    predict covers and lm does not (cp; tp of experts; 1F1B with fewer micro-batches than stages).
    """
    if not isinstance(model, DecoderOnly):
        raise ValueError(f"only a DecoderOnly can be parallelized, got {type(model).__name__}.")
    return Parallel(model, as_layout(layout))


def check_runnable(model: DecoderOnly, layout: Layout, ranks: int) -> None:
    """Raise ValueError, with what would fit, unless this many ranks can run this model under this layout."""
    check_layout(model.config, layout)
    if layout.count != ranks:
        raise ValueError(
            f"{layout} is a layout of {layout.count} ranks, and {ranks} run: start {layout.count} (torchrun "
            f"--nproc-per-node {layout.count}), or give another layout."
        )
    if layout.cp > 1:
        raise ValueError(f"cp={layout.cp} is supported by predict, but not by lm: leave cp out.")
    if layout.tp > 1:
        check_divisible(model.config, layout.tp)
    if layout.schedule == "1f1b" and layout.microbatches < layout.pp:
        raise ValueError(
            f"1F1B with fewer micro-batches ({layout.microbatches}) than stages ({layout.pp}) is supported by predict, but not "
            f"by torch: give microbatches={layout.pp} or more, or schedule=gpipe."
        )
    if layout.ep > 1 and (layout.zero_stage or layout.pp > 1):
        raise ValueError("ep with zero1, zero2, fsdp or pp is supported by predict, but lm runs it only with dp.")
    if layout.tp > 1 and model.config.dropout:
        raise ValueError("ranks of tp would need the same dropout on shared activations: give a model without it.")


class Parallel(nn.Module):
    """What `parallelize` returns: `module` is this rank's part of the model.

    To save and load it, every rank gives `save_checkpoint` a path of its own, its `module` and its optimizer (with zero1 and
    zero2 the `inner` one). With fsdp, `gathered` returns the tensors to save.
    """

    def __init__(self, model: DecoderOnly, layout: Layout):
        super().__init__()
        started = dist.is_available() and dist.is_initialized()
        check_runnable(model, layout, dist.get_world_size() if started else 1)
        for tensor in model.state_dict().values() if started else ():
            dist.broadcast(tensor, 0)
        self.layout, self.config = layout, model.config
        self.where = next(model.parameters()).device
        sizes = {axis: getattr(layout, axis) for axis in AXES}
        rank = dist.get_rank() if started else 0
        places = torch.unravel_index(torch.tensor(rank), tuple(sizes.values()))
        #: this rank's place on each axis
        self.at = {axis: int(place) for axis, place in zip(AXES, places, strict=True)}
        self.sizes = sizes
        self.groups: dict[tuple[str, ...], Any] = {}
        self.tensor = Ranks(self.group("tp"), layout.tp, self.at["tp"], layout.sp)
        self.shards: ShardedOptimizer | None = None
        if layout.tp > 1:
            model = divide(model, self.tensor)
        if layout.ep > 1:
            # Looked up by name: with a shared expert, the mixture is inside the block's MLP.
            for name, module in list(model.named_modules()):
                if isinstance(module, MixtureOfExperts):
                    model.set_submodule(name, DividedExperts(module, self.group("ep"), layout.ep, self.at["ep"]))
        self.module = Stage(model, layout, self.at["pp"], self.tensor)
        if layout.zero_stage == 3:
            self._shard()
        self.tied = tie(self.module, self.config, layout, self._ends)
        self.schedule = (
            schedule_of(self.module, layout, self.group("pp"), self._loss, self.where) if layout.pp > 1 else None
        )

    # -- process groups ---------------------------------------------------------------------------------------------------

    def group(self, *axes: str) -> Any:
        """The group of ranks that differ from this one only on these axes; None if it is alone."""
        if axes not in self.groups:
            self.groups[axes] = None
            ranks = torch.arange(self.layout.count).view(*self.sizes.values())
            inside = [AXES.index(axis) for axis in axes]
            outside = [i for i in range(len(AXES)) if i not in inside]
            rows = ranks.permute(*outside, *inside).reshape(-1, prod(self.sizes[axis] for axis in axes))
            for row in rows.tolist() if rows.shape[1] > 1 else ():
                made = dist.new_group(row)
                if dist.get_rank() in row:
                    self.groups[axes] = made
        return self.groups[axes]

    def _ends(self) -> Any:
        """The group of the first and the last stage of this rank's pipeline."""
        ranks = torch.arange(self.layout.count).view(*self.sizes.values())
        mine = None
        for first, last in zip(ranks[0].flatten().tolist(), ranks[-1].flatten().tolist(), strict=True):
            made = dist.new_group([first, last])
            if dist.get_rank() in (first, last):
                mine = made
        return mine

    def _shard(self) -> None:
        """torch's fully_shard: first each block, then what is outside the blocks."""
        kind = self.where.type
        if self.layout.dp > 1:
            ranks = torch.arange(self.layout.count).view(*self.sizes.values())
            mine = ranks[self.at["pp"], :, :, self.at["ep"], self.at["tp"]]
            groups = [self.group("dp"), self.group("shards")]
            mesh = DeviceMesh.from_group(groups, kind, mesh=mine, mesh_dim_names=("dp", "shards"))
        else:
            mesh = DeviceMesh.from_group(self.group("shards"), kind)
        for block in self.module.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self.module, mesh=mesh)
        # Torch would prefetch in the order of the forward passes, of which a pipeline runs several before a backward.
        order: list[Any] = [self.module, *self.module.blocks]
        for i, module in enumerate(order):
            module.set_modules_to_backward_prefetch([order[i - 1]])

    # -- a step ----------------------------------------------------------------------------------------------------------

    def mine(self, batch: Tensor) -> Tensor:
        """This rank's sequences of the whole batch."""
        data = ("dp", "shards", "ep")
        count, place = self.layout.data_ranks, 0
        for axis in data:
            place = place * self.sizes[axis] + self.at[axis]
        if len(batch) % (count * self.layout.microbatches):
            raise ValueError(
                f"a batch of {len(batch)} sequences does not divide over {count} data ranks and {self.layout.microbatches} "
                f"micro-batches of {self.layout}: give a multiple of {count * self.layout.microbatches}."
            )
        return batch.chunk(count)[place]

    def _check_length(self, sequence: int) -> None:
        """Raise ValueError for more positions than the context has, or a number that the ranks of sp cannot divide."""
        check_positions(self.config, sequence)
        check_layout(self.config, self.layout, sequence=sequence)

    def forward(self, tokens: Tensor) -> Tensor:
        self._check_length(tokens.shape[1])
        return self.module(tokens)

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        logits = logits.flatten(0, 1).float()  # replaces narrower logits, which are no longer needed
        if self.layout.tp == 1:
            return nn.functional.cross_entropy(logits, targets.flatten())
        return VocabularyLoss.apply(logits, targets.flatten(), self.tensor, self.config.vocab)

    def backward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of the whole batch (the same on every rank) and compute this rank's gradients; takes no step.

        Raises ValueError if there are gradients already: they have been reduced, and would be reduced a second time.
        """
        self._check_length(tokens.shape[1])
        x, y = self.mine(tokens), self.mine(targets)
        if self._own_gradients() or (self.shards is not None and self.shards.gradients()):
            raise ValueError(
                "the gradients of the last step are still there: call optimizer.zero_grad() first; for more sequences per step, "
                "give a larger batch or microbatches."
            )
        loss: Tensor | None
        microbatches = self.layout.microbatches
        if self.schedule is not None:
            losses: list[Tensor] = []
            first, last = self.module.first, self.module.last
            # The strides of a slice, such as ids[:, :-1], are not those that torch 2.11 expects for the input of a stage.
            x = x.contiguous()
            last_has = {"target": y, "losses": losses} if last else {}
            self.schedule.step(*((x,) if first else ()), **last_has, return_outputs=False)
            loss = torch.stack(losses).mean().detach() if last else torch.zeros((), device=self.where)
        else:
            loss = None
            for i, (part, wanted) in enumerate(zip(x.chunk(microbatches), y.chunk(microbatches), strict=True)):
                if isinstance(self.module, FSDPModule):  # all-reduce over replicas only once per step
                    self.module.set_requires_all_reduce(i == microbatches - 1)
                value = self._loss(self.module(part), wanted)
                value.backward(torch.full_like(value, 1 / microbatches))
                loss = value.detach() if loss is None else loss.add_(value.detach())
                del value  # free it before the next micro-batch
            assert loss is not None
            loss /= microbatches
        self._add_up()
        return self._mean(loss)

    def _mean(self, loss: Tensor) -> Tensor:
        """The mean of the loss over the data ranks; in a pipeline only the last stage has a loss."""
        if self.layout.count > 1:
            dist.all_reduce(loss)
            loss /= self.layout.data_ranks * self.layout.tp
        return loss

    def _gradient(self, parameter: nn.Parameter) -> Tensor | None:
        """Where this rank accumulates the gradient of a parameter: all of it, or with zero2 its own rows."""
        if self.shards is not None and self.layout.zero_stage == 2:
            return self.shards.own[parameter].grad
        return None if parameter.grad is None else _torch.local(parameter.grad)

    def _add_up(self) -> None:
        """Reduce the gradients, once per step."""
        said = [] if self.tied is None else [(self.tied, self.module.ends)]
        # Parameters that every rank of tp has in full: with sp it has seen only its positions, and for latents only its heads.
        if self.layout.tp > 1:
            for name, parameter in self.module.named_parameters():
                if cut_of(name) is None and (self.layout.sp or "latent" in name):
                    said.append((parameter, self.group("tp")))
        for parameter, group in said:
            gradient = self._gradient(parameter)
            if gradient is not None:  # a frozen parameter has none, on any rank
                dist.all_reduce(gradient, group=group)
        if self.shards is not None:
            self.shards.add_up()
        elif self.layout.zero_stage != 3:
            self._average()

    def _average(self) -> None:
        """Data parallelism: every replica gets the mean of the gradients."""
        for name, parameter in self.module.named_parameters():
            if parameter.grad is None:
                continue
            expert = self.layout.ep > 1 and ".experts." in name
            group = self.group("dp", "shards") if expert else self.group("dp", "shards", "ep")
            if group is not None:
                dist.all_reduce(parameter.grad, group=group)
            parameter.grad /= self.layout.data_ranks

    def optimizer(self, make: MakeOptimizer) -> torch.optim.Optimizer | ShardedOptimizer:
        """An optimizer for this rank's part, made by `make(parameters)`; with zero1 and zero2, for this rank's rows only."""
        if self.layout.zero_stage not in (1, 2):
            return make(self.module.parameters())
        if self.shards is not None:
            self.shards.let_go()
        both = self.schedule is not None and self.layout.zero_stage == 2
        self.shards = ShardedOptimizer(
            self.module, make, group=self.group("shards", "ep"), count=self.layout.shards * self.layout.ep,
            rank=self.at["shards"] * self.layout.ep + self.at["ep"], replicas=self.group("dp"),
            stage=self.layout.zero_stage,
            # torch's pipeline divides parameter.grad by the number of micro-batches, but with zero2 it is None by then.
            mean_over=self.layout.data_ranks * (self.layout.microbatches if both else 1),
        )  # fmt: skip
        return self.shards

    # -- all ranks together ----------------------------------------------------------------------------------------------

    def clip(self, *, max_norm: float) -> Tensor:
        """Scale the gradients so that their norm over all ranks is at most `max_norm`; return the norm."""
        positive_number("max_norm", max_norm)
        own = self.shards.gradients() if self.shards is not None else self._own_gradients()
        total = torch.zeros((), device=self.where)
        for name, gradient in own:
            parts = self.sizes["tp"] if cut_of(name) is not None else 1
            parts *= self.layout.shards
            parts *= self.layout.ep if ".experts." in name else 1
            copies = self.layout.count // self.layout.pp // parts
            # The first and the last stage both hold a tied table.
            if self.tied is not None and name in ("embedding.weight", "head.weight"):
                copies *= 2
            total += gradient.float().square().sum() / copies
        if self.layout.count > 1:
            dist.all_reduce(total)
        norm = total.sqrt()
        for _, gradient in own:
            gradient.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def _own_gradients(self) -> list[tuple[str, Tensor]]:
        named = self.module.named_parameters()
        return [(name, _torch.local(parameter.grad)) for name, parameter in named if parameter.grad is not None]

    @torch.no_grad()
    def gathered(self, *, gradients: bool = False) -> dict[str, Tensor]:
        """Gather parameters (or gradients) of the undivided model, by name, on every rank: for small models."""
        boolean("gradients", gradients)
        own: dict[str, Any] = {}
        for name, parameter in self.module.named_parameters():
            value: Any = parameter.grad if gradients else parameter
            if gradients and self.shards is not None:
                value = self.shards.whole_gradient(parameter)
            if value is not None:
                value = value.full_tensor() if hasattr(value, "full_tensor") else value
                own[self.module.name_of(name)] = (cut_of(name), self.at["tp"], value.detach().cpu())
        every: list[Any] = [own]
        if self.layout.count > 1:
            every = [None] * self.layout.count
            dist.all_gather_object(every, _packed(own))
            every = [_unpacked(each) for each in every]
        names = {name for each in every for name in each}
        return {name: self._joined(name, [each[name] for each in every if name in each]) for name in sorted(names)}

    def _joined(self, name: str, parts: list[Any]) -> Tensor:
        cut = parts[0][0]
        if cut is None or self.layout.tp == 1:
            return parts[0][2]
        of_rank = {place: tensor for _, place, tensor in parts}
        whole = torch.cat([of_rank[place] for place in sorted(of_rank)], dim=cut)
        padded = name in ("embedding.weight", "head.weight", "head.bias")
        return whole[: self.config.vocab] if padded else whole


def _packed(own: dict[str, Any]) -> dict[str, Any]:
    """Tensors as arrays, which pickle in a tenth of the time; they hold bytes, because NumPy has no bfloat16."""
    return {name: (*at, of.dtype, of.contiguous().view(torch.uint8).numpy()) for name, (*at, of) in own.items()}


def _unpacked(packed: dict[str, Any]) -> dict[str, Any]:
    return {name: (*at, torch.from_numpy(array).view(dtype)) for name, (*at, dtype, array) in packed.items()}

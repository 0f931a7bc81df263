"""A pipeline stage: some blocks of the decoder, with the embedding in the first stage and the head in the last."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.utils.checkpoint import checkpoint

from cs336kit.lm.models import DecoderOnly, embedded, logits_of
from cs336kit.lm.tensor_parallel import Ranks
from cs336kit.predict import Layout, TransformerConfig
from cs336kit.predict.decoder.layers import stage_blocks


class Stage(nn.Module):
    """One of `layout.pp` parts of a decoder's blocks; the first also has the embeddings, the last the final norm and head.

    Parameters have the same names as in the decoder, except for the numbers of the blocks, which `name_of` restores.
    """

    def __init__(self, model: DecoderOnly, layout: Layout, stage: int, ranks: Ranks):
        super().__init__()
        self.config, self.checkpointing, self.ranks = model.config, model.checkpointing, ranks
        self.first, self.last = stage == 0, stage == layout.pp - 1
        own = stage_blocks(len(model.blocks), layout.pp, stage)
        self.index, self.offset = stage, own.start
        self.ends: Any = None
        if self.first:
            self.embedding, self.positions, self.embedding_norm = model.embedding, model.positions, model.embedding_norm
        self.blocks = nn.ModuleList(model.blocks[own.start : own.stop])
        if self.last:
            self.final_norm, self.head = model.final_norm, model.head
        if model.config.positions == "rope":
            self.register_buffer("cosine", model.cosine, persistent=False)
            self.register_buffer("sine", model.sine, persistent=False)

    def name_of(self, name: str) -> str:
        """The name in the whole decoder of a parameter of this stage."""
        head, _, rest = name.partition(".")
        if head != "blocks":
            return name
        number, _, rest = rest.partition(".")
        return f"blocks.{int(number) + self.offset}.{rest}"

    def forward(self, x: Tensor) -> Tensor:
        """Token ids (first stage) or the output of the previous stage → the input of the next one, or logits (last stage)."""
        parts = self.ranks.count if self.ranks.sp else 1
        if self.first:
            # After the embedding, a rank of sp has only its part of the positions.
            x = embedded(self, x, start=self.ranks.rank * x.shape[1] // parts if self.ranks.sp else 0)
        length = x.shape[1] * parts
        angles = (self.cosine[:length], self.sine[:length]) if self.config.positions == "rope" else None
        for block in self.blocks:
            if self.checkpointing and torch.is_grad_enabled():
                x = checkpoint(block, x, angles, use_reentrant=False)
            else:
                x = block(x, angles)
        return logits_of(self, x) if self.last else x


def tie(stage: Stage, config: TransformerConfig, layout: Layout, ends: Callable[[], Any]) -> nn.Parameter | None:
    """This stage's copy of a tied table, which the first and the last of several stages both hold; else None."""
    if layout.pp == 1 or not config.tied_head:
        return None
    stage.ends = ends()
    if stage.last:
        table = stage.head.weight
        stage.head.weight = nn.Parameter(table.detach().clone(), requires_grad=table.requires_grad)
        return stage.head.weight
    return stage.embedding.weight if stage.first else None


class _Piped(PipelineStage):
    """A stage whose fully_shard reshards parameters and reduces gradients in every micro-batch, as `predict` counts it.

    If torch sees fully_shard's own class, it keeps both unsharded until the last micro-batch, so that class is wrapped here.
    """

    def __init__(self, stage: Stage, *rest: Any, **options: Any):
        super().__init__(nn.Sequential(stage), *rest, **options)
        self.stage = stage

    def backward_maybe_with_nosync(
        self, backward_type: str, bwd_kwargs: dict[str, Any], last_backward: bool = False
    ) -> Any:
        if isinstance(self.stage, FSDPModule):  # all-reduce over replicas only once per step
            self.stage.set_requires_all_reduce(last_backward)
        return super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)


def schedule_of(
    stage: Stage, layout: Layout, group: Any, loss: Callable[[Tensor, Tensor], Tensor], device: torch.device
) -> Any:
    """torch's schedule for this layout and stage; gradients are means over the micro-batches."""

    def last(logits: Tensor, targets: Tensor) -> Tensor:
        value = loss(logits, targets)
        # Torch holds the logits until the backward pass, which does not read them, has ended: free them, as Megatron does.
        logits.data = logits.new_empty(0)
        return value

    kind = ScheduleGPipe if layout.schedule == "gpipe" else Schedule1F1B
    return kind(_Piped(stage, stage.index, layout.pp, device, group=group), layout.microbatches, loss_fn=last)

"""The bubble of a pipeline, measured on real processes beside its formula: `python -m benchmarks.bubbles`.

The stages wait instead of computing, so that they run side by side on any number of cores.
"""

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import pipelining

from cs336kit import measure
from cs336kit.command.arguments import Parser
from cs336kit.predict import Layout
from cs336kit.predict.grid import as_text

SCHEDULES = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B}
MICROBATCHES = (2, 4, 8)
#: Seconds of a forward pass of one microbatch in one stage, and of its backward pass.
WAIT = 0.1
#: The quickest of so many steps counts: others of the machine's processes can only make a step longer.
STEPS = 3


class Wait(torch.autograd.Function):
    """Passes its input on, and waits in both passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        time.sleep(WAIT)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        time.sleep(WAIT)
        return gradient.clone()


class WaitingStage(nn.Module):
    """A stage that takes the same time for each microbatch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return Wait.apply(x * self.weight)


def shares_of_waiting() -> dict[tuple[str, int], float]:
    """(schedule, microbatches) → the share of a step in which this rank has nothing to do."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    found = {}
    for name, kind in SCHEDULES.items():
        for microbatches in MICROBATCHES:
            if name == "1f1b" and microbatches <= last:
                continue  # torch refuses fewer microbatches than stages
            stage = pipelining.PipelineStage(WaitingStage(), rank, last + 1, torch.device("cpu"))
            schedule = kind(stage, microbatches, loss_fn=lambda output, target: output.sum())
            x = torch.ones(microbatches, 1)
            seconds = []
            for _ in range(STEPS):
                dist.barrier()
                start = time.perf_counter()
                schedule.step(*([x] if rank == 0 else []), **({"target": x} if rank == last else {}))
                dist.barrier()
                seconds.append(time.perf_counter() - start)
            found[name, microbatches] = 1 - 2 * microbatches * WAIT / min(seconds)
    return found


def main() -> None:
    """Print the table: the formula beside the mean over the ranks."""
    rows = [("stages", "schedule", "microbatches", "predicted", "measured")]
    for stages in (2, 4):
        ranks = measure.run_ranks(shares_of_waiting, ranks=stages, timeout=300, device="cpu")
        for name, microbatches in ranks[0]:
            predicted = Layout(pp=stages, microbatches=microbatches, schedule=name).bubble
            measured = sum(rank[name, microbatches] for rank in ranks) / stages
            rows.append((str(stages), name, str(microbatches), f"{predicted:.3f}", f"{measured:.3f}"))
    print(as_text(rows, "<<>>>", gap=2))


if __name__ == "__main__":
    Parser(description=__doc__).parse_args()
    main()

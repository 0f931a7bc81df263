"""`cs336kit train`: one run of a decoder on a text, and its record."""

import json
import os
from pathlib import Path

from cs336kit.command.arguments import LayoutText, Parser, count, number, to_write
from cs336kit.files import write_whole

PURPOSE = "train a decoder on a text, byte by byte, and write down its losses, FLOPs and seconds"
_EXAMPLES = """
    examples:
      a minute on a CPU, on the course's own text
        cs336kit train --layers 2 --d-model 64 --heads 4 --steps 300
      the same, recorded; and on a text of your own
        cs336kit train --layers 2 --d-model 64 --heads 4 --steps 300 --out run.json
        cs336kit train --layers 2 --d-model 64 --heads 4 --steps 300 --data my.txt
      on four ranks: two share the optimizer's state and the weights, and two divide every layer
        torchrun --nproc-per-node 4 -m cs336kit train --layers 2 --d-model 64 --heads 4 --steps 300 --layout fsdp=2,tp=2
"""


def _parser() -> Parser:
    usage = "--layers L --d-model D --heads A --steps N [options]"
    command = Parser.of("train", usage, purpose=PURPOSE, examples=_EXAMPLES)
    model = command.add_argument_group("the model, a small Llama over bytes").add_argument
    model("--layers", type=count, required=True, metavar="L", help="blocks")
    model("--d-model", type=count, required=True, metavar="D", help="width")
    model("--heads", type=count, required=True, metavar="A", help="heads of attention")
    model("--d-ff", type=count, metavar="F", help="width of the MLP (8/3 of the width, rounded up to eights)")
    run = command.add_argument_group("the run").add_argument
    run("--steps", type=count, required=True, metavar="N", help="optimizer steps")
    run("--batch", type=count, default=8, metavar="N", help="sequences of a step (8)")
    run("--sequence", type=count, default=64, metavar="N", help="tokens of a sequence (64)")
    run("--max-lr", type=number, default=0.01, metavar="X", help="highest learning rate of the cosine (0.01)")
    run("--seed", type=count, default=0, metavar="N", help="of weights and batches (0)")
    run("--precision", default="fp32", metavar="NAME", help="fp32, tf32, bf16, autocast, autocast-fp16 or fp8")
    run("--device", default="cpu", metavar="NAME", help="cpu or cuda")
    divided = "how the ranks of torchrun divide the work, such as fsdp=2,tp=2 (dp); help explains the words"
    run("--layout", action=LayoutText, metavar="TEXT", help=divided)
    run("--threads", type=count, metavar="N", help="threads of a CPU; one gives the same bits anywhere of its kind")
    run("--data", type=Path, metavar="FILE", help="a text, of which the last tenth is held out (the course's own)")
    show = command.add_argument_group("the answer").add_argument
    show("--out", type=Path, metavar="FILE", help="where to write the run as JSON, whole or not at all")
    return command


def run(arguments: list[str]) -> int:
    """Train, print a line, and write the record."""
    asked = _parser().parse_args(arguments)

    # Only now: the help works without torch.
    import torch

    from cs336kit import lm
    from cs336kit.lm.pretrain import small_llama
    from cs336kit.predict.checks import one_of, positive_int

    if asked.out is not None:
        to_write(asked.out)
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    one_of("device of this machine", asked.device, devices)
    if asked.threads is not None:
        torch.set_num_threads(positive_int("threads", asked.threads))
    config = small_llama(
        layers=asked.layers, d_model=asked.d_model, heads=asked.heads, context=positive_int("sequence", asked.sequence),
        d_ff=asked.d_ff,
    )  # fmt: skip
    data = None if asked.data is None else lm.encode(_text_of(asked.data))
    done = lm.pretrain(
        config, batch=asked.batch, sequence=asked.sequence, steps=asked.steps, max_lr=asked.max_lr, seed=asked.seed,
        precision=asked.precision, data=data, device=asked.device, progress=True, layout=asked.layout,
    )  # fmt: skip
    if os.environ.get("RANK", "0") != "0":  # of the ranks that torchrun starts, one speaks for all
        return 0
    print(done)
    if asked.out is not None:
        write_whole(asked.out, json.dumps(done.as_dict(), indent=1) + "\n", flush=True)
    return 0


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"--data {path} is no text in UTF-8, from byte {error.start:,} on: save it as UTF-8, or name another file"
        ) from None

"""`cs336kit sweep`: the runs of the lesson on scaling laws."""

from pathlib import Path

from cs336kit.command.arguments import Parser, count, number, to_write

PURPOSE = "train the grid of tiny models of lesson 20 and write its record"
_EXAMPLES = """
    examples:
      the course's sweep anew; what the file holds already is kept
        cs336kit sweep --out sweep.json
      its cheapest budget alone
        cs336kit sweep --out small.json --budget 1e10
"""


def run(arguments: list[str]) -> int:
    """Train what is missing in the file, and write it after each run."""
    command = Parser.of("sweep", "--out FILE [options]", purpose=PURPOSE, examples=_EXAMPLES)
    add = command.add_argument
    add("--out", type=Path, required=True, metavar="FILE", help="the record, as JSON; what it holds is not run again")
    add("--budget", type=number, action="append", metavar="C", help="only this budget of FLOPs, such as 1e10")
    add("--threads", type=count, default=1, metavar="N", help="threads (1: the order of additions is then fixed)")
    asked = command.parse_args(arguments)

    # Only now: the help works without torch.
    import torch

    from cs336kit.lm import sweep
    from cs336kit.predict.checks import positive_int

    to_write(asked.out)
    torch.set_num_threads(positive_int("threads", asked.threads))
    if unknown := [f"{budget:.3g}" for budget in asked.budget or () if budget not in sweep.GRID]:
        known = ", ".join(f"{budget:.3g}" for budget in sweep.GRID)
        raise ValueError(f"the sweep has no budget of {unknown[0]} FLOPs, only of {known}")
    cells = [cell for cell in sweep.grid() if cell["budget"] in (asked.budget or sweep.GRID)]
    known_runs: tuple[sweep.Run, ...] = ()
    if asked.out.exists():
        before = sweep.recorded_sweep(asked.out)
        if before.torch != torch.__version__:
            raise ValueError(
                f"{asked.out} was made with torch {before.torch}, and this is {torch.__version__}: one record has one "
                "torch. Give another file, or remove this one"
            )
        known_runs = before.runs

    def after(so_far: sweep.Sweep) -> None:
        sweep.write_sweep(so_far, asked.out)
        last = so_far.runs[-1]
        print(
            f"{last.budget:.0e} FLOPs, {last.layers} x {last.d_model}, seed {last.seed}: {last.parameters:,} parameters, "
            f"{last.tokens:,} tokens, {last.loss:.3f} nats, {last.seconds:.0f} s",
            flush=True,
        )

    done = sweep.run_sweep(cells, known=known_runs, after=after)
    print(f"{len(done.runs)} runs, {done.seconds:.0f} s of the processor, in {asked.out}")
    return 0

"""Run a soak test: ``make soak [ARGS="--seed 3 --operations 500 --http"]``.

Exits with 1 if there are findings. The seed reproduces the operations, not their timing, so that
runs of one seed differ in which operations overlap.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from random import SystemRandom

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from tests.soak.http_door import open_http_door
from tests.soak.report import show
from tests.soak.soak import OPTIONS, Outcome, Soak

from kvreg_service.engine.build import load_model

NUM_OPERATIONS = 2000


def main(arguments: Sequence[str]) -> int:
    """Run one soak; return the exit status."""
    parser = argparse.ArgumentParser("make soak", description=__doc__)
    parser.add_argument("--seed", type=int, help="seed of the operations; random by default")
    parser.add_argument("--operations", type=int, default=NUM_OPERATIONS, metavar="N")
    parser.add_argument(
        "--faults", type=float, default=0.01, metavar="RATE", help="share of state moves that fail"
    )
    parser.add_argument("--http", action="store_true", help="send requests over HTTP")
    options = parser.parse_args(arguments)
    seed = SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    # Every injected fault logs a warning with a traceback.
    logging.getLogger("kvreg_service").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    console = Console()
    console.print(f"seed {seed}")
    outcome = _soak(console, seed, options)
    show(console, outcome, seed)
    return 1 if outcome.judge.findings else 0


def _soak(console: Console, seed: int, options: argparse.Namespace) -> Outcome:
    columns = (
        TextColumn("{task.description:<40}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    )  # fmt: skip
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("operations", total=options.operations)
        soak = Soak(
            load_model(OPTIONS),
            seed,
            options.operations,
            fault_rate=options.faults,
            on_progress=lambda operation: progress.update(
                task, advance=1, description=operation.kind.value
            ),
        )
        if options.http:
            return soak.run(open_http_door)
        return soak.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Measures kvreg: ``make bench [PEER=http://...] [ARGS="planning batch"]``.

Each bench is a module of this folder with ``run(bench) -> Section``. Figures go to
``docs/measurements/``; benches are never tests. `traces` reads a recording and takes options of its
own: ``make bench ARGS="traces FILE --help"``.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import traces
from bench_run import BenchFailed, BenchRun
from correctness import require_correct
from machine import describe_machine
from report import Report, Section
from rich.console import Console
from rich.progress import Progress

BENCHES = ("comparison", "batch", "step_overhead", "attach", "planning", "pressure", "policies")
_WITHOUT_MODEL = frozenset({"planning", "policies"})
_ROUNDS = 9
_FOLDER = Path(__file__).parents[2] / "docs" / "measurements"


def main(arguments: Sequence[str]) -> int:
    """Run the chosen benches; return the exit status."""
    if arguments and arguments[0] == "traces":
        return traces.main(arguments[1:])
    options = _parse(arguments)
    console = Console()
    torch.set_num_threads(1)
    machine = describe_machine(torch.get_num_threads())
    benches: list[str] = options.benches or list(BENCHES)
    sections: list[Section] = []
    try:
        if not _WITHOUT_MODEL.issuperset(benches):
            console.print("kvreg against transformers on the bench prompts ...", end=" ")
            require_correct()
            console.print("equal")
        with Progress(console=console) as progress:
            run = BenchRun(options.rounds, options.peer, options.peer_name, progress)
            for name in benches:
                sections.append(importlib.import_module(name).run(run))
    except BenchFailed as error:
        console.print(f"[red]not measured:[/red] {error}")
        return 1
    report = Report(
        name=options.name or "-".join(options.benches or ["bench"]).replace("_", "-"),
        command=_command(options),
        date=datetime.datetime.now(tz=datetime.UTC).date(),
        machine=machine,
        remark=options.remark,
        sections=sections,
    )
    report.show(console)
    console.print(f"written to {report.write(options.output)}")
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("make bench", description=__doc__)
    parser.add_argument("benches", nargs="*", metavar="BENCH", help=", ".join(BENCHES))
    parser.add_argument("--peer", metavar="URL", help="an OpenAI-compatible server that is running")
    parser.add_argument(
        "--peer-name", metavar="TEXT", default="peer", help="its name in the tables"
    )
    parser.add_argument(
        "--rounds", type=int, default=_ROUNDS, help=f"measurements of each quantity [{_ROUNDS}]"
    )
    parser.add_argument("--name", help="of the document [the names of the benches]")
    parser.add_argument("--remark", default="", help="a sentence for the head of the document")
    parser.add_argument("--output", type=Path, default=_FOLDER, help="folder of the document")
    options = parser.parse_args(arguments)
    unknown = set(options.benches) - set(BENCHES)
    if unknown:
        parser.error(f"no such bench: {', '.join(sorted(unknown))}")
    options.peer = options.peer or None
    return options


def _command(options: argparse.Namespace) -> str:
    parts = ["make bench"]
    if options.peer:
        parts.append(f"PEER={options.peer}")
    arguments = list(options.benches)
    if options.rounds != _ROUNDS:
        arguments.append(f"--rounds {options.rounds}")
    if arguments:
        parts.append(f'ARGS="{" ".join(arguments)}"')
    return " ".join(parts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Replays recorded sessions through the real scheduler.

Run it with ``make bench ARGS="traces FILE --users 16"``. The results are counts and
the same in every run on one recording. No file is written; ``--json`` prints one object.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from traces_bound import most_hit_tokens
from traces_replay import TraceSetup, replay_trace
from traces_sessions import TraceFileError, TraceRequest, read_stream

from kvreg_service.core.ids import PAGE_TOKENS
from kvreg_service.core.states.policies import POLICIES, find_policy

_PACES = (0.01, 1.0, 100.0)


@dataclass(frozen=True)
class TraceCell:
    """One engine setup on one stream: the bound, and hit tokens by policy and pace."""

    users: int
    setup: TraceSetup
    requests: int
    prompt_tokens: int
    bound_tokens: int
    hit_tokens: dict[str, dict[float, int]]

    def of_prompt(self, policy: str, pace: float) -> float:
        """Return hit tokens as a share of all prompt tokens."""
        return self.hit_tokens[policy][pace] / self.prompt_tokens

    def of_bound(self, policy: str) -> float:
        """Return hit tokens as a share of the bound, at the pace of the recording."""
        hit_tokens = self.hit_tokens[policy]
        return hit_tokens.get(1.0, mean(hit_tokens.values())) / self.bound_tokens

    def as_json(self) -> dict[str, Any]:
        """Return all fields and the shares."""
        return {
            "users": self.users,
            **asdict(self.setup),
            "requests": self.requests,
            "prompt_tokens": self.prompt_tokens,
            "bound_tokens": self.bound_tokens,
            "bound_of_prompt": self.bound_tokens / self.prompt_tokens,
            "policies": {
                policy: {
                    "of_bound": self.of_bound(policy),
                    "hit_tokens": {f"{pace:g}": tokens for pace, tokens in by_pace.items()},
                    "of_prompt": {f"{pace:g}": self.of_prompt(policy, pace) for pace in by_pace},
                }
                for policy, by_pace in self.hit_tokens.items()
            },
        }


def main(arguments: Sequence[str]) -> int:
    """Replay a recording and print the hit tokens of each policy; return the exit status."""
    options = _parse(arguments)
    console = Console(stderr=options.json)
    sizes = list(product(options.users, options.entries, options.pages))
    num_replays = len(sizes) * len(options.policies) * len(options.paces)
    cells: list[TraceCell] = []
    try:
        with Progress(console=Console(stderr=True)) as progress:
            task = progress.add_task("replays", total=num_replays)
            for users in options.users:
                stream = _read(options, users)
                for entries, num_pages in product(options.entries, options.pages):
                    setup = TraceSetup(
                        options.lanes,
                        entries,
                        num_pages,
                        options.anchors,
                        options.current_state == "keep",
                    )
                    cells.append(_cell(users, stream, setup, options))
                    progress.advance(task, len(options.policies) * len(options.paces))
    except TraceFileError as err:
        console.print(f"[red]traces:[/red] {err}")
        return 2
    if options.json:
        sys.stdout.write(json.dumps(_as_json(options, cells), indent=1) + "\n")
    else:
        console.print(_table(options, cells))
    return 0


def _read(options: argparse.Namespace, users: int) -> list[TraceRequest]:
    return read_stream(
        options.file,
        users=users,
        lanes=options.lanes,
        seed=options.seed,
        max_context_tokens=min(options.max_context, min(options.pages) * PAGE_TOKENS),
        max_requests=options.max_requests,
    )


def _cell(
    users: int, stream: Sequence[TraceRequest], setup: TraceSetup, options: argparse.Namespace
) -> TraceCell:
    hit_tokens = {
        policy: {
            pace: replay_trace(stream, setup, find_policy(policy), pace) for pace in options.paces
        }
        for policy in options.policies
    }
    return TraceCell(
        users=users,
        setup=setup,
        requests=len(stream),
        prompt_tokens=sum(len(one.prompt) for one in stream),
        bound_tokens=most_hit_tokens(stream, setup),
        hit_tokens=hit_tokens,
    )


def _as_json(options: argparse.Namespace, cells: Sequence[TraceCell]) -> dict[str, Any]:
    return {
        "file": options.file.name,
        "seed": options.seed,
        "max_context_tokens": options.max_context,
        "max_requests": options.max_requests,
        "mean_of_bound": {
            policy: mean(cell.of_bound(policy) for cell in cells) for policy in options.policies
        },
        "cells": [cell.as_json() for cell in cells],
    }


def _table(options: argparse.Namespace, cells: Sequence[TraceCell]) -> Table:
    columns = [(policy, pace) for policy in options.policies for pace in options.paces]
    table = Table(
        title=f"{options.file.name}: hit tokens of all prompt tokens", title_justify="left"
    )
    for name in ("users", "R", "pages", "requests", "bound"):
        table.add_column(name, justify="right")
    for policy, pace in columns:
        table.add_column(f"{policy}, times x {pace:g}", justify="right")
    for cell in cells:
        table.add_row(
            *(f"{number:,}" for number in (cell.users, cell.setup.entries, cell.setup.num_pages)),
            f"{cell.requests:,}",
            f"{cell.bound_tokens / cell.prompt_tokens:.3f}",
            *(f"{cell.of_prompt(policy, pace):.3f}" for policy, pace in columns),
        )
    table.add_section()
    of_bound = {policy: mean(cell.of_bound(policy) for cell in cells) for policy, _ in columns}
    table.add_row(
        *("mean of the bound", "", "", "", ""),
        *(f"{of_bound[policy]:.3f}" if pace == 1.0 else "" for policy, pace in columns),
    )
    return table


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "make bench traces",
        description="Replay recorded sessions through the scheduler, without a model.",
        epilog="Numbers may be lists, such as --users 1,4,8,16.",
    )
    parser.add_argument("file", type=Path, help="a recording, plain or gzip")
    parser.add_argument("--users", type=_numbers, default=[16], metavar="U", help="sessions [16]")
    parser.add_argument("--lanes", type=int, default=2, metavar="C", help="lanes [2]")
    parser.add_argument("--entries", type=_numbers, default=[8], metavar="R", help="entries [8]")
    parser.add_argument("--pages", type=_numbers, default=[30_000], metavar="P", help="[30000]")
    parser.add_argument("--anchors", type=int, default=2, metavar="A", help="anchors [2]")
    parser.add_argument("--current-state", choices=("keep", "drop"), default="keep")
    parser.add_argument("--policies", type=_policies, default=["cost", "lru"], metavar="NAMES")
    parser.add_argument("--paces", type=_paces, default=list(_PACES), help="factors of all times")
    parser.add_argument("--seed", type=int, default=1, help="chooses the sessions [1]")
    parser.add_argument("--max-context", type=int, default=160_000, metavar="TOKENS")
    parser.add_argument("--max-requests", type=int, default=40, help="of each session [40]")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(arguments)


def _numbers(text: str) -> list[int]:
    return [_positive(part) for part in text.split(",")]


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is below 1")
    return number


def _paces(text: str) -> list[float]:
    paces = [float(part) for part in text.split(",")]
    if min(paces) <= 0:
        raise argparse.ArgumentTypeError(f"{min(paces)} is not above 0")
    return paces


def _policies(text: str) -> list[str]:
    names = text.split(",")
    unknown = set(names) - set(POLICIES)
    if unknown:
        raise argparse.ArgumentTypeError(
            f"{', '.join(sorted(unknown))}: not among {', '.join(POLICIES)}"
        )
    return names

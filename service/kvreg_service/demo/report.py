"""Prints the results of stories as tables, or as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import groupby

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvreg_service.core.labels import CurrentState
from kvreg_service.core.memory.budget import GIB
from kvreg_service.demo.verdict import Play

_SHA_DIGITS = 12
_MIB = GIB >> 10
CAPACITY = "capacity"
"""The story whose results have a table of their own."""


def report_as_json(seed: int, plays: Sequence[Play], problems: Sequence[str]) -> str:
    """Return all results as JSON; times are in seconds."""
    return json.dumps(
        {
            "seed": seed,
            "is_as_promised": not problems,
            "problems": list(problems),
            "plays": [_play_as_dict(play) for play in plays],
        },
        indent=2,
        ensure_ascii=False,
    )


def print_report(
    console: Console, seed: int, plays: Sequence[Play], problems: Sequence[str], slot_bytes: int
) -> None:
    """Print one table a story, the capacity table, and the verdict."""
    for story, group in groupby(plays, key=lambda play: play.story):
        told = list(group)
        table = _story_table(told)
        table.title = f"{story.name}: {story.title}"
        console.print(table)
        if story.name == CAPACITY:
            console.print(_capacity_table(told, slot_bytes))
    num_rows = sum(len(play.rows) for play in plays)
    console.print(f"{num_rows} requests in {len(plays)} plays, seed {seed}.")
    if not problems:
        console.print(
            "[green]Every request reused what was expected, and all profiles gave the same texts."
        )
    for problem in problems:
        console.print(f"[red]unexpected:[/red] {escape(problem)}", highlight=False)


def _play_as_dict(play: Play) -> dict[str, object]:
    profile = play.profile
    return {
        "story": play.story.name,
        "profile": {
            "name": profile.name,
            "entries": profile.entries,
            "current_state": CurrentState.KEEP if profile.keep_current else CurrentState.DROP,
            "eviction": profile.eviction,
        },
        "requests": [
            {
                "step": row.step,
                "prompt_tokens": row.prompt_tokens,
                "cached_tokens": row.cached_tokens,
                "computed_tokens": row.computed_tokens,
                "reuse_path": row.path,
                "attach": row.attach,
                "ttft_s": row.ttft_s,
                "completion_tokens": row.completion_tokens,
                "text": row.text,
                "sha256": row.sha256,
            }
            for row in play.rows
        ],
        "problems": play.problems,
    }


def _story_table(plays: Iterable[Play]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    table.add_column("profile", no_wrap=True)
    table.add_column("step", no_wrap=True)
    for name in ("prompt", "cached", "computed"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("path", no_wrap=True)
    table.add_column("attach", no_wrap=True)
    table.add_column("TTFT ms", justify="right", no_wrap=True)
    table.add_column("sha256", no_wrap=True)
    for play in plays:
        style = "red" if play.problems else None
        for index, row in enumerate(play.rows):
            table.add_row(
                "" if index else play.profile.name,
                escape(row.step),
                str(row.prompt_tokens),
                str(row.cached_tokens),
                str(row.computed_tokens),
                row.path,
                row.attach,
                f"{row.ttft_s * 1000:.1f}",
                row.sha256[:_SHA_DIGITS],
                style=style,
            )
    return table


def _capacity_table(plays: Iterable[Play], slot_bytes: int) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        title="capacity: tokens cached when the session and the side request return",
        title_justify="left",
        title_style="bold",
    )
    table.add_column("profile", no_wrap=True)
    for name in ("state slots", "MiB of states", "session", "side request"):
        table.add_column(name, justify="right")
    for play in plays:
        num_slots = play.profile.layout.num_slots
        *_, session, side = play.rows
        table.add_row(
            play.profile.name,
            str(num_slots),
            f"{num_slots * slot_bytes / _MIB:.2f}",
            str(session.cached_tokens),
            str(side.cached_tokens),
        )
    return table

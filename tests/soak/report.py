"""Prints the operations, counts and findings of a soak."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from tests.soak.soak import Outcome

MOST_FINDINGS = 20


def show(console: Console, outcome: Outcome, seed: int) -> None:
    """Print tables of operations and ends, then the findings and the seed."""
    judge = outcome.judge
    done = Counter(operation.kind.value for operation in outcome.operations)
    _table(console, "operations", done.items())
    totals = outcome.last.totals
    _table(
        console,
        "requests",
        [
            *sorted(judge.ends.items()),
            *((f"refused: {code}", count) for code, count in sorted(judge.refusals.items())),
            *totals.requests_by_path.items(),
            *((f"evicted: {why}", count) for why, count in totals.evictions_by_reason.items()),
            *((f"fault in {name}", count) for name, count in outcome.faults.injected.items()),
        ],
    )
    _table(
        console,
        "checks",
        [
            ("steps after which invariants were checked", outcome.faults.num_steps),
            ("canaries requested", judge.num_recalled),
            ("of them missing, also in the cold run", judge.num_recalled_wrong),
            ("answers compared with a cold run", outcome.num_controls),
            ("of them different at a tie or when sampled", judge.num_ties),
            ("worst difference of a log-probability", f"{judge.worst_logprob_error:.1e}"),
            ("growth in the second half, MiB", outcome.growth_bytes >> 20),
            ("findings", len(judge.findings)),
        ],
    )
    for finding in judge.findings[:MOST_FINDINGS]:
        where = "at the end" if finding.operation is None else f"operation {finding.operation}"
        console.print(f"[red]{where}[/red]: {finding.what}", markup=True, highlight=False)
    console.print(f"seed {seed}, {len(outcome.operations)} operations")


def _table(console: Console, title: str, rows: Iterable[tuple[str, object]]) -> None:
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column()
    table.add_column(justify="right")
    for name, value in rows:
        table.add_row(name, str(value))
    console.print(table)

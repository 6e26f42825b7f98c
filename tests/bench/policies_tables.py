"""The tables of the policy comparison: one for all scenarios, then two per scenario."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean

from policies_cell import Cell
from policies_replay import Outcome
from policies_traffic import Scenario
from report import Table

Cells = Mapping[str, Mapping[str, Cell]]
"""By name of scenario, then by name of setup."""


def summary(title: str, cells: Cells) -> Table:
    """Return the mean share of the bound over all scenarios, the best policy first."""
    setups = list(next(iter(cells.values())))
    shares = {
        policy: [mean(by_setup[setup].share(policy) for by_setup in cells.values())
                 for setup in setups]
        for policy in _policies(cells)
    }  # fmt: skip
    best_first = sorted(shares, key=lambda policy: -mean(shares[policy]))
    return Table(
        f"{title}: hit tokens of the bound, mean over the scenarios",
        ("policy", *setups, "mean"),
        [
            (policy, *(f"{share:.3f}" for share in shares[policy]), f"{mean(shares[policy]):.3f}")
            for policy in best_first
        ],
    )


def overview(scenario: Scenario, by_setup: Mapping[str, Cell]) -> Table:
    """Return hit tokens by policy and setup, with the bound in the last row."""
    rows = [
        (policy, *(f"{cell.outcomes[policy].hit_share:.1%} ({cell.share(policy):.3f})"
                   for cell in by_setup.values()))
        for policy in _policies({scenario.name: by_setup})
    ]  # fmt: skip
    prompts = next(iter(next(iter(by_setup.values())).outcomes.values())).prompt_tokens
    rows.append(("bound", *(f"{cell.bound.tokens / prompts:.1%}" for cell in by_setup.values())))
    title = f"{scenario.name}: {scenario.what}. Hit tokens (of the bound)"
    return Table(title, ("policy", *by_setup), rows)


def close_up(scenario: Scenario, setup: str, cell: Cell) -> Table:
    """Return all counters of one setup."""
    rows: list[tuple[str, ...]] = [
        (
            policy,
            f"{one.hit_tokens / 1_000:,.0f}",
            f"{one.returns_share:.1%}",
            f"{one.saved_s:,.0f}",
            f"{one.saved_s / cell.bound.seconds:.3f}",
            *_evictions(one),
        )
        for policy, one in cell.outcomes.items()
    ]
    bound = cell.bound
    rows.append(
        ("bound", f"{bound.tokens / 1_000:,.0f}", "", f"{bound.seconds:,.0f}", "", "", "", "")
    )
    columns = (
        *("policy", "hit, 1,000 tokens", "returns hit", "saved, s", "of the bound"),
        *("displaced", "entry needed", "pages needed"),
    )
    return Table(f"{scenario.name}, {setup}, with evictions by reason", columns, rows)


def anchors(setup: str, policy: str, pairs: Mapping[str, Sequence[Cell]]) -> Table:
    """Return the effect of anchors: for each scenario a cell without and one with anchors."""
    rows = []
    for name, cells in pairs.items():
        without, anchored = (cell.outcomes[policy] for cell in cells)
        rows.append(
            (
                name,
                *(f"{cell.outcomes[policy].hit_share:.1%} ({cell.share(policy):.3f})"
                  for cell in cells),
                f"{anchored.saved_s - without.saved_s:,.0f}",
                f"{anchored.anchor_hits}",
                f"{anchored.evictions['anchor_needed']}",
            )
        )  # fmt: skip
    columns = ("scenario", "A = 0", "A = 2", "more saved, s", "anchor hits", "anchors evicted")
    return Table(f"Anchors, policy {policy}, {setup}: hit tokens (of the bound)", columns, rows)


def _evictions(one: Outcome) -> tuple[str, ...]:
    return tuple(
        f"{one.evictions[reason]}" for reason in ("displaced", "entry_needed", "pages_needed")
    )


def _policies(cells: Cells) -> list[str]:
    return list(next(iter(next(iter(cells.values())).values())).outcomes)

"""Eviction policies on synthetic agent traffic, compared with an upper bound.

Without a model and a clock: the scheduler is driven with the tokens of the stream and a cost model,
so the results are counts and the same in every run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bench_run import BenchRun
from policies_cell import Cell, build_streams, compare
from policies_plot import Panel, draw
from policies_replay import COST, Setup
from policies_tables import anchors, close_up, overview, summary
from policies_traffic import SCENARIOS, SEEDS
from policies_variants import variants
from report import Plot, Section, Table

from kvreg_service.core.policies import POLICY_NAMES, build_policy

_WIDE_PAGES, _TIGHT_PAGES = 3_200, 768
_SETUPS = {
    "C1 R1": Setup(1, 1, _WIDE_PAGES),
    "C1 R2": Setup(1, 2, _WIDE_PAGES),
    "C1 R4": Setup(1, 4, _WIDE_PAGES),
    "C2 R4": Setup(2, 4, _WIDE_PAGES),
    "C2 R4 few": Setup(2, 4, _TIGHT_PAGES),
}
_CLOSE_UP = "C1 R2"
_DEFAULT_POLICY = "cost"
_VARIED_SETUPS = ("C1 R1", "C1 R2", "C1 R4")
_VARIED_POLICIES = ("cost", "slru")

_METHOD = f"""\
The results are counts and the same in every run. The scheduler is driven without a model over
{len(SCENARIOS)} synthetic scenarios of {SCENARIOS[0].requests} requests for each of {len(SEEDS)}
seeds, with slots, pages and prefill seconds of the 27B shape, exchange on, both states kept, and no
anchors except in the last table. *C1 R2* has one lane, two entries and {_WIDE_PAGES:,} pages
({_WIDE_PAGES * 64:,} tokens); *few* means {_TIGHT_PAGES:,} pages. *Hit tokens* is the share of
cached tokens in all prompt tokens. *Of the bound* compares with the most hit tokens that any choice
of kept sequences could have reached with the same C and R and unlimited pages; `docs/eviction.md`
explains the assumptions. *Returns hit* are later turns and tool steps that resumed within 64 tokens
of the longest position that was ever kept for them. *Saved* are seconds of prefill by the cost
model. Clients give side requests and one-off prompts `priority` -1, which only policy `priority`
uses. The second table varies constants: `rest_scale_s` of `cost` (built in: 20 s), the weight of
former returns in it (0.5), `protected_share` of `slru` (0.8), and the half-life of `lfu` (20 s)."""


def run(bench: BenchRun) -> Section:
    """Replay every scenario with every setup and policy."""
    policies = {name: build_policy(name, COST) for name in POLICY_NAMES}
    others = variants()
    num_cells = len(_SETUPS) * len(policies) + len(_VARIED_SETUPS) * len(others) + 1
    task = bench.progress.add_task("policies", total=len(SCENARIOS) * num_cells)

    def advance() -> None:
        bench.progress.advance(task)

    cells: dict[str, dict[str, Cell]] = {}
    varied: dict[str, dict[str, Cell]] = {}
    anchored: dict[str, list[Cell]] = {}
    tables: list[Table] = []
    for scenario in SCENARIOS:
        streams = build_streams(scenario)
        by_setup = {
            name: compare(streams, setup, policies, advance) for name, setup in _SETUPS.items()
        }
        setup = replace(_SETUPS[_CLOSE_UP], anchors=2)
        default = {_DEFAULT_POLICY: policies[_DEFAULT_POLICY]}
        anchored[scenario.name] = [by_setup[_CLOSE_UP], compare(streams, setup, default, advance)]
        varied[scenario.name] = {}
        for name in _VARIED_SETUPS:
            cell = by_setup[name]
            built_in = {f"{one}, built in": cell.outcomes[one] for one in _VARIED_POLICIES}
            varied_cell = compare(streams, _SETUPS[name], others, advance)
            varied[scenario.name][name] = Cell(cell.bound, built_in | varied_cell.outcomes)
        cells[scenario.name] = by_setup
        tables += [
            overview(scenario, by_setup),
            close_up(scenario, _CLOSE_UP, by_setup[_CLOSE_UP]),
        ]
    return Section(
        "policies",
        _METHOD,
        [
            summary("All scenarios", cells),
            summary("Constants", varied),
            *tables,
            anchors(_CLOSE_UP, _DEFAULT_POLICY, anchored),
        ],
        {
            "policies": _as_json(cells),
            "constants": _as_json(varied),
            "anchors": {name: pair[1].as_json() for name, pair in anchored.items()},
        },
        [Plot("policies", "Hit tokens of each policy, and the bound", draw(_panels(cells)))],
        is_timed=False,
    )


def _as_json(cells: Mapping[str, Mapping[str, Cell]]) -> dict[str, Any]:
    return {
        name: {setup: cell.as_json() for setup, cell in by_setup.items()}
        for name, by_setup in cells.items()
    }


def _panels(cells: dict[str, dict[str, Cell]]) -> list[Panel]:
    panels = []
    for name, by_setup in cells.items():
        prompts = next(iter(by_setup.values())).outcomes[_DEFAULT_POLICY].prompt_tokens
        panels.append(
            Panel(
                title=name,
                setups=list(by_setup),
                bounds=[cell.bound.tokens / prompts for cell in by_setup.values()],
                shares={
                    policy: [cell.outcomes[policy].hit_share for cell in by_setup.values()]
                    for policy in POLICY_NAMES
                },
            )
        )
    return panels

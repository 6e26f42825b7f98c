"""The dashboard *Operator*: effective profiles, rolls, and the operator's watches."""

from __future__ import annotations

from dashboards.board import Board, Row
from dashboards.panels import About, Query, graph, listing, number
from dashboards.queries import RATE_WINDOW, now, total


def build_operator_board() -> Board:
    """Build the dashboard."""
    return Board(
        name="operator",
        title="kvreg: Operator",
        description=(
            "Effective profiles, rolls, and the operator's watches. The filters for namespace, "
            "profile and engine apply to engine metrics only, not to operator metrics."
        ),
        span="24h",
        rows=[_profiles(), _rolls(), _watches()],
    )


def _profiles() -> Row:
    columns = {
        "namespace": "Namespace",
        "pod": "Engine",
        "profile": "Profile",
        "lanes": "Lanes",
        "entries": "Entries",
        "current_state": "Current state",
        "profile_hash": "Profile hash",
    }
    return Row(
        "Effective profiles",
        [
            listing(
                About(
                    "Effective profile by engine",
                    "The profile that each engine reports, not the one that its KVRegistryProfile "
                    "requests. Two hashes under one profile mean that a roll is in progress or "
                    "stuck.",
                    "short",
                ),
                Query(f"max by ({', '.join(columns)}) ({now('kvreg_profile_info')})"),
                columns=columns,
            ),
            graph(
                About(
                    "Engines by profile and hash",
                    "During a roll, the count of the old hash falls while that of the new one "
                    "rises.",
                    "short",
                ),
                Query(
                    f"count by (profile, profile_hash) ({now('kvreg_profile_info')})",
                    "{{profile}} {{profile_hash}}",
                ),
                stacked=True,
                width=24,
            ),
        ],
    )


def _rolls() -> Row:
    return Row(
        "Rolls",
        [
            graph(
                About(
                    "Profiles by condition",
                    "Profiles whose condition is true. Accepted: the profile is valid. "
                    "Progressing: a roll is in progress. RolloutDeferred: the roll is deferred. "
                    "Ready: all engines serve the profile. Degraded: the roll failed, or an "
                    "object is missing.",
                    "short",
                ),
                Query("sum by (condition) (kvreg_operator_profiles)", "{{condition}}"),
            ),
            graph(
                About(
                    "Rolls by result",
                    "A roll restarts engines one at a time, which empties their registries.",
                    "ops",
                ),
                Query(_operator_rate("kvreg_operator_rolls_total", "result"), "{{result}}"),
                stacked=True,
            ),
            graph(
                About(
                    "Deferred rolls by reason",
                    "The operator defers a roll, for example until an engine is idle. A reason "
                    "that persists for hours needs attention.",
                    "ops",
                ),
                Query(_operator_rate("kvreg_operator_deferrals_total", "reason"), "{{reason}}"),
                stacked=True,
            ),
            graph(
                About(
                    "Reconciles by result",
                    "Profiles are reconciled after each event and at every resync, whether they "
                    "changed or not.",
                    "ops",
                ),
                Query(_operator_rate("kvreg_operator_reconciles_total", "result"), "{{result}}"),
                stacked=True,
            ),
        ],
    )


def _watches() -> Row:
    return Row(
        "Watches",
        [
            number(
                About(
                    "Maximum watch age",
                    "More than ten minutes means that the operator receives neither events nor "
                    "lists of at least one kind of object.",
                    "s",
                    alert="KvregOperatorDeaf",
                ),
                Query("max(kvreg_operator_watch_age_seconds)"),
                width=24,
            ),
            graph(
                About(
                    "Watch age by kind",
                    "Time since the last event or list of this kind. A sawtooth is "
                    "normal. A steady rise means that lists fail and no event arrives.",
                    "s",
                    alert="KvregOperatorDeaf",
                ),
                Query("max by (kind) (kvreg_operator_watch_age_seconds)", "{{kind}}"),
                width=24,
            ),
        ],
    )


def _operator_rate(metric: str, label: str) -> str:
    return total(f"rate({metric}[{RATE_WINDOW}])", by=label)

"""The dashboard *Operator*: whether edited profiles reach the engines, and what holds them up."""

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
            "Do edited profiles reach the engines, and what holds them up? Numbers of the operator "
            "are not narrowed by the choice of namespace, profile and engine; those of engines are."
        ),
        span="24h",
        rows=[_served(), _rolls(), _health()],
    )


def _served() -> Row:
    columns = {
        "namespace": "Namespace",
        "pod": "Engine",
        "profile": "Profile",
        "lanes": "Lanes",
        "entries": "Entries",
        "current_state": "Current states",
        "profile_hash": "Hash of the settings",
    }
    return Row(
        "What do the engines really serve?",
        [
            listing(
                About(
                    "The profile that each engine serves at this moment",
                    "As the engines say it, not as it was asked for. Two hashes under one profile "
                    "are a roll that is under way, or stuck.",
                    "short",
                ),
                Query(f"max by ({', '.join(columns)}) ({now('kvreg_profile_info')})"),
                columns=columns,
            ),
            graph(
                About(
                    "Engines, by profile and hash of its settings",
                    "During a roll one line falls as the other rises.",
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
        "Are changes carried out?",
        [
            graph(
                About(
                    "Profiles, by what is true of them",
                    "Ready: served as asked. Progressing: a roll is under way. RolloutDeferred: it "
                    "waits. Degraded: it failed. Accepted: the profile makes sense.",
                    "short",
                ),
                Query("sum by (condition) (kvreg_operator_profiles)", "{{condition}}"),
            ),
            graph(
                About(
                    "Rolls, by how they ended",
                    "A roll restarts engines one after the other, and empties their registries.",
                    "ops",
                ),
                Query(_operator_rate("kvreg_operator_rolls_total", "result"), "{{result}}"),
                stacked=True,
            ),
            graph(
                About(
                    "Rolls that were put off, by reason",
                    "The operator waits until engines are idle. One reason for hours: look there.",
                    "ops",
                ),
                Query(_operator_rate("kvreg_operator_deferrals_total", "reason"), "{{reason}}"),
                stacked=True,
            ),
            graph(
                About(
                    "Looks at profiles, by result",
                    "Each profile is looked at again and again, whether it changed or not.",
                    "ops",
                ),
                Query(_operator_rate("kvreg_operator_reconciles_total", "result"), "{{result}}"),
                stacked=True,
            ),
        ],
    )


def _health() -> Row:
    return Row(
        "Does the API server answer the operator?",
        [
            number(
                About(
                    "Time since an event or a list, longest",
                    "Beyond ten minutes the operator does not see changes of that kind of object.",
                    "s",
                    alert="KvregOperatorDeaf",
                ),
                Query("max(kvreg_operator_watch_age_seconds)"),
                width=24,
            ),
            graph(
                About(
                    "Time since an event or a list, by kind of object",
                    "Small teeth are normal. A straight rise: its lists fail, and no event comes.",
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

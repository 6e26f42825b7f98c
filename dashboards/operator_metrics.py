"""The operator metrics that dashboards and alerts use, as a contract with the operator.

They have only the labels named here, in addition to those that the scrape adds. The operator may
run in another namespace than the engines, so the dashboard's filters do not apply to them.
"""

from __future__ import annotations

OPERATOR_METRICS = {
    "kvreg_operator_profiles": ("condition",),
    "kvreg_operator_rolls_total": ("result",),
    "kvreg_operator_deferrals_total": ("reason",),
    "kvreg_operator_watch_age_seconds": ("kind",),
    "kvreg_operator_reconciles_total": ("result",),
}
"""Names and labels. ``kvreg_operator_profiles`` counts profiles whose condition is true. The age of
a watch is the time since the last event or list of its kind."""

"""The metrics of the operator that dashboards and alerts use: its side of the contract.

They carry only the labels named here, beside those that scraping adds. The operator may live in
another namespace than the engines, so they are not filtered by the selection.
"""

from __future__ import annotations

OPERATOR_METRICS = {
    "kvreg_operator_profiles": ("condition",),
    "kvreg_operator_rolls_total": ("result",),
    "kvreg_operator_deferrals_total": ("reason",),
    "kvreg_operator_watch_age_seconds": ("kind",),
    "kvreg_operator_reconciles_total": ("result",),
}
"""Names and labels. Profiles are those whose condition is true. The age of a watch is the time
since an event of its kind, or a list, arrived."""

"""The metric names that dashboards, rules and the operator may use, each with its labels.

To rename or remove one is a breaking change, which belongs in the release notes.
"""

from __future__ import annotations

METRIC_LABELS: dict[str, tuple[str, ...]] = {
    "kvreg_requests_total": ("reuse_path", "attach", "tail", "outcome"),
    "kvreg_failed_requests_total": ("code",),
    "kvreg_refused_requests_total": ("code",),
    "kvreg_prompt_tokens_total": ("source",),
    "kvreg_completion_tokens_total": (),
    "kvreg_current_state_regret_tokens_total": (),
    "kvreg_mtp_drafted_tokens_total": (),
    "kvreg_mtp_accepted_tokens_total": (),
    "kvreg_detaches_total": ("result",),
    "kvreg_attaches_total": ("from", "kind"),
    "kvreg_states_kept_total": ("kind",),
    "kvreg_pins_ended_total": (),
    "kvreg_evictions_total": ("reason",),
    "kvreg_evicted_bytes_total": ("reason",),
    "kvreg_queue_seconds": (),
    "kvreg_ttft_seconds": ("reuse_path",),
    "kvreg_inter_token_seconds": (),
    "kvreg_attach_seconds": (),
    "kvreg_reuse_gap_seconds": (),
    "kvreg_request_seconds": ("outcome",),
    "kvreg_kept_sessions": ("place",),
    "kvreg_kept_states": ("kind",),
    "kvreg_registry_entries_limit": (),
    "kvreg_lanes": ("state",),
    "kvreg_lanes_limit": (),
    "kvreg_anchors_limit": (),
    "kvreg_pages": ("pool", "state"),
    "kvreg_pages_limit": ("pool",),
    "kvreg_state_slots": ("state",),
    "kvreg_queued_requests": (),
    "kvreg_running_requests": (),
    "kvreg_profile_info": ("profile", "profile_hash", "lanes", "entries", "current_state"),
    "kvreg_engine_start_time_seconds": (),
    "kvreg_engine_ready": (),
    "kvreg_engine_draining": (),
    "kvreg_request_log_lines_total": (),
    "kvreg_request_log_errors_total": ("reason",),
    "kvreg_trace_spans_total": ("result",),
    "process_virtual_memory_bytes": (),
    "process_resident_memory_bytes": (),
    "process_start_time_seconds": (),
    "process_cpu_seconds_total": (),
    "process_open_fds": (),
    "process_max_fds": (),
}
"""Keys are family names; the samples of a histogram end with ``_bucket``, ``_sum``, ``_count``."""

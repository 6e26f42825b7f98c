"""The dashboard *Serving*: availability, errors, latency and throughput of the engines."""

from __future__ import annotations

from dashboards.board import Board, Row
from dashboards.panels import About, Query, graph, number, quantiles
from dashboards.queries import now, quantile, rate, share, total


def build_serving_board() -> Board:
    """Build the dashboard."""
    return Board(
        name="serving",
        title="kvreg: Serving",
        description="Availability, errors, latency and throughput of the engines.",
        span="3h",
        rows=[_status(), _errors(), _latency(), _throughput(), _process()],
    )


def _status() -> Row:
    return Row(
        "Status",
        [
            number(
                About(
                    "Ready engines",
                    "Engines that accept new requests. Compare with the replicas of the "
                    "StatefulSet.",
                    "short",
                    alert="KvregEngineNotReady",
                ),
                Query(total(now("kvreg_engine_ready"))),
                width=4,
            ),
            number(
                About(
                    "Draining engines",
                    "Engines that finish their requests and accept no new ones, as before a "
                    "restart.",
                    "short",
                ),
                Query(total(now("kvreg_engine_draining"))),
                width=4,
            ),
            number(
                About("Running requests", "Requests that have a lane.", "short"),
                Query(total(now("kvreg_running_requests"))),
                width=4,
            ),
            number(
                About(
                    "Queued requests",
                    "Requests that wait for a lane. They fail after queue_timeout_s.",
                    "short",
                    alert="KvregQueueTimeouts",
                ),
                Query(total(now("kvreg_queued_requests"))),
                width=4,
            ),
            number(
                About(
                    "Failed requests ratio, last hour",
                    "Accepted requests that failed, divided by all accepted requests that ended.",
                    "percentunit",
                    alert="KvregQueueTimeouts",
                ),
                Query(
                    share(
                        total(rate("kvreg_failed_requests_total", window="1h")),
                        total(rate("kvreg_requests_total", window="1h")),
                    )
                ),
                width=4,
            ),
            number(
                About(
                    "TTFT p95, last hour",
                    "Time to first token, from the arrival of the request, including the queue "
                    "time.",
                    "s",
                ),
                Query(quantile(0.95, "kvreg_ttft_seconds", window="1h")),
                width=4,
            ),
        ],
    )


def _errors() -> Row:
    return Row(
        "Errors and queueing",
        [
            graph(
                About(
                    "Failed requests by error code",
                    "Accepted requests only. request_queue_timeout: no lane became free in time. "
                    "All other codes are errors of the engine; see its log.",
                    "reqps",
                    alert="KvregQueueTimeouts",
                ),
                Query(f"{total(rate('kvreg_failed_requests_total'), by='code')} > 0", "{{code}}"),
                stacked=True,
            ),
            graph(
                About(
                    "Rejected requests by error code",
                    "Requests that were not accepted. server_overloaded: the queue is full. "
                    "draining: the engine is about to restart. Most other codes are client "
                    "errors.",
                    "reqps",
                    alert="KvregCallsRefused",
                ),
                Query(f"{total(rate('kvreg_refused_requests_total'), by='code')} > 0", "{{code}}"),
                stacked=True,
            ),
            graph(
                About(
                    "Queued and running requests",
                    "A queue that keeps growing ends in timeouts.",
                    "short",
                    alert="KvregQueueTimeouts",
                ),
                Query(total(now("kvreg_queued_requests")), "queued"),
                Query(total(now("kvreg_running_requests")), "running"),
                Query(total(now("kvreg_lanes_limit")), "lanes"),
            ),
            graph(
                About(
                    "Queue time",
                    "From arrival to admission, of requests that were admitted. Timeouts are "
                    "counted in the panel of failed requests.",
                    "s",
                    alert="KvregQueueTimeouts",
                ),
                *quantiles("kvreg_queue_seconds"),
            ),
        ],
    )


def _latency() -> Row:
    return Row(
        "Latency",
        [
            graph(
                About(
                    "Time to first token (TTFT)",
                    "From the arrival of the request, including the queue time.",
                    "s",
                ),
                *quantiles("kvreg_ttft_seconds"),
            ),
            graph(
                About(
                    "TTFT p50 by reuse path",
                    "full_reset prefills the whole prompt. The difference between it and the "
                    "other paths is the time that prefix reuse saves.",
                    "s",
                    alert="KvregReuseLow",
                ),
                Query(quantile(0.5, "kvreg_ttft_seconds", by="reuse_path"), "{{reuse_path}}"),
            ),
            graph(
                About(
                    "Inter-token latency (ITL)",
                    "Time between two tokens of one response. High values are steps that also "
                    "prefill a chunk of another request.",
                    "s",
                ),
                *quantiles("kvreg_inter_token_seconds"),
            ),
            graph(
                About(
                    "Request duration p95 by outcome",
                    "From arrival to end. cancelled: the client disconnected.",
                    "s",
                ),
                Query(quantile(0.95, "kvreg_request_seconds", by="outcome"), "{{outcome}}"),
            ),
        ],
    )


def _throughput() -> Row:
    return Row(
        "Throughput",
        [
            graph(
                About(
                    "Requests by outcome",
                    "finished, failed, or cancelled (the client disconnected).",
                    "reqps",
                ),
                Query(total(rate("kvreg_requests_total"), by="outcome"), "{{outcome}}"),
                stacked=True,
            ),
            graph(
                About(
                    "Requests by tail",
                    "The role of the last message of the prompt. user: a new turn. tool: a step "
                    "of an agent loop. assistant: the response continues that message.",
                    "reqps",
                ),
                Query(total(rate("kvreg_requests_total"), by="tail"), "{{tail}}"),
                stacked=True,
            ),
            graph(
                About(
                    "Prompt tokens computed and completion tokens",
                    "Tokens that the engine prefills and samples. Cached prompt tokens are not "
                    "included.",
                    "tokens/s",
                ),
                Query(
                    total(rate("kvreg_prompt_tokens_total", 'source="computed"')),
                    "prompt tokens, computed",
                ),
                Query(total(rate("kvreg_completion_tokens_total")), "completion tokens"),
            ),
            graph(
                About(
                    "MTP acceptance rate",
                    "Accepted draft tokens, divided by all draft tokens. No data when MTP is off.",
                    "percentunit",
                ),
                Query(
                    share(
                        total(rate("kvreg_mtp_accepted_tokens_total")),
                        total(rate("kvreg_mtp_drafted_tokens_total")),
                    ),
                    "accepted",
                ),
                maximum=1,
            ),
        ],
    )


def _process() -> Row:
    return Row(
        "Processes, request log and traces",
        [
            graph(
                About(
                    "Resident memory by engine",
                    "Host memory of the process, not device memory. A steady rise over days "
                    "indicates a leak.",
                    "bytes",
                ),
                Query(
                    total(now("process_resident_memory_bytes"), by="namespace, pod"),
                    "{{namespace}}/{{pod}}",
                ),
            ),
            graph(
                About(
                    "CPU cores used by engine", "Host CPU time of the process per second.", "short"
                ),
                Query(
                    total(rate("process_cpu_seconds_total"), by="namespace, pod"),
                    "{{namespace}}/{{pod}}",
                ),
            ),
            graph(
                About(
                    "Request log lines written and lost",
                    "Lost lines leave gaps in analyses of the log. Requests are not affected.",
                    "ops",
                    alert="KvregRequestLogErrors",
                ),
                Query(total(rate("kvreg_request_log_lines_total")), "written"),
                Query(
                    total(rate("kvreg_request_log_errors_total"), by="reason"), "lost: {{reason}}"
                ),
            ),
            graph(
                About(
                    "Trace spans by result",
                    "dropped: the collector was unreachable or too slow. Requests do not wait for "
                    "it.",
                    "ops",
                ),
                Query(total(rate("kvreg_trace_spans_total"), by="result"), "{{result}}"),
            ),
        ],
    )

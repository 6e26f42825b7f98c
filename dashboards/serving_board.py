"""The dashboard *Serving*: whether clients get answers, how fast, and what stands in their way."""

from __future__ import annotations

from dashboards.board import Board, Row
from dashboards.panels import About, Query, graph, number, quantiles
from dashboards.queries import now, quantile, rate, share, total


def build_serving_board() -> Board:
    """Build the dashboard."""
    return Board(
        name="serving",
        title="kvreg: Serving",
        description="Do clients get answers, how fast, and what stands in their way?",
        span="3h",
        rows=[_now(), _errors(), _latency(), _throughput(), _process()],
    )


def _now() -> Row:
    return Row(
        "Is it serving?",
        [
            number(
                About(
                    "Engines that take requests",
                    "Engines that say they are ready. Compare with how many there should be.",
                    "short",
                    alert="KvregEngineNotReady",
                ),
                Query(total(now("kvreg_engine_ready"))),
                width=4,
            ),
            number(
                About(
                    "Engines that are draining",
                    "They finish what they have and take nothing new, as before a restart.",
                    "short",
                ),
                Query(total(now("kvreg_engine_draining"))),
                width=4,
            ),
            number(
                About("Requests on a lane", "Requests that are being computed.", "short"),
                Query(total(now("kvreg_running_requests"))),
                width=4,
            ),
            number(
                About(
                    "Requests that wait for a lane",
                    "They are given up when they wait longer than queue_timeout_s.",
                    "short",
                    alert="KvregQueueTimeouts",
                ),
                Query(total(now("kvreg_queued_requests"))),
                width=4,
            ),
            number(
                About(
                    "Requests that failed, last hour",
                    "Accepted requests that ended with an error, of all that ended.",
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
                    "First token: 95 % come within, last hour",
                    "From the arrival of a request, the wait for a lane included.",
                    "s",
                ),
                Query(quantile(0.95, "kvreg_ttft_seconds", window="1h")),
                width=4,
            ),
        ],
    )


def _errors() -> Row:
    return Row(
        "Is anybody turned away?",
        [
            graph(
                About(
                    "Accepted requests that failed, by error",
                    "request_queue_timeout: no lane became free in time. The others are errors of "
                    "the engine; its log says more.",
                    "reqps",
                    alert="KvregQueueTimeouts",
                ),
                Query(f"{total(rate('kvreg_failed_requests_total'), by='code')} > 0", "{{code}}"),
                stacked=True,
            ),
            graph(
                About(
                    "Calls that were refused at the door, by error",
                    "server_overloaded: the queue is full. draining: about to restart. Most others "
                    "are mistakes of clients.",
                    "reqps",
                    alert="KvregCallsRefused",
                ),
                Query(f"{total(rate('kvreg_refused_requests_total'), by='code')} > 0", "{{code}}"),
                stacked=True,
            ),
            graph(
                About(
                    "Requests waiting for a lane, and running",
                    "A queue that only grows ends in timeouts.",
                    "short",
                    alert="KvregQueueTimeouts",
                ),
                Query(total(now("kvreg_queued_requests")), "waiting"),
                Query(total(now("kvreg_running_requests")), "running"),
                Query(total(now("kvreg_lanes_limit")), "lanes"),
            ),
            graph(
                About(
                    "Time that requests waited for a lane",
                    "Of those that got one. Timeouts are in the panel of failed requests.",
                    "s",
                    alert="KvregQueueTimeouts",
                ),
                *quantiles("kvreg_queue_seconds"),
            ),
        ],
    )


def _latency() -> Row:
    return Row(
        "How fast are answers?",
        [
            graph(
                About(
                    "Time to the first token",
                    "From the arrival of a request, the wait for a lane included.",
                    "s",
                ),
                *quantiles("kvreg_ttft_seconds"),
            ),
            graph(
                About(
                    "Time to the first token, by where the computation began (half are faster)",
                    "full_reset computes the whole prompt. The distance to the others is what "
                    "keeping conversations is worth.",
                    "s",
                    alert="KvregReuseLow",
                ),
                Query(quantile(0.5, "kvreg_ttft_seconds", by="reuse_path"), "{{reuse_path}}"),
            ),
            graph(
                About(
                    "Time between two tokens of an answer",
                    "Long ones are steps in which other requests' prompts are computed.",
                    "s",
                ),
                *quantiles("kvreg_inter_token_seconds"),
            ),
            graph(
                About(
                    "Time of whole requests, by how they ended (95 % are faster)",
                    "From arrival to end. cancelled: the client left.",
                    "s",
                ),
                Query(quantile(0.95, "kvreg_request_seconds", by="outcome"), "{{outcome}}"),
            ),
        ],
    )


def _throughput() -> Row:
    return Row(
        "How much is served?",
        [
            graph(
                About(
                    "Requests that ended, by how",
                    "finished, failed, or cancelled: the client left.",
                    "reqps",
                ),
                Query(total(rate("kvreg_requests_total"), by="outcome"), "{{outcome}}"),
                stacked=True,
            ),
            graph(
                About(
                    "Requests, by who spoke last in the prompt",
                    "user: a turn. tool: a step of an agent. assistant: an answer is gone on with.",
                    "reqps",
                ),
                Query(total(rate("kvreg_requests_total"), by="tail"), "{{tail}}"),
                stacked=True,
            ),
            graph(
                About(
                    "Tokens of prompts computed, and tokens answered",
                    "The work of the engine. Reused tokens are no work and are not in here.",
                    "tokens/s",
                ),
                Query(
                    total(rate("kvreg_prompt_tokens_total", 'source="computed"')),
                    "prompts, computed",
                ),
                Query(total(rate("kvreg_completion_tokens_total")), "answers"),
            ),
            graph(
                About(
                    "Drafted tokens that were accepted (MTP)",
                    "Of the tokens that the draft head proposed. Nothing where MTP is off.",
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
        "Are the processes and their records well?",
        [
            graph(
                About(
                    "Memory of each engine's process",
                    "Of the host, not of cards. A steady rise over days is a leak.",
                    "bytes",
                ),
                Query(
                    total(now("process_resident_memory_bytes"), by="namespace, pod"),
                    "{{namespace}}/{{pod}}",
                ),
            ),
            graph(
                About("Processor cores that each engine uses", "Of the host.", "short"),
                Query(
                    total(rate("process_cpu_seconds_total"), by="namespace, pod"),
                    "{{namespace}}/{{pod}}",
                ),
            ),
            graph(
                About(
                    "Lines of the request log: written, and lost",
                    "Decisions are made from this log. A lost line is gone; serving goes on.",
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
                    "Trace spans: sent, and lost",
                    "dropped: the collector was not there, or too slow. Serving does not wait.",
                    "ops",
                ),
                Query(total(rate("kvreg_trace_spans_total"), by="result"), "{{result}}"),
            ),
        ],
    )

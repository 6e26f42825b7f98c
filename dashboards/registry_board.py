"""The dashboard *Registry*: prompt reuse, state moves, evictions and capacity."""

from __future__ import annotations

from dashboards.board import Board, Row
from dashboards.panels import About, AnyPanel, Query, graph, number, quantiles
from dashboards.queries import increase, now, rate, share, total

_RATIO = (
    "Requests whose prompt ends with an assistant message and whose sequence was attached from the "
    "registry, divided by all requests. Only these can use the current state of an entry, so a low "
    "ratio means that current_state=drop costs little. Summed over all selected engines."
)


def build_registry_board() -> Board:
    """Build the dashboard."""
    return Board(
        name="registry",
        title="kvreg: Registry",
        description="Prompt reuse, state moves, evictions and capacity of the registry.",
        span="24h",
        rows=[_ratio(), _reuse(), _moves(), _evictions(), _capacity(), _cold_starts()],
    )


def _ratio() -> Row:
    return Row(
        "Registry hits with assistant tail",
        [
            _ratio_now("hour", "1h"),
            _ratio_now("day", "1d"),
            number(
                About(
                    "Cached prompt tokens ratio, last hour",
                    "Prompt tokens reused from a lane, an entry or an anchor, divided by all "
                    "prompt tokens. A low ratio means that most prompts are prefilled from "
                    "position 0.",
                    "percentunit",
                    alert="KvregReuseLow",
                ),
                Query(
                    share(
                        total(rate("kvreg_prompt_tokens_total", 'source!="computed"', window="1h")),
                        total(rate("kvreg_prompt_tokens_total", window="1h")),
                    )
                ),
            ),
            number(
                About(
                    "Requests, last hour",
                    "Accepted requests that ended. With few requests, the ratios in this row are "
                    "not meaningful.",
                    "short",
                ),
                Query(total(increase("kvreg_requests_total", window="1h"))),
            ),
            _ratio_over_time("hour", "1h", span="2d"),
            _ratio_over_time("day", "1d", span="30d"),
        ],
    )


def _ratio_now(name: str, window: str) -> AnyPanel:
    about = About(f"Registry hit ratio with assistant tail, last {name}", _RATIO, "percentunit")
    return number(about, Query(_ratio_query(window)))


def _ratio_over_time(name: str, window: str, *, span: str) -> AnyPanel:
    about = About(
        f"Registry hit ratio with assistant tail, per {name}",
        f"{_RATIO} Each bar covers the preceding {name}.",
        "percentunit",
    )
    query = Query(_ratio_query(window), f"preceding {name}", step=window)
    return graph(about, query, bars=True, span=span)


def _ratio_query(window: str) -> str:
    return share(
        total(now(f"namespace_pod:kvreg_assistant_registry_hits:rate{window}")),
        total(now(f"namespace_pod:kvreg_requests:rate{window}")),
    )


def _reuse() -> Row:
    return Row(
        "Prompt reuse",
        [
            graph(
                About(
                    "Requests by reuse path",
                    "full_reset: prefill from 0. append_frontier: after the last token of a kept "
                    "sequence. restore_turn_checkpoint, restore_response_checkpoint: from a "
                    "checkpoint. restore_anchor: from the end of a shared head. none: the request "
                    "never had a lane.",
                    "reqps",
                    alert="KvregReuseLow",
                ),
                Query(
                    total(rate("kvreg_requests_total"), by="reuse_path"),
                    "{{reuse_path}}",
                ),
                stacked=True,
            ),
            graph(
                About(
                    "Prompt tokens by source",
                    "computed: tokens that were prefilled. All other sources are cached tokens.",
                    "tokens/s",
                    alert="KvregReuseLow",
                ),
                Query(total(rate("kvreg_prompt_tokens_total"), by="source"), "{{source}}"),
                stacked=True,
            ),
            graph(
                About(
                    "Cached prompt tokens ratio by engine",
                    "An engine far below the others receives sessions that it has not served "
                    "before, or has just started.",
                    "percentunit",
                    alert="KvregReuseLow",
                ),
                Query(
                    share(
                        total(
                            rate("kvreg_prompt_tokens_total", 'source!="computed"'),
                            by="namespace, pod",
                        ),
                        total(rate("kvreg_prompt_tokens_total"), by="namespace, pod"),
                    ),
                    "{{namespace}}/{{pod}}",
                ),
                maximum=1,
            ),
            graph(
                About(
                    "Idle time of reused sequences",
                    "From the end of the last request of a sequence to the request that reuses "
                    "it. Keeping sequences longer than the p99 gains little.",
                    "s",
                ),
                *quantiles("kvreg_reuse_gap_seconds"),
            ),
        ],
    )


def _moves() -> Row:
    return Row(
        "State moves",
        [
            graph(
                About(
                    "Attaches by source and kind",
                    "registry: the frontier, turn_checkpoint or response_checkpoint of an entry. "
                    "anchor: a copy of a shared head.",
                    "ops",
                ),
                Query(total(rate("kvreg_attaches_total"), by="from, kind"), "{{from}}: {{kind}}"),
                stacked=True,
            ),
            graph(
                About(
                    "Detaches by result",
                    "entry: moved to an entry that was empty or whose sequence was evicted. "
                    "exchange: swapped with the attached sequence. dropped: discarded.",
                    "ops",
                    alert="KvregRegistryThrash",
                ),
                Query(total(rate("kvreg_detaches_total"), by="result"), "{{result}}"),
                stacked=True,
            ),
            graph(
                About(
                    "Attach duration",
                    "Time to copy the states of an admission that attaches a sequence. KV pages "
                    "are not copied.",
                    "s",
                ),
                *quantiles("kvreg_attach_seconds"),
            ),
            graph(
                About(
                    "Detach duration",
                    "Time to copy the states of an admission that detaches a sequence. KV pages "
                    "are not copied.",
                    "s",
                ),
                *quantiles("kvreg_detach_seconds"),
            ),
        ],
    )


def _evictions() -> Row:
    return Row(
        "Evictions and their cost",
        [
            graph(
                About(
                    "Evictions by reason",
                    "entry_needed, pages_needed, displaced, anchor_needed and quota: lack of "
                    "room. expired: the time to live is over. requested: deleted by a client. "
                    "failed: moving or running the sequence failed.",
                    "ops",
                    alert="KvregRegistryThrash",
                ),
                Query(total(rate("kvreg_evictions_total"), by="reason"), "{{reason}}"),
                stacked=True,
            ),
            graph(
                About(
                    "Evicted bytes by reason",
                    "States and pages of the evicted sequences. Shared pages are counted in full.",
                    "binBps",
                ),
                Query(total(rate("kvreg_evicted_bytes_total"), by="reason"), "{{reason}}"),
                stacked=True,
            ),
            graph(
                About(
                    "Tokens recomputed because of current_state=drop",
                    "Prompt tokens that the current state of an entry would have saved. Always 0 "
                    "with current_state=keep.",
                    "tokens/s",
                ),
                Query(total(rate("kvreg_current_state_regret_tokens_total")), "recomputed"),
            ),
            graph(
                About(
                    "Ratio of tokens recomputed because of current_state=drop",
                    "The same tokens, divided by all computed prompt tokens: the prefill that "
                    "current_state=keep would save.",
                    "percentunit",
                ),
                Query(
                    share(
                        total(rate("kvreg_current_state_regret_tokens_total")),
                        total(rate("kvreg_prompt_tokens_total", 'source="computed"')),
                    ),
                    "recomputed / computed",
                ),
            ),
            graph(
                About(
                    "Forks, captured anchors, and pins ended early",
                    "Forks: copies kept when a request continues a sequence from a position "
                    "inside it. Anchors: shared heads that were stored. Pins: ended before their "
                    "time, because the sequence grew too large or a quota was set.",
                    "ops",
                ),
                Query(total(rate("kvreg_forks_total")), "forks"),
                Query(total(rate("kvreg_anchors_captured_total")), "captured anchors"),
                Query(total(rate("kvreg_pins_ended_total")), "pins ended early"),
                width=24,
            ),
        ],
    )


def _capacity() -> Row:
    return Row(
        "Capacity",
        [
            _usage_graph(
                "Registry entries in use",
                "Normally all are in use: a new sequence evicts the one of lowest value.",
                "kvreg_registry_entries",
                'state="kept"',
            ),
            _usage_graph(
                "Anchors in use",
                "Anchor places that hold the head of a prompt.",
                "kvreg_anchors",
                'state="kept"',
            ),
            graph(
                About(
                    "Lanes by state",
                    "empty; retained: idle, with a kept sequence; prefill; decode. When all lanes "
                    "are in prefill or decode, new requests are queued.",
                    "short",
                    alert="KvregQueueTimeouts",
                ),
                Query(total(now("kvreg_lanes"), by="state"), "{{state}}"),
                Query(total(now("kvreg_lanes_limit")), "limit"),
            ),
            _usage_graph(
                "State slots in use",
                "Slots for recurrent and convolution states of lanes, entries and anchors.",
                "kvreg_state_slots",
                'state="used"',
                limit=total(now("kvreg_state_slots")),
            ),
            graph(
                About(
                    "KV page usage by pool",
                    "Referenced pages of 64 tokens, divided by all pages. Near 1, kept sequences "
                    "are evicted when running requests need pages.",
                    "percentunit",
                    alert="KvregRegistryThrash",
                ),
                Query(
                    share(
                        total(now("kvreg_pages", 'state="referenced"'), by="pool"),
                        total(now("kvreg_pages_limit"), by="pool"),
                    ),
                    "{{pool}}",
                ),
                maximum=1,
                width=24,
            ),
        ],
    )


def _usage_graph(
    title: str, description: str, metric: str, used: str, *, limit: str | None = None
) -> AnyPanel:
    return graph(
        About(title, description, "short"),
        Query(total(now(metric, used)), "in use"),
        Query(limit or total(now(f"{metric}_limit")), "limit"),
    )


def _cold_starts() -> Row:
    recent = "(namespace_pod:kvreg_engine_age:seconds < 3600)"
    full_reset = rate("kvreg_requests_total", 'reuse_path="full_reset"')
    return Row(
        "Cold starts",
        [
            graph(
                About(
                    "Engine uptime",
                    "A drop to 0 is a restart, which empties the registry: the next prompt of "
                    "each session is prefilled from position 0.",
                    "s",
                    alert="KvregEngineVanished",
                ),
                Query(
                    total(now("namespace_pod:kvreg_engine_age:seconds"), by="namespace, pod"),
                    "{{namespace}}/{{pod}}",
                ),
            ),
            graph(
                About(
                    "Full reset ratio: uptime below one hour, and all engines",
                    "If only recently started engines are high, the ratio recovers by itself. "
                    "Otherwise see the row Prompt reuse.",
                    "percentunit",
                    alert="KvregReuseLow",
                ),
                Query(
                    share(
                        total(f"{full_reset} and on (namespace, pod) {recent}"),
                        total(f"{rate('kvreg_requests_total')} and on (namespace, pod) {recent}"),
                    ),
                    "uptime below 1 h",
                ),
                Query(
                    share(total(full_reset), total(rate("kvreg_requests_total"))),
                    "all engines",
                ),
                maximum=1,
            ),
        ],
    )

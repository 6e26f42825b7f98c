"""The dashboard *Registry*: prompt reuse, lane changes, evictions and capacity."""

from __future__ import annotations

from dashboards.board import Board, Row
from dashboards.panels import About, AnyPanel, Query, graph, number, quantiles
from dashboards.queries import increase, now, rate, share, total

_RATIO = (
    "Requests whose prompt ends with an assistant message and which resumed a session that was "
    "displaced from its lane, divided by all requests. Only these can use the frontier of such a "
    "session, so a low ratio means that current_state=drop costs little. Summed over all selected "
    "engines."
)


def build_registry_board() -> Board:
    """Build the dashboard."""
    return Board(
        name="registry",
        title="kvreg: Registry",
        description="Prompt reuse, lane changes, evictions and capacity of the registry.",
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
                    "Prompt tokens that were not computed, since a kept state was resumed, divided "
                    "by all prompt tokens. A low ratio means that most prompts are prefilled from "
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
                    "full_reset: prefill from 0. append_frontier: from the end of an answer. "
                    "restore_turn_checkpoint, restore_response_checkpoint: from a boundary. "
                    "restore_anchor: from the end of a shared head. restore_branch_point: from "
                    "where a prompt left a kept path. none: the request never had a lane.",
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
                    "Idle time of resumed states",
                    "From the last use of a state to the request that resumes it. Keeping states "
                    "longer than the p99 gains little.",
                    "s",
                ),
                *quantiles("kvreg_reuse_gap_seconds"),
            ),
        ],
    )


def _moves() -> Row:
    return Row(
        "Lane changes",
        [
            graph(
                About(
                    "Attaches by source and kind",
                    "Requests that resumed a state of a session that was not the last one on "
                    "their lane. registry: a displaced session. anchor: a shared head or a shared "
                    "branch point.",
                    "ops",
                ),
                Query(total(rate("kvreg_attaches_total"), by="from, kind"), "{{from}}: {{kind}}"),
                stacked=True,
            ),
            graph(
                About(
                    "Detaches by result",
                    "Sessions that lost their lane to another one. kept: states of the session "
                    "are still kept. dropped: none is.",
                    "ops",
                    alert="KvregRegistryThrash",
                ),
                Query(total(rate("kvreg_detaches_total"), by="result"), "{{result}}"),
                stacked=True,
            ),
            graph(
                About(
                    "Attach duration",
                    "Time to copy the state that a request resumes, and its last page if that is "
                    "not full. Other KV pages are not copied.",
                    "s",
                ),
                *quantiles("kvreg_attach_seconds"),
            ),
            graph(
                About(
                    "Pins ended early",
                    "Pins that ended before their time, because the session grew too large or a "
                    "quota was set.",
                    "ops",
                ),
                Query(total(rate("kvreg_pins_ended_total")), "pins ended early"),
            ),
        ],
    )


def _evictions() -> Row:
    return Row(
        "Evictions and their cost",
        [
            graph(
                About(
                    "States kept by kind",
                    "frontier: end of an answer. turn, round, response: boundaries that the next "
                    "prompt of the session repeats. head: end of a shared head. branch_point: "
                    "where a prompt left a kept path. When all slots are in use, as many states "
                    "are freed.",
                    "ops",
                ),
                Query(total(rate("kvreg_states_kept_total"), by="kind"), "{{kind}}"),
                stacked=True,
            ),
            graph(
                About(
                    "Evictions by reason",
                    "Kept states that were freed. slot_needed, pages_needed, quota: lack of room; "
                    "slot_needed also if the request that resumes a state takes over its slot. "
                    "displaced: with the lane of its session. superseded: its session went on "
                    "(policy none). expired: the time to live is over. requested: deleted by a "
                    "client. failed: resuming it failed.",
                    "ops",
                    alert="KvregRegistryThrash",
                ),
                Query(total(rate("kvreg_evictions_total"), by="reason"), "{{reason}}"),
                stacked=True,
            ),
            graph(
                About(
                    "Evicted bytes by reason",
                    "The slots of the freed states, and the pages that only they held.",
                    "binBps",
                ),
                Query(total(rate("kvreg_evicted_bytes_total"), by="reason"), "{{reason}}"),
                stacked=True,
            ),
            graph(
                About(
                    "Tokens recomputed because of current_state=drop",
                    "Prompt tokens that the frontier of a displaced session would have saved. "
                    "Always 0 with current_state=keep.",
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
                width=24,
            ),
        ],
    )


def _capacity() -> Row:
    return Row(
        "Capacity",
        [
            graph(
                About(
                    "Kept sessions by place",
                    "lane: last on its lane. registry: displaced from it; as many as entries are "
                    "surely kept, and more where slots are left. shared: heads and branch points "
                    "that belong to no session.",
                    "short",
                    alert="KvregRegistryThrash",
                ),
                Query(total(now("kvreg_kept_sessions"), by="place"), "{{place}}"),
                Query(total(now("kvreg_registry_entries_limit")), "entries"),
            ),
            graph(
                About(
                    "Kept states by kind",
                    "frontier: end of an answer. turn, round, response: boundaries. head: end of "
                    "a shared head. branch_point: where a prompt left a kept path.",
                    "short",
                ),
                Query(total(now("kvreg_kept_states"), by="kind"), "{{kind}}"),
                stacked=True,
            ),
            graph(
                About(
                    "State slots by state",
                    "Slots for recurrent and convolution states. working: of running requests. "
                    "kept: of kept states. Normally none is free: a new state takes the slot of "
                    "the one of lowest value.",
                    "short",
                ),
                Query(total(now("kvreg_state_slots"), by="state"), "{{state}}"),
                stacked=True,
            ),
            graph(
                About(
                    "Lanes by state",
                    "empty; retained: idle, and its last session is kept; prefill; decode. When "
                    "all lanes are in prefill or decode, new requests are queued.",
                    "short",
                    alert="KvregQueueTimeouts",
                ),
                Query(total(now("kvreg_lanes"), by="state"), "{{state}}"),
                Query(total(now("kvreg_lanes_limit")), "limit"),
            ),
            graph(
                About(
                    "KV page usage by pool",
                    "Referenced pages of 64 tokens, divided by all pages. Near 1, kept states are "
                    "freed when running requests need pages.",
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

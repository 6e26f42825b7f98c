"""The dashboard *Registry*: whether conversations come back warm, and what keeping them costs."""

from __future__ import annotations

from dashboards.board import Board, Row
from dashboards.panels import About, AnyPanel, Query, graph, number, quantiles
from dashboards.queries import increase, now, rate, share, total

_RATIO = (
    "Requests whose prompt ends with an assistant's message and whose sequence came back from the "
    "registry, of all requests. Only these use the current state of an entry: where they are rare, "
    "dropping it costs little. A sum over a sum, over all selected engines."
)


def build_registry_board() -> Board:
    """Build the dashboard."""
    return Board(
        name="registry",
        title="kvreg: Registry",
        description="Do conversations that were interrupted come back warm, and at what price?",
        span="24h",
        rows=[_ratio(), _reuse(), _moves(), _losses(), _places(), _cold()],
    )


def _ratio() -> Row:
    return Row(
        "How often is a current state in the registry really used?",
        [
            _ratio_now("hour", "1h"),
            _ratio_now("day", "1d"),
            number(
                About(
                    "Prompt tokens that were reused, last hour",
                    "Tokens of prompts that came from a lane, the registry or an anchor, of all "
                    "tokens of prompts. When it is low, most conversations are computed anew.",
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
                    "Requests that ended, last hour",
                    "When these are few, the ratios beside this number mean little.",
                    "short",
                ),
                Query(total(increase("kvreg_requests_total", window="1h"))),
            ),
            _ratio_over_time("hour", "1h", span="2d"),
            _ratio_over_time("day", "1d", span="30d"),
        ],
    )


def _ratio_now(name: str, window: str) -> AnyPanel:
    about = About(
        f"Continued answers that came back from the registry, last {name}", _RATIO, "percentunit"
    )
    return number(about, Query(_ratio_query(window)))


def _ratio_over_time(name: str, window: str, *, span: str) -> AnyPanel:
    about = About(
        f"Continued answers that came back from the registry, by the {name}",
        f"{_RATIO} Each bar is the {name} before it.",
        "percentunit",
    )
    query = Query(_ratio_query(window), f"in the {name} before", step=window)
    return graph(about, query, bars=True, span=span)


def _ratio_query(window: str) -> str:
    return share(
        total(now(f"namespace_pod:kvreg_assistant_registry_hits:rate{window}")),
        total(now(f"namespace_pod:kvreg_requests:rate{window}")),
    )


def _reuse() -> Row:
    return Row(
        "Do conversations come back warm?",
        [
            graph(
                About(
                    "Where the computation of prompts began",
                    "full_reset: from nothing. append_frontier: behind the last token. "
                    "restore_turn_checkpoint, restore_response_checkpoint: at a boundary before "
                    "it. restore_anchor: behind a beginning that conversations share. none: the "
                    "request never had a lane.",
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
                    "Prompt tokens, by where they came from",
                    "computed is the work; everything else was kept and is not computed again.",
                    "tokens/s",
                    alert="KvregReuseLow",
                ),
                Query(total(rate("kvreg_prompt_tokens_total"), by="source"), "{{source}}"),
                stacked=True,
            ),
            graph(
                About(
                    "Prompt tokens that were reused, by engine",
                    "An engine far below the others gets conversations that it has not seen, or "
                    "has started a short time ago.",
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
                    "How long conversations had been at rest when they came back",
                    "From the end of the last request of what is reused to the beginning of the "
                    "next. Keeping things longer than the slowest of these buys nothing.",
                    "s",
                ),
                *quantiles("kvreg_reuse_gap_seconds"),
            ),
        ],
    )


def _moves() -> Row:
    return Row(
        "Does moving conversations work, and is it fast?",
        [
            graph(
                About(
                    "Conversations brought back to a lane, by what came",
                    "From the registry: frontier, turn_checkpoint or response_checkpoint. From an "
                    "anchor: a copy of a shared beginning.",
                    "ops",
                ),
                Query(total(rate("kvreg_attaches_total"), by="from, kind"), "{{from}}: {{kind}}"),
                stacked=True,
            ),
            graph(
                About(
                    "Conversations that had to leave their lane, by what became of them",
                    "entry: kept in an empty entry or in place of something less valuable. "
                    "exchange: swapped with the one that came. dropped: not kept.",
                    "ops",
                    alert="KvregRegistryThrash",
                ),
                Query(total(rate("kvreg_detaches_total"), by="result"), "{{result}}"),
                stacked=True,
            ),
            graph(
                About(
                    "Time to bring states back to a lane (attach)",
                    "Copying the states of an admission that attached. KV pages do not move.",
                    "s",
                ),
                *quantiles("kvreg_attach_seconds"),
            ),
            graph(
                About(
                    "Time to move states to an entry (detach)",
                    "Copying the states of an admission that detached. KV pages do not move.",
                    "s",
                ),
                *quantiles("kvreg_detach_seconds"),
            ),
        ],
    )


def _losses() -> Row:
    return Row(
        "What is given up, and what does that cost?",
        [
            graph(
                About(
                    "Kept conversations that were given up, by reason",
                    "entry_needed, pages_needed, displaced, anchor_needed and quota are want of "
                    "room. expired and requested are what somebody asked for. failed is an error.",
                    "ops",
                    alert="KvregRegistryThrash",
                ),
                Query(total(rate("kvreg_evictions_total"), by="reason"), "{{reason}}"),
                stacked=True,
            ),
            graph(
                About(
                    "Memory that was given up, by reason",
                    "Bytes of states and pages of what was given up.",
                    "binBps",
                ),
                Query(total(rate("kvreg_evicted_bytes_total"), by="reason"), "{{reason}}"),
                stacked=True,
            ),
            graph(
                About(
                    "Tokens computed again only because current states are dropped",
                    "The regret of current_state = drop. Always 0 where current states are kept.",
                    "tokens/s",
                ),
                Query(total(rate("kvreg_current_state_regret_tokens_total")), "computed again"),
            ),
            graph(
                About(
                    "The same, as a share of all computed prompt tokens",
                    "What keeping current states would save of the work on prompts.",
                    "percentunit",
                ),
                Query(
                    share(
                        total(rate("kvreg_current_state_regret_tokens_total")),
                        total(rate("kvreg_prompt_tokens_total", 'source="computed"')),
                    ),
                    "of computed tokens",
                ),
            ),
            graph(
                About(
                    "Copies kept for other branches, anchors, and pins that ended early",
                    "Forks: a conversation that went on in two ways. Anchors: beginnings that "
                    "were kept for others. Pins: those that would have left too little for others.",
                    "ops",
                ),
                Query(total(rate("kvreg_forks_total")), "forks"),
                Query(total(rate("kvreg_anchors_captured_total")), "anchors"),
                Query(total(rate("kvreg_pins_ended_total")), "pins that ended early"),
                width=24,
            ),
        ],
    )


def _places() -> Row:
    return Row(
        "How full are the places?",
        [
            _places_graph(
                "Registry entries that hold a conversation",
                "All taken is normal: an entry is given up when a better one comes.",
                "kvreg_registry_entries",
                'state="kept"',
            ),
            _places_graph(
                "Anchor places that hold a shared beginning",
                "Beginnings of prompts that several conversations share.",
                "kvreg_anchors",
                'state="kept"',
            ),
            graph(
                About(
                    "Lanes, by what they do",
                    "empty, retained (nothing runs, and a conversation rests there), prefill, "
                    "decode. All of them in prefill or decode means that others wait.",
                    "short",
                    alert="KvregQueueTimeouts",
                ),
                Query(total(now("kvreg_lanes"), by="state"), "{{state}}"),
                Query(total(now("kvreg_lanes_limit")), "all"),
            ),
            _places_graph(
                "State slots in use",
                "Copies of recurrent states: of lanes, entries and anchors.",
                "kvreg_state_slots",
                'state="used"',
                limit=total(now("kvreg_state_slots")),
            ),
            graph(
                About(
                    "KV pages in use, by pool",
                    "Of 64 tokens each. Near 1, what is kept goes when something longer runs.",
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


def _places_graph(
    title: str, description: str, metric: str, taken: str, *, limit: str | None = None
) -> AnyPanel:
    return graph(
        About(title, description, "short"),
        Query(total(now(metric, taken)), "taken"),
        Query(limit or total(now(f"{metric}_limit")), "all"),
    )


def _cold() -> Row:
    young = "(namespace_pod:kvreg_engine_age:seconds < 3600)"
    from_nothing = rate("kvreg_requests_total", 'reuse_path="full_reset"')
    return Row(
        "Is it only cold after a roll?",
        [
            graph(
                About(
                    "Time since each engine started (a drop is a restart)",
                    "A restart empties the registry: conversations are computed from nothing once.",
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
                    "Requests computed from nothing: on engines younger than an hour, and on all",
                    "When only the young ones are high, it passes. Else see the row about reuse.",
                    "percentunit",
                    alert="KvregReuseLow",
                ),
                Query(
                    share(
                        total(f"{from_nothing} and on (namespace, pod) {young}"),
                        total(f"{rate('kvreg_requests_total')} and on (namespace, pod) {young}"),
                    ),
                    "younger than an hour",
                ),
                Query(
                    share(total(from_nothing), total(rate("kvreg_requests_total"))),
                    "all",
                ),
                maximum=1,
            ),
        ],
    )

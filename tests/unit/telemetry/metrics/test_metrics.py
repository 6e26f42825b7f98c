"""All metrics exist from the start, and each event changes exactly the right ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

import pytest
from prometheus_client import CollectorRegistry
from tests.unit.telemetry.ended_requests import FINISHED

from kvreg_service.core import errors
from kvreg_service.core import events
from kvreg_service.core.errors import KvregError
from kvreg_service.core.ids import AnchorId, EntryId, LaneId, RequestId, SequenceId
from kvreg_service.core.labels import Attach, EvictionReason, Outcome, ReusePath, Tail
from kvreg_service.engine.interface.record import RequestRecord
from kvreg_service.engine.interface.snapshot import RegistrySnapshot
from kvreg_service.telemetry.metrics.metrics import FAILURES, Metrics
from kvreg_service.testing.fake_engine import FakeEngine

Series = tuple[str, frozenset[tuple[str, str]]]
Values = dict[Series, float]

LANE, OTHER_LANE, ENTRY = LaneId(0), LaneId(1), EntryId(0)
REQUEST, SEQUENCE = RequestId("r"), SequenceId(7)
DETACHED = events.Detached(SEQUENCE, LANE, ENTRY, held_bytes=100)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(CollectorRegistry())


def values_of(metrics: Metrics) -> Values:
    """All series except buckets and ``_created``."""
    return {
        (sample.name.removeprefix("kvreg_"), frozenset(sample.labels.items())): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if not sample.name.endswith(("_created", "_bucket"))
    }


def series(name: str, **labels: str) -> Series:
    return name, frozenset((key.removesuffix("_"), value) for key, value in labels.items())


def moved(metrics: Metrics, *actions: Callable[[], None]) -> Values:
    """The increase of each series that changed."""
    before = values_of(metrics)
    for action in actions:
        action()
    after = values_of(metrics)
    return {key: value - before[key] for key, value in after.items() if value != before[key]}


def one_more(moves: Values, name: str) -> set[Series]:
    """The series of a family that increased, each by 1."""
    of_family = {key: value for key, value in moves.items() if key[0] == name}
    assert set(of_family.values()) <= {1.0}
    return set(of_family)


QUEUED = replace(
    FINISHED,
    outcome=Outcome.CANCELLED,
    finish_reason=None,
    output_ids=(),
    admission=None,
    admitted_at_s=None,
    prepared_at_s=None,
    first_token_at_s=None,
)


def admitted(path: ReusePath, attach: Attach, cached: int) -> RequestRecord:
    gap_s = 8.0 if cached else None
    admission = replace(
        FINISHED.admission, reuse_path=path, attach=attach, cached_tokens=cached, gap_s=gap_s
    )
    return replace(FINISHED, admission=admission)


COLD = admitted(ReusePath.FULL_RESET, Attach.NONE, 0)


# All exist from the start.


def running_errors(base: type[KvregError] = KvregError) -> Iterator[type[KvregError]]:
    yield base
    for kind in base.__subclasses__():
        if kind is not errors.ConfigurationError:
            yield from running_errors(kind)


KEPT_PATHS = ("append_frontier", "restore_turn_checkpoint", "restore_response_checkpoint")
REQUESTS_THAT_OCCUR = {
    *product(["none"], ["none"], Tail, ["failed", "cancelled"]),
    *product(["full_reset"], ["none"], Tail, Outcome),
    *product(KEPT_PATHS, ["none", "registry"], Tail, Outcome),
    *product(["restore_anchor"], ["anchor"], Tail, Outcome),
}
REASONS = {(reason,) for reason in EvictionReason}
CODES = {(kind.code,) for kind in running_errors()}
PATHS = {(path,) for path in ReusePath}
CHILDREN: dict[str, tuple[tuple[str, ...], set[tuple[str, ...]]]] = {
    "requests_total": (("reuse_path", "attach", "tail", "outcome"), REQUESTS_THAT_OCCUR),
    "failed_requests_total": (("code",), CODES),
    "refused_requests_total": (
        ("code",),
        {(kind.code,) for kind in running_errors() if kind not in FAILURES} | {("internal_error",)},
    ),
    "prompt_tokens_total": (
        ("source",),
        {(source,) for source in ("computed", "lane", "registry", "anchor", "host", "disk")},
    ),
    "completion_tokens_total": ((), {()}),
    "current_state_regret_tokens_total": ((), {()}),
    "mtp_drafted_tokens_total": ((), {()}),
    "mtp_accepted_tokens_total": ((), {()}),
    "detaches_total": (("result",), {("entry",), ("exchange",), ("dropped",)}),
    "attaches_total": (
        ("from", "kind"),
        {
            ("registry", "frontier"),
            ("registry", "turn_checkpoint"),
            ("registry", "response_checkpoint"),
            ("anchor", "anchor"),
        },
    ),
    "forks_total": ((), {()}),
    "anchors_captured_total": ((), {()}),
    "pins_ended_total": ((), {()}),
    "evictions_total": (("reason",), REASONS),
    "evicted_bytes_total": (("reason",), REASONS),
    "request_log_lines_total": ((), {()}),
    "request_log_errors_total": (("reason",), {("write",), ("queue_full",)}),
    "trace_spans_total": (("result",), {("exported",), ("dropped",)}),
    "queue_seconds_count": ((), {()}),
    "ttft_seconds_count": (("reuse_path",), PATHS),
    "inter_token_seconds_count": ((), {()}),
    "attach_seconds_count": ((), {()}),
    "detach_seconds_count": ((), {()}),
    "reuse_gap_seconds_count": ((), {()}),
    "request_seconds_count": (("outcome",), {(outcome,) for outcome in Outcome}),
}


@pytest.mark.parametrize("name", CHILDREN)
def test_all_children_exist_from_the_start(metrics: Metrics, name: str) -> None:
    labels, children = CHILDREN[name]
    expected = {(name, frozenset(zip(labels, child, strict=True))) for child in children}
    assert {key for key in values_of(metrics) if key[0] == name} == expected


def test_there_is_nothing_else(metrics: Metrics) -> None:
    names = {name for name, _ in values_of(metrics) if not name.endswith("_sum")}
    assert names == set(CHILDREN)


def test_everything_starts_at_zero(metrics: Metrics) -> None:
    assert set(values_of(metrics).values()) == {0.0}


def test_another_engine_of_the_process_starts_at_zero(metrics: Metrics) -> None:
    metrics.request_ended(FINISHED)
    assert set(values_of(Metrics(CollectorRegistry())).values()) == {0.0}


# Requests.


def test_every_request_that_can_occur_moves_its_own_child(metrics: Metrics) -> None:
    for path, attach, tail, outcome in sorted(REQUESTS_THAT_OCCUR):
        record = QUEUED if path == "none" else admitted(ReusePath(path), Attach(attach), 0)
        record = replace(record, tail=Tail(tail), outcome=Outcome(outcome))
        moves = moved(metrics, lambda record=record: metrics.request_ended(record))
        labels = {"reuse_path": path, "attach": attach, "tail": tail, "outcome": outcome}
        assert one_more(moves, "requests_total") == {series("requests_total", **labels)}
    total = sum(v for (name, _), v in values_of(metrics).items() if name == "requests_total")
    assert total == len(REQUESTS_THAT_OCCUR)


def test_hit_from_the_registry_moves_exactly_its_numbers(metrics: Metrics) -> None:
    assert moved(metrics, lambda: metrics.request_ended(FINISHED)) == {
        series(
            "requests_total",
            reuse_path="append_frontier",
            attach="registry",
            tail="assistant",
            outcome="finished",
        ): 1,
        series("prompt_tokens_total", source="computed"): 10,
        series("prompt_tokens_total", source="registry"): 90,
        series("completion_tokens_total"): 3,
        series("queue_seconds_count"): 1,
        series("queue_seconds_sum"): 0.5,
        series("ttft_seconds_count", reuse_path="append_frontier"): 1,
        series("ttft_seconds_sum", reuse_path="append_frontier"): 1.5,
        series("reuse_gap_seconds_count"): 1,
        series("reuse_gap_seconds_sum"): 8,
        series("request_seconds_count", outcome="finished"): 1,
        series("request_seconds_sum", outcome="finished"): 4,
    }


def test_request_that_left_the_queue_moves_its_outcome_and_its_whole_time_only(
    metrics: Metrics,
) -> None:
    assert moved(metrics, lambda: metrics.request_ended(QUEUED)) == {
        series(
            "requests_total",
            reuse_path="none",
            attach="none",
            tail="assistant",
            outcome="cancelled",
        ): 1,
        series("request_seconds_count", outcome="cancelled"): 1,
        series("request_seconds_sum", outcome="cancelled"): 4,
    }


@pytest.mark.parametrize(
    ("path", "attach", "cached", "source"),
    [
        (ReusePath.FULL_RESET, Attach.NONE, 0, None),
        (ReusePath.APPEND_FRONTIER, Attach.NONE, 60, "lane"),
        (ReusePath.RESTORE_TURN_CHECKPOINT, Attach.REGISTRY, 60, "registry"),
        (ReusePath.RESTORE_ANCHOR, Attach.ANCHOR, 64, "anchor"),
    ],
)
def test_prompt_is_partitioned_by_where_it_came_from(
    metrics: Metrics, path: ReusePath, attach: Attach, cached: int, source: str | None
) -> None:
    moves = moved(metrics, lambda: metrics.request_ended(admitted(path, attach, cached)))
    tokens = {key: value for key, value in moves.items() if key[0] == "prompt_tokens_total"}
    expected = {series("prompt_tokens_total", source="computed"): 100 - cached}
    if source is not None:
        expected[series("prompt_tokens_total", source=source)] = cached
    assert tokens == expected


def test_prompt_that_reused_nothing_had_no_gap(metrics: Metrics) -> None:
    moves = moved(
        metrics, lambda: metrics.request_ended(admitted(ReusePath.FULL_RESET, Attach.NONE, 0))
    )
    assert not one_more(moves, "reuse_gap_seconds_count")


def test_request_that_ended_before_its_first_token_has_no_ttft(metrics: Metrics) -> None:
    record = replace(FINISHED, outcome=Outcome.CANCELLED, output_ids=(), first_token_at_s=None)
    moves = moved(metrics, lambda: metrics.request_ended(record))
    assert not one_more(moves, "ttft_seconds_count")


def test_regret_is_counted(metrics: Metrics) -> None:
    record = replace(FINISHED, admission=replace(FINISHED.admission, regret_tokens=33))
    moves = moved(metrics, lambda: metrics.request_ended(record))
    assert moves[series("current_state_regret_tokens_total")] == 33


def test_beginning_at_an_anchor_is_an_attach(metrics: Metrics) -> None:
    moves = moved(
        metrics,
        lambda: metrics.request_ended(admitted(ReusePath.RESTORE_ANCHOR, Attach.ANCHOR, 64)),
    )
    assert one_more(moves, "attaches_total") == {
        series("attaches_total", from_="anchor", kind="anchor")
    }


@pytest.mark.parametrize("kind", list(running_errors()), ids=lambda kind: kind.code)
def test_failure_is_counted_under_its_code(metrics: Metrics, kind: type[KvregError]) -> None:
    record = replace(QUEUED, outcome=Outcome.FAILED, error_code=kind.code)
    moves = moved(metrics, lambda: metrics.request_ended(record))
    assert one_more(moves, "failed_requests_total") == {
        series("failed_requests_total", code=kind.code)
    }


def test_request_that_arrived_after_its_step_began_has_waited_for_nothing(
    metrics: Metrics,
) -> None:
    record = replace(FINISHED, admitted_at_s=FINISHED.arrived_at_s - 0.001)
    moves = moved(metrics, lambda: metrics.request_ended(record))
    assert moves[series("queue_seconds_count")] == 1
    assert series("queue_seconds_sum") not in moves


# Events of the registry.


def attached(path: ReusePath, *, is_exchange: bool = False, lane: LaneId = LANE) -> events.Event:
    return events.Attached(REQUEST, SEQUENCE, ENTRY, lane, path, is_exchange)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (ReusePath.APPEND_FRONTIER, "frontier"),
        (ReusePath.RESTORE_TURN_CHECKPOINT, "turn_checkpoint"),
        (ReusePath.RESTORE_RESPONSE_CHECKPOINT, "response_checkpoint"),
    ],
)
def test_attach_is_counted_by_what_was_attached(
    metrics: Metrics, path: ReusePath, kind: str
) -> None:
    moves = moved(metrics, lambda: metrics.registry_changed(attached(path)))
    assert moves == {series("attaches_total", from_="registry", kind=kind): 1}


def test_detach_is_counted_once_the_next_request_has_ended(metrics: Metrics) -> None:
    metrics.registry_changed(DETACHED)
    moves = moved(
        metrics, lambda: metrics.request_ended(admitted(ReusePath.FULL_RESET, Attach.NONE, 0))
    )
    assert one_more(moves, "detaches_total") == {series("detaches_total", result="entry")}


@pytest.mark.parametrize(
    ("is_exchange", "lane", "result"),
    [(True, LANE, "exchange"), (False, LANE, "entry"), (True, OTHER_LANE, "entry")],
)
def test_detach_is_an_exchange_if_its_lane_then_gets_what_was_in_the_entry(
    metrics: Metrics, is_exchange: bool, lane: LaneId, result: str
) -> None:
    attach = attached(ReusePath.APPEND_FRONTIER, is_exchange=is_exchange, lane=lane)
    moves = moved(
        metrics,
        lambda: metrics.registry_changed(DETACHED),
        lambda: metrics.registry_changed(attach),
    )
    assert one_more(moves, "detaches_total") == {series("detaches_total", result=result)}


def test_two_detaches_in_a_row_are_two(metrics: Metrics) -> None:
    moves = moved(
        metrics,
        lambda: metrics.registry_changed(DETACHED),
        lambda: metrics.registry_changed(DETACHED),
        lambda: metrics.registry_changed(events.PinEnded(SEQUENCE)),
    )
    assert moves[series("detaches_total", result="entry")] == 2


def evicted(reason: EvictionReason) -> events.Event:
    return events.Evicted(SEQUENCE, ENTRY, None, None, reason, "tenant", 65, held_bytes=1000)


@pytest.mark.parametrize("reason", EvictionReason, ids=str)
def test_eviction_is_counted_with_its_bytes(metrics: Metrics, reason: EvictionReason) -> None:
    moves = moved(metrics, lambda: metrics.registry_changed(evicted(reason)))
    expected = {
        series("evictions_total", reason=reason): 1,
        series("evicted_bytes_total", reason=reason): 1000,
    }
    if reason is EvictionReason.DISPLACED:
        expected[series("detaches_total", result="dropped")] = 1
    assert moves == expected


@pytest.mark.parametrize(
    ("event", "name"),
    [
        (events.Forked(SEQUENCE, SequenceId(6), ENTRY, 100), "forks_total"),
        (
            events.AnchorCaptured(REQUEST, SEQUENCE, AnchorId(0), 64, is_marked=False),
            "anchors_captured_total",
        ),
        (events.PinEnded(SEQUENCE), "pins_ended_total"),
    ],
    ids=["fork", "anchor", "pin"],
)
def test_other_changes_are_counted(metrics: Metrics, event: events.Event, name: str) -> None:
    assert moved(metrics, lambda: metrics.registry_changed(event)) == {series(name): 1}


@pytest.mark.parametrize(("is_attach", "is_detach"), list(product([False, True], repeat=2)))
def test_moves_are_timed_under_what_they_were(
    metrics: Metrics, is_attach: bool, is_detach: bool
) -> None:
    moves = moved(
        metrics, lambda: metrics.states_moved(0.25, is_attach=is_attach, is_detach=is_detach)
    )
    expected = {}
    for name, is_so in (("attach", is_attach), ("detach", is_detach)):
        if is_so:
            expected |= {
                series(f"{name}_seconds_count"): 1.0,
                series(f"{name}_seconds_sum"): 0.25,
            }
    assert moves == expected


def test_time_between_tokens_is_counted(metrics: Metrics) -> None:
    assert moved(metrics, lambda: metrics.token_followed(0.5)) == {
        series("inter_token_seconds_count"): 1,
        series("inter_token_seconds_sum"): 0.5,
    }


# Reports of the API, the log and the tracer.


def test_refusal_is_counted_under_its_code(metrics: Metrics) -> None:
    assert moved(metrics, lambda: metrics.request_refused("draining")) == {
        series("refused_requests_total", code="draining"): 1
    }


def test_results_of_log_lines_and_spans_are_counted(metrics: Metrics) -> None:
    moves = moved(
        metrics,
        metrics.log_line_written,
        lambda: metrics.log_line_lost("write"),
        lambda: metrics.spans_ended("exported", 5),
        lambda: metrics.spans_ended("dropped"),
    )
    assert moves == {
        series("request_log_lines_total"): 1,
        series("request_log_errors_total", reason="write"): 1,
        series("trace_spans_total", result="exported"): 5,
        series("trace_spans_total", result="dropped"): 1,
    }


# Gauges.


class CountedEngine(FakeEngine):
    """Counts the snapshots that are taken."""

    num_snapshots = 0

    def snapshot(self, tenant: str | None = None) -> RegistrySnapshot:
        self.num_snapshots += 1
        return super().snapshot(tenant)


def test_scrape_takes_one_snapshot_and_watching_none(metrics: Metrics) -> None:
    engine = CountedEngine()
    metrics.watch(engine)
    assert engine.num_snapshots == 0
    values_of(metrics)
    assert engine.num_snapshots == 1


def test_gauges_show_the_snapshot(metrics: Metrics) -> None:
    before = set(values_of(metrics))
    metrics.watch(FakeEngine())
    gauges = {key: value for key, value in values_of(metrics).items() if key not in before}
    assert gauges.pop(series("engine_start_time_seconds")) > 1.7e9
    assert gauges == {
        series("registry_entries", state="kept"): 1,
        series("registry_entries", state="empty"): 1,
        series("registry_entries_limit"): 2,
        series("anchors", state="kept"): 0,
        series("anchors", state="empty"): 1,
        series("anchors_limit"): 1,
        series("lanes", state="empty"): 1,
        series("lanes", state="retained"): 0,
        series("lanes", state="prefill"): 0,
        series("lanes", state="decode"): 0,
        series("lanes_limit"): 1,
        series("pages", pool="main", state="free"): 6,
        series("pages", pool="main", state="referenced"): 2,
        series("pages_limit", pool="main"): 8,
        series("state_slots", state="free"): 4,
        series("state_slots", state="used"): 2,
        series("queued_requests"): 0,
        series("running_requests"): 0,
        series(
            "profile_info",
            profile="",
            profile_hash="0123456789abcdef",
            lanes="1",
            entries="2",
            current_state="keep",
        ): 1,
        series("engine_ready"): 1,
        series("engine_draining"): 0,
    }


@pytest.mark.parametrize(
    ("state", "is_ready", "is_draining"),
    [({"is_draining": True}, 0, 1), ({"is_sound": False}, 0, 0), ({"is_alive": False}, 0, 0)],
    ids=str,
)
def test_gauges_show_whether_the_engine_is_ready(
    metrics: Metrics, state: dict[str, bool], is_ready: int, is_draining: int
) -> None:
    metrics.watch(FakeEngine(**state))
    values = values_of(metrics)
    assert values[series("engine_ready")] == is_ready
    assert values[series("engine_draining")] == is_draining

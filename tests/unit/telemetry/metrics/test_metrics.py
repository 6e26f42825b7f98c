"""All metrics exist from the start, and each event changes exactly the right ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

import pytest
from prometheus_client import CollectorRegistry
from tests.unit.telemetry.ended_requests import FINISHED

from kvreg_service.core import errors, events
from kvreg_service.core.errors import KvregError
from kvreg_service.core.ids import LaneId, RequestId, SessionId, StateId
from kvreg_service.core.labels import Attach, EvictionReason, Outcome, ReusePath, StateKind, Tail
from kvreg_service.engine.interface.record import RequestRecord
from kvreg_service.engine.interface.snapshot import RegistrySnapshot
from kvreg_service.telemetry.metrics.metrics import FAILURES, Metrics
from kvreg_service.testing.fake_engine import FakeEngine

Series = tuple[str, frozenset[tuple[str, str]]]
Values = dict[Series, float]

LANE, REQUEST, SESSION, STATE = LaneId(0), RequestId("r"), SessionId(7), StateId(3)


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
    *product(["restore_branch_point"], ["none", "registry", "anchor"], Tail, Outcome),
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
    "detaches_total": (("result",), {("kept",), ("dropped",)}),
    "attaches_total": (
        ("from", "kind"),
        {
            ("registry", "frontier"),
            ("registry", "turn_checkpoint"),
            ("registry", "response_checkpoint"),
            ("registry", "branch_point"),
            ("anchor", "anchor"),
            ("anchor", "branch_point"),
        },
    ),
    "states_kept_total": (("kind",), {(kind,) for kind in StateKind}),
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
        series("attaches_total", from_="registry", kind="frontier"): 1,
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
        (ReusePath.RESTORE_BRANCH_POINT, Attach.NONE, 60, "lane"),
        (ReusePath.RESTORE_BRANCH_POINT, Attach.REGISTRY, 60, "registry"),
        (ReusePath.RESTORE_BRANCH_POINT, Attach.ANCHOR, 60, "anchor"),
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


@pytest.mark.parametrize(
    ("path", "attach", "kind"),
    [
        (ReusePath.APPEND_FRONTIER, Attach.REGISTRY, "frontier"),
        (ReusePath.RESTORE_TURN_CHECKPOINT, Attach.REGISTRY, "turn_checkpoint"),
        (ReusePath.RESTORE_RESPONSE_CHECKPOINT, Attach.REGISTRY, "response_checkpoint"),
        (ReusePath.RESTORE_BRANCH_POINT, Attach.REGISTRY, "branch_point"),
        (ReusePath.RESTORE_BRANCH_POINT, Attach.ANCHOR, "branch_point"),
        (ReusePath.RESTORE_ANCHOR, Attach.ANCHOR, "anchor"),
    ],
)
def test_attach_is_counted_by_source_and_kind(
    metrics: Metrics, path: ReusePath, attach: Attach, kind: str
) -> None:
    moves = moved(metrics, lambda: metrics.request_ended(admitted(path, attach, 64)))
    assert one_more(moves, "attaches_total") == {series("attaches_total", from_=attach, kind=kind)}


def test_state_of_the_lane_itself_is_no_attach(metrics: Metrics) -> None:
    record = admitted(ReusePath.APPEND_FRONTIER, Attach.NONE, 64)
    assert not one_more(moved(metrics, lambda: metrics.request_ended(record)), "attaches_total")


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


@pytest.mark.parametrize(("num_states", "result"), [(0, "dropped"), (1, "kept"), (3, "kept")])
def test_detach_is_counted_by_whether_anything_is_kept(
    metrics: Metrics, num_states: int, result: str
) -> None:
    detached = events.Detached(SESSION, LANE, num_states, held_bytes=100)
    assert moved(metrics, lambda: metrics.registry_changed(detached)) == {
        series("detaches_total", result=result): 1
    }


def test_attach_event_counts_nothing_as_its_request_does(metrics: Metrics) -> None:
    attached = events.Attached(REQUEST, SESSION, LANE, ReusePath.APPEND_FRONTIER)
    assert moved(metrics, lambda: metrics.registry_changed(attached)) == {}


@pytest.mark.parametrize("kind", StateKind, ids=str)
def test_kept_state_is_counted_by_kind(metrics: Metrics, kind: StateKind) -> None:
    kept = events.StateKept(STATE, SESSION, REQUEST, kind, 65, is_marked=False)
    assert moved(metrics, lambda: metrics.registry_changed(kept)) == {
        series("states_kept_total", kind=kind): 1
    }


@pytest.mark.parametrize("reason", EvictionReason, ids=str)
def test_eviction_is_counted_with_its_bytes(metrics: Metrics, reason: EvictionReason) -> None:
    evicted = events.Evicted(STATE, SESSION, StateKind.TURN, reason, "tenant", 65, freed_bytes=1000)
    assert moved(metrics, lambda: metrics.registry_changed(evicted)) == {
        series("evictions_total", reason=reason): 1,
        series("evicted_bytes_total", reason=reason): 1000,
    }


def test_ended_pin_is_counted(metrics: Metrics) -> None:
    assert moved(metrics, lambda: metrics.registry_changed(events.PinEnded(SESSION))) == {
        series("pins_ended_total"): 1
    }


def test_copy_of_a_state_is_timed(metrics: Metrics) -> None:
    assert moved(metrics, lambda: metrics.state_copied(0.25)) == {
        series("attach_seconds_count"): 1,
        series("attach_seconds_sum"): 0.25,
    }


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
        series("kept_sessions", place="lane"): 0,
        series("kept_sessions", place="registry"): 1,
        series("kept_sessions", place="shared"): 0,
        **{series("kept_states", kind=kind): int(kind is StateKind.TURN) for kind in StateKind},
        series("registry_entries_limit"): 2,
        series("anchors_limit"): 0,
        series("lanes", state="empty"): 1,
        series("lanes", state="retained"): 0,
        series("lanes", state="prefill"): 0,
        series("lanes", state="decode"): 0,
        series("lanes_limit"): 1,
        series("pages", pool="main", state="free"): 6,
        series("pages", pool="main", state="referenced"): 2,
        series("pages_limit", pool="main"): 8,
        series("state_slots", state="free"): 4,
        series("state_slots", state="working"): 0,
        series("state_slots", state="kept"): 2,
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


class EngineWithSessions(FakeEngine):
    """Has sessions in every place besides the one of its base class; one has no states yet."""

    def snapshot(self, tenant: str | None = None) -> RegistrySnapshot:
        now = super().snapshot(tenant)
        (displaced,) = now.sessions
        (turn,) = displaced.states
        frontier, head, branch = (
            replace(turn, kind=kind)
            for kind in (StateKind.FRONTIER, StateKind.HEAD, StateKind.BRANCH_POINT)
        )
        return replace(
            now,
            profile=replace(now.profile, entries=3, anchors=4),
            sessions=(
                displaced,
                replace(displaced, lane=0, states=(frontier, turn, branch)),
                replace(displaced, lane=1, states=()),
                *(replace(displaced, is_shared=True, states=(one,)) for one in (head, branch)),
            ),
        )


def test_gauges_count_sessions_by_place_and_states_by_kind(metrics: Metrics) -> None:
    metrics.watch(EngineWithSessions())
    values = values_of(metrics)
    names = ("kept_sessions", "kept_states", "registry_entries_limit", "anchors_limit")
    assert {key: value for key, value in values.items() if key[0] in names} == {
        series("kept_sessions", place="lane"): 1,
        series("kept_sessions", place="registry"): 1,
        series("kept_sessions", place="shared"): 2,
        series("kept_states", kind="frontier"): 1,
        series("kept_states", kind="turn"): 2,
        series("kept_states", kind="round"): 0,
        series("kept_states", kind="response"): 0,
        series("kept_states", kind="head"): 1,
        series("kept_states", kind="branch_point"): 2,
        series("registry_entries_limit"): 3,
        series("anchors_limit"): 4,
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

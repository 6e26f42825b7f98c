"""Lane selection for a request, and displacement of the sequence on that lane."""

from __future__ import annotations

import pytest

from kvreg_service.core.events import Admitted, Attached, Detached, Evicted
from kvreg_service.core.labels import Attach, EvictionReason

SHORT, LONG = 70, 400


def _text(number: int, length: int) -> list[int]:
    return list(range(1000 * number, 1000 * number + length))


def _keep(core, number, length=150, **options):
    """Serve a session with a checkpoint at ``length``."""
    return core.run([*_text(number, length), 7, 8], boundary=length, **options)


def _back(core, number, length=150):
    return core.run([*_text(number, length), 5, 6], boundary=length)


def _evicted(outcome) -> list[tuple[int, EvictionReason]]:
    return [(event.sequence_id, event.reason) for event in outcome.of(Evicted)]


@pytest.mark.parametrize("lanes", [2, 3])
def test_an_empty_lane_is_used_before_a_session_is_displaced(make_core, lanes):
    core = make_core(lanes=lanes, entries=1)
    outcomes = [_keep(core, number) for number in range(lanes)]
    assert {outcome.admission.lane for outcome in outcomes} == set(range(lanes))
    assert not [event for outcome in outcomes for event in outcome.of(Detached)]


def test_a_session_is_resumed_on_its_own_lane(make_core):
    core = make_core(lanes=3, entries=1)
    lanes = [_keep(core, number).admission.lane for number in range(2)]
    outcomes = [_back(core, number) for number in range(2)]
    assert [outcome.admission.lane for outcome in outcomes] == lanes
    assert [outcome.admission.attach for outcome in outcomes] == [Attach.NONE] * 2


@pytest.mark.parametrize("policy", ["cost", "none"])
def test_a_displaced_session_is_detached_to_an_empty_entry(make_core, policy):
    core = make_core(entries=2, policy=policy)
    _keep(core, 0)
    outcome = _keep(core, 1)
    assert [event.entry for event in outcome.of(Detached)] == [0]
    assert not outcome.of(Evicted)


def test_without_entries_a_displaced_session_is_evicted(make_core):
    core = make_core(entries=0)
    _keep(core, 0)
    assert _evicted(_keep(core, 1)) == [(1, EvictionReason.DISPLACED)]


@pytest.mark.parametrize("keep", [True, False])
def test_exchange_keeps_both_sessions_when_lane_and_entry_are_full(make_core, keep):
    core = make_core(entries=1, keep_current=keep)
    _keep(core, 0)
    _keep(core, 1)
    for number in (0, 1, 0, 1):
        outcome = _back(core, number)
        assert outcome.cached == 150
        assert [event.is_exchange for event in outcome.of(Attached)] == [True]
        assert not outcome.of(Evicted)


@pytest.mark.parametrize("policy", ["cost", "none"])
def test_without_exchange_the_displaced_session_is_evicted_although_the_attach_frees_an_entry(
    make_core, policy
):
    core = make_core(entries=1, exchange=False, policy=policy)
    _keep(core, 0)
    _keep(core, 1)
    outcome = _back(core, 0)
    assert outcome.cached == 150
    assert _evicted(outcome) == [(2, EvictionReason.DISPLACED)]


def test_a_less_valuable_entry_is_evicted_for_a_displaced_session(make_core):
    core = make_core(entries=1)
    _keep(core, 0, SHORT)
    _keep(core, 1, LONG)
    outcome = _keep(core, 2)
    assert _evicted(outcome) == [(1, EvictionReason.ENTRY_NEEDED)]
    assert [event.sequence_id for event in outcome.of(Detached)] == [2]


def test_a_displaced_session_is_evicted_if_it_is_the_least_valuable(make_core):
    core = make_core(entries=1)
    _keep(core, 0, LONG)
    _keep(core, 1, SHORT)
    assert _evicted(_keep(core, 2)) == [(2, EvictionReason.DISPLACED)]


def test_the_least_valuable_entry_is_evicted(make_core):
    core = make_core(entries=3)
    for number, length in enumerate((300, 100, 200, LONG)):
        _keep(core, number, length)
    assert _evicted(_keep(core, 4)) == [(2, EvictionReason.ENTRY_NEEDED)]


def test_policy_none_evicts_no_entry_for_a_more_valuable_session(make_core):
    core = make_core(entries=1, policy="none")
    _keep(core, 0, SHORT)
    _keep(core, 1, LONG)
    assert _evicted(_keep(core, 2)) == [(2, EvictionReason.DISPLACED)]


def test_the_least_valuable_lane_is_displaced(make_core):
    core = make_core(lanes=3, entries=1)
    lanes = [_keep(core, number, length).admission.lane for number, length in enumerate((300, 100))]
    _keep(core, 2, 200)
    assert _keep(core, 3).admission.lane == lanes[1]


def test_a_busy_lane_is_never_displaced(make_core):
    core = make_core(lanes=2, entries=1)
    _keep(core, 0)
    core.submit([9] * 50, max_tokens=400)
    for _ in range(3):
        core.step()
    core.submit(_text(2, 100))
    _, happened = core.step()
    assert [event.lane for event in happened if isinstance(event, Detached)] == [0]


def test_an_entry_can_be_attached_to_any_lane(make_core):
    core = make_core(lanes=2, entries=1)
    first = _keep(core, 0).admission
    _keep(core, 1, LONG)
    _keep(core, 2, LONG)
    again = _back(core, 0).admission
    assert (again.sequence_id, again.attach) == (first.sequence_id, Attach.REGISTRY)
    assert again.lane != first.lane


@pytest.mark.parametrize(("keep", "cached"), [(True, 153), (False, 0)])
def test_a_session_without_a_checkpoint_is_detached_only_if_current_is_kept(
    make_core, keep, cached
):
    core = make_core(entries=1, keep_current=keep)
    prompt = _text(0, 150)
    answer = core.run(prompt, max_tokens=4).answer
    outcome = _keep(core, 1)
    assert len(outcome.of(Detached)) == (1 if keep else 0)
    assert core.run([*prompt, *answer, 5]).cached == cached


def test_dropping_current_frees_the_pages_after_the_checkpoint(make_core):
    core = make_core(entries=1, keep_current=False)
    core.run([*_text(0, 100), 7], boundary=100, max_tokens=200)
    _keep(core, 1)
    ((_, sequence),) = list(core.scheduler.holdings.registry)
    assert len(sequence.pages) == 2


def _drop_entry(core, entry):
    kept = core.scheduler.holdings.registry.get(entry)
    return core.scheduler.custody.drop(kept.sequence_id)


def test_dropping_an_entry_frees_its_pages_and_reports_an_eviction(make_core):
    core = make_core(entries=1)
    _keep(core, 0)
    _keep(core, 1)
    before = core.scheduler.holdings.pages.num_free
    (event,) = _drop_entry(core, 0)
    assert (event.entry, event.reason) == (0, EvictionReason.REQUESTED)
    assert core.scheduler.holdings.pages.num_free == before + 3
    assert _back(core, 0).cached == 0


def test_dropping_an_entry_during_a_step_returns_only_its_own_events(make_core):
    core = make_core(entries=1)
    _keep(core, 0)
    request_id = core.submit(_text(1, 100))
    plan = core.scheduler.schedule(core.now_s)
    assert [type(event) for event in _drop_entry(core, 0)] == [Evicted]
    happened = core.scheduler.commit(plan, core.runner.execute(plan), core.now_s)
    assert [type(event) for event in happened[:2]] == [Detached, Admitted]
    assert core.drain().terminal.request_id == request_id

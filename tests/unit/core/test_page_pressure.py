"""Pages are promised to running requests only; kept pages are evicted only on demand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvreg_service.core.events import Admitted, Evicted, Failed, Finished
from kvreg_service.core.labels import EvictionReason


def _text(number: int, length: int) -> list[int]:
    return list(range(1000 * number, 1000 * number + length))


def _keep(core, number, length=150):
    return core.run([*_text(number, length), 7], boundary=length, max_tokens=1)


def _victims(outcome) -> list[int]:
    return [
        event.sequence_id
        for event in outcome.of(Evicted)
        if event.reason is EvictionReason.PAGES_NEEDED
    ]


def test_a_side_request_with_a_large_max_tokens_evicts_nothing(make_core):
    core = make_core(entries=4, num_pages=32, max_context_tokens=2048)
    for number in range(4):
        _keep(core, number, 300)
    core.submit([9] * 53, max_tokens=32_000)
    for _ in range(60):
        _, happened = core.step()
        assert not [event for event in happened if isinstance(event, Evicted)]


@pytest.mark.parametrize("max_tokens", [64, 4096, 32_000])
def test_the_reuse_of_a_session_does_not_depend_on_max_tokens_of_a_side_request(
    make_core, max_tokens
):
    core = make_core(entries=1, num_pages=32, max_context_tokens=2048)
    _keep(core, 0, 300)
    stop = core.runner.execute  # the side request stops after one token
    core.submit([9] * 53, max_tokens=max_tokens)
    plan = core.scheduler.schedule(core.now_s)
    result = stop(plan)
    result.stopped.add(plan.work[0].request_id)
    core.scheduler.commit(plan, result, core.now_s)
    assert core.run([*_text(0, 300), 5]).cached == 300


def test_page_pressure_evicts_the_least_valuable_first(make_core):
    core = make_core(entries=4, num_pages=16, max_context_tokens=1024)
    for number, length in enumerate((250, 70, 200, 130)):
        _keep(core, number, length)
    # 4 + 2 + 4 + 3 pages are kept, so 3 are free.
    assert _victims(core.run(_text(9, 520), max_tokens=1)) == [2, 4, 3]


def test_page_pressure_evicts_no_more_than_needed(make_core):
    core = make_core(entries=4, num_pages=16, max_context_tokens=1024)
    for number in range(4):
        _keep(core, number, 190)
    assert core.scheduler.holdings.pages.num_free == 4
    assert len(_victims(core.run(_text(9, 64 * 5), max_tokens=1))) == 1


def test_a_prompt_that_needs_all_pages_gets_them(make_core):
    core = make_core(entries=2, num_pages=8, max_context_tokens=512)
    for number in range(3):
        _keep(core, number, 120)
    outcome = core.run(_text(9, 505), max_tokens=7)
    assert isinstance(outcome.terminal, Finished)
    assert len(outcome.answer) == 7


def test_the_resumed_sequence_is_not_evicted_for_its_own_pages(make_core):
    core = make_core(entries=2, num_pages=8, max_context_tokens=512)
    for number in range(2):
        _keep(core, number, 120)
    outcome = core.run([*_text(0, 120), *_text(9, 350)], max_tokens=7)
    assert outcome.cached == 120
    assert isinstance(outcome.terminal, Finished)


def test_running_requests_are_never_evicted_and_all_finish(make_core):
    core = make_core(lanes=3, entries=2, num_pages=12, max_context_tokens=512, chunk_tokens=64)
    for number in range(5):
        core.submit(_text(number, 100), boundary=90, max_tokens=60)
    outcome = core.drain()
    assert len(outcome.of(Finished)) == 5
    assert not outcome.of(Failed)


def test_requests_whose_promises_exceed_the_pool_run_one_after_the_other(make_core):
    core = make_core(lanes=2, num_pages=8, max_context_tokens=512)
    first = core.submit(_text(0, 100), max_tokens=300)
    second = core.submit(_text(1, 100), max_tokens=300)
    outcome = core.drain()
    order = [
        (type(event), event.request_id)
        for event in outcome.events
        if isinstance(event, Admitted | Finished)
    ]
    assert order == [
        (Admitted, first),
        (Finished, first),
        (Admitted, second),
        (Finished, second),
    ]


def test_requests_whose_promises_fit_run_together(make_core):
    core = make_core(lanes=2, num_pages=8, max_context_tokens=512)
    for number in range(2):
        core.submit(_text(number, 100), max_tokens=100)
    core.step()
    core.step()
    assert core.scheduler.num_running == 2


def test_kept_pages_do_not_count_as_promised(make_core):
    core = make_core(lanes=2, entries=1, num_pages=8, max_context_tokens=512)
    _keep(core, 0, 400)
    core.submit(_text(1, 100), max_tokens=400)
    _, happened = core.step()
    assert isinstance(happened[0], Admitted)


def test_a_lane_is_usable_after_eviction(make_core):
    core = make_core(lanes=2, entries=0, num_pages=8, max_context_tokens=512)
    _keep(core, 0, 120)
    assert _victims(core.run(_text(9, 500), max_tokens=1)) == [1]
    assert core.run(_text(3, 60)).admission.lane == 0


def test_a_sequence_whose_eviction_frees_no_page_is_evicted_after_the_others(make_core):
    core = make_core(entries=3, num_pages=8, max_context_tokens=512)
    _keep(core, 1, 127)
    _keep(core, 2, 190)
    _twin(core, 1)
    # The first session has a lower value, but shares all its pages with its copy.
    assert _victims(core.run(_text(9, 300), max_tokens=1)) == [2]


def test_two_sequences_that_share_all_pages_are_both_evicted_as_a_last_resort(make_core):
    core = make_core(entries=2, num_pages=8, max_context_tokens=512)
    _keep(core, 1, 127)
    twin = _twin(core, 1)
    outcome = core.run(_text(9, 505), max_tokens=7)
    assert isinstance(outcome.terminal, Finished)
    assert set(_victims(outcome)) == {1, twin.sequence_id}


def _twin(core, sequence_id):
    """Keep a copy of a session in an entry, with the same pages."""
    holdings = core.scheduler.holdings
    (origin,) = (one for one in core.kept() if one.sequence_id == sequence_id)
    twin = replace(origin, sequence_id=holdings.take_sequence_id(), pages=list(origin.pages))
    holdings.pages.share(twin.pages, is_kept=True)
    holdings.registry.fork(twin, 1, from_lane=None, from_entry=1)
    return twin


def test_policy_none_evicts_the_least_recently_used_under_page_pressure(make_core):
    core = make_core(entries=3, num_pages=8, max_context_tokens=512, policy="none")
    for number, length in enumerate((120, 60, 60)):
        _keep(core, number, length)
    assert _victims(core.run(_text(9, 64 * 6), max_tokens=1))[0] == 1


def test_all_pages_are_free_when_nothing_is_kept(make_core):
    core = make_core(lanes=2, entries=3, num_pages=40)
    for number in range(6):
        core.run(_text(number, 100 + 10 * number), boundary=90)
        core.run([*_text(number, 90), 5, 6, 7], boundary=92)
    placement = core.scheduler.holdings
    for _, sequence in list(placement.registry):
        core.scheduler.custody.drop(sequence.sequence_id)
    for lane in placement.lanes:
        placement.give_up_lane(lane, EvictionReason.REQUESTED)
    assert placement.pages.num_free == 40

"""Pages are promised to running requests only; kept pages are freed only on demand."""

from __future__ import annotations

import pytest

from kvreg_service.core.events import Admitted, Evicted, Failed, Finished
from kvreg_service.core.labels import EvictionReason


def _text(number: int, length: int) -> list[int]:
    return list(range(1000 * number, 1000 * number + length))


def _keep(core, number, length=150):
    """Keep one state, at ``length``."""
    return core.run(_text(number, length), max_tokens=1)


def _victims(outcome) -> list[int]:
    """Return the lengths of the states that were freed for their pages."""
    return [
        event.tokens for event in outcome.of(Evicted) if event.reason is EvictionReason.PAGES_NEEDED
    ]


def test_a_side_request_with_a_large_max_tokens_frees_nothing(make_core):
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
    core.submit([9] * 53, max_tokens=max_tokens)
    # The side request stops after one token.
    plan = core.scheduler.schedule(core.now_s)
    result = core.runner.execute(plan)
    result.stopped.add(plan.work[0].request_id)
    core.scheduler.commit(plan, result, core.now_s)
    assert core.run([*_text(0, 300), 5]).cached == 300


def test_page_pressure_frees_no_more_than_needed(make_core):
    core = make_core(entries=4, num_pages=16, max_context_tokens=1024)
    for number in range(4):
        _keep(core, number, 190)
    assert core.scheduler.store.pages.num_free == 4
    assert _victims(core.run(_text(9, 64 * 5), max_tokens=1)) == [190]


def test_page_pressure_frees_the_least_value_per_page_first(make_core):
    core = make_core(entries=4, num_pages=16, max_context_tokens=1024)
    for number, length in enumerate((66, 190, 65, 256)):
        _keep(core, number, length)
    # 2 + 3 + 2 + 4 pages are kept, so 5 are free.
    assert sorted(_victims(core.run(_text(9, 64 * 9), max_tokens=1))) == [65, 66]


def test_a_prompt_that_needs_all_pages_gets_them(make_core):
    core = make_core(entries=2, num_pages=8, max_context_tokens=512)
    for number in range(3):
        _keep(core, number, 120)
    outcome = core.run(_text(9, 505), max_tokens=7)
    assert isinstance(outcome.terminal, Finished)
    assert len(outcome.answer) == 7


def test_the_resumed_pages_are_not_taken_from_the_request(make_core):
    core = make_core(entries=2, num_pages=8, max_context_tokens=512)
    for number in range(2):
        _keep(core, number, 120)
    prompt = [*_text(0, 120), *_text(9, 350)]
    outcome = core.run(prompt, max_tokens=7)
    assert outcome.cached == 120
    expected = make_core().run(prompt, max_tokens=7).answer
    assert outcome.answer == expected


def test_running_requests_are_never_preempted_and_all_finish(make_core):
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


def test_a_lane_whose_session_was_freed_is_usable(make_core):
    core = make_core(lanes=2, entries=0, num_pages=8, max_context_tokens=512)
    _keep(core, 0, 120)
    assert _victims(core.run(_text(9, 500), max_tokens=1)) == [120]
    assert core.run(_text(3, 60)).admission.lane == 0


def test_the_copy_of_a_partial_page_frees_a_kept_state_when_no_page_is_free(make_core):
    core = make_core(lanes=2, entries=2, num_pages=8, max_context_tokens=512)
    core.run([*_text(1, 100), 7], boundary=100, max_tokens=60)
    _keep(core, 2, 300)
    assert core.scheduler.store.pages.num_free == 0, "precondition of this test"
    outcome = core.run([*_text(1, 100), 5, 6], max_tokens=20)
    assert outcome.cached == 100
    assert outcome.answer == make_core().run([*_text(1, 100), 5, 6], max_tokens=20).answer
    assert _victims(outcome)


def test_all_pages_and_slots_are_free_when_nothing_is_kept(make_core):
    core = make_core(lanes=2, entries=3, num_pages=40, anchors=1)
    for number in range(6):
        core.run(_text(number, 100 + 10 * number), boundary=90, heads=(64,))
        core.run([*_text(number, 90), 5, 6, 7], boundary=92)
    for session in core.sessions():
        core.scheduler.sessions.drop(session.session_id)
    core.check()
    assert core.scheduler.store.pages.num_free == 40
    assert core.scheduler.store.slots.num_free == core.layout.num_slots

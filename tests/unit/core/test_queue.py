"""The request queue: limits, order, timeouts and cancellation."""

from __future__ import annotations

import pytest

from kvreg_service.core.errors import ContextTooLong, InvalidRequest, Overloaded, QueueTimeout
from kvreg_service.core.events import Admitted, Cancelled, Failed, Finished, Terminal
from kvreg_service.core.labels import StateKind

PROMPT = list(range(300))


def _busy(make_core, **options):
    """Return a core whose only lane decodes a long answer, and the id of that request."""
    core = make_core(**options)
    running = core.submit([9] * 50, max_tokens=500)
    for _ in range(3):
        core.step()
    return core, running


@pytest.mark.parametrize(("length", "fits"), [(2047, True), (2048, False), (5000, False)])
def test_a_prompt_needs_room_for_one_answer_token(make_core, length, fits):
    core = make_core(max_context_tokens=2048)
    if fits:
        assert len(core.run([1] * length, max_tokens=9).answer) == 1
        return
    with pytest.raises(ContextTooLong) as caught:
        core.submit([1] * length)
    assert caught.value.fields["prompt_tokens"] == length
    assert caught.value.fields["max_context_tokens"] == 2048


def test_a_prompt_that_is_too_long_does_not_affect_the_kept_session(make_core):
    core = make_core()
    core.run(PROMPT, boundary=290)
    with pytest.raises(ContextTooLong):
        core.submit([1] * 5000)
    assert core.run([*PROMPT[:290], 1]).cached == 290


def test_generation_ends_at_the_context_limit(make_core):
    outcome = make_core(max_context_tokens=320, num_pages=5).run(PROMPT, max_tokens=10_000)
    assert len(outcome.answer) == 20


@pytest.mark.parametrize(("prompt", "max_tokens"), [([], 5), ([1], 0), ([1], -3)])
def test_an_empty_prompt_or_a_max_tokens_below_one_is_invalid(make_core, prompt, max_tokens):
    with pytest.raises(InvalidRequest):
        make_core().submit(prompt, max_tokens=max_tokens)


def test_a_full_queue_raises_overloaded_with_retry_after(make_core):
    core, _ = _busy(make_core, queue_limit=2)
    for _ in range(2):
        core.submit(PROMPT)
    with pytest.raises(Overloaded) as caught:
        core.submit(PROMPT)
    assert caught.value.retry_after_s > 0
    assert core.scheduler.count_queued() == 2


def test_requests_are_admitted_in_order_of_arrival(make_core):
    core = make_core()
    ids = [core.submit([number] * 20) for number in range(4)]
    assert [event.request_id for event in core.drain().of(Admitted)] == ids


def test_a_small_request_does_not_overtake_one_that_waits_for_pages(make_core):
    core = make_core(lanes=2, num_pages=8, max_context_tokens=512)
    ids = [
        core.submit([1] * 100, max_tokens=200),
        core.submit([2] * 400, max_tokens=100),
        core.submit([3] * 10, max_tokens=1),
    ]
    assert [event.request_id for event in core.drain().of(Admitted)] == ids


def test_admission_reports_the_time_in_the_queue(make_core):
    core, running = _busy(make_core)
    waiting = core.submit(PROMPT)
    core.now_s += 12.0
    core.log += core.scheduler.cancel(running, core.now_s)
    outcome = core.drain()
    assert (outcome.admitted.request_id, outcome.admission.queue_s) == (waiting, 12.0)


@pytest.mark.parametrize(("waited_s", "expires"), [(60.0, False), (60.1, True)])
def test_a_queued_request_fails_after_the_queue_timeout(make_core, waited_s, expires):
    core, _ = _busy(make_core, queue_timeout_s=60.0)
    waiting = core.submit(PROMPT)
    core.now_s += waited_s
    _, happened = core.step()
    failed = [event for event in happened if isinstance(event, Failed)]
    assert [event.request_id for event in failed] == ([waiting] if expires else [])
    assert all(isinstance(event.error, QueueTimeout) for event in failed)


def test_all_expired_requests_fail_in_one_step(make_core):
    core, _ = _busy(make_core)
    ids = [core.submit(PROMPT) for _ in range(3)]
    core.now_s += 61.0
    _, happened = core.step()
    assert [event.request_id for event in happened if isinstance(event, Failed)] == ids


def test_a_running_request_does_not_time_out(make_core):
    core, _ = _busy(make_core)
    core.now_s += 1000.0
    assert isinstance(core.drain().terminal, Finished)


def test_a_request_cancelled_in_the_queue_never_runs(make_core):
    core, _ = _busy(make_core)
    waiting = core.submit(PROMPT)
    assert core.scheduler.cancel(waiting, core.now_s) == [Cancelled(waiting, 0)]
    assert waiting not in {event.request_id for event in core.drain().of(Admitted)}
    assert core.scheduler.count_queued() == 0


def test_cancelling_during_prefill_keeps_the_computed_tokens(make_core):
    core = make_core(chunk_tokens=100)
    request_id = core.submit(PROMPT)
    core.step()
    kept, cancelled = core.scheduler.cancel(request_id, core.now_s)
    assert (kept.kind, kept.position) == (StateKind.FRONTIER, 100)
    assert cancelled == Cancelled(request_id, 0)
    assert core.run(PROMPT).cached == 100


def test_cancelling_before_the_first_chunk_keeps_nothing(make_core):
    core = make_core(lanes=2, chunk_tokens=100)
    core.submit([1] * 250, max_tokens=1)
    waiting = core.submit(PROMPT)
    core.step()
    core.step()
    (lane,) = (
        one for one in core.scheduler.lanes if one.run and one.run.request.request_id == waiting
    )
    assert lane.run.num_computed == 0, "precondition of this test"
    core.scheduler.cancel(waiting, core.now_s)
    core.check()
    assert core.kept() == []
    assert lane.session is None


def test_cancelling_during_decode_keeps_exactly_the_sampled_tokens(make_core):
    core = make_core()
    request_id = core.submit(PROMPT, max_tokens=100)
    for _ in range(20):
        core.step()
    *_, cancelled = core.scheduler.cancel(request_id, core.now_s)
    assert cancelled == Cancelled(request_id, 20)
    sent = [event.token for event in core.log if hasattr(event, "token")]
    assert core.run([*PROMPT, *sent]).cached == 319


@pytest.mark.parametrize("num_steps", [0, 1, 2, 10])
def test_a_cancelled_request_frees_its_lane(make_core, num_steps):
    core = make_core(chunk_tokens=100)
    request_id = core.submit(PROMPT, max_tokens=100)
    for _ in range(num_steps):
        core.step()
    core.scheduler.cancel(request_id, core.now_s)
    assert not core.scheduler.has_work
    assert core.run([5] * 30).terminal


def test_cancelling_an_unknown_or_completed_request_does_nothing(make_core):
    core = make_core()
    request_id = core.submit(PROMPT)
    core.drain()
    assert core.scheduler.cancel(request_id, core.now_s) == []
    assert core.scheduler.cancel("unknown", core.now_s) == []


def test_cancelling_a_prefill_after_its_boundary_keeps_the_boundary(make_core):
    core = make_core(chunk_tokens=100)
    request_id = core.submit(PROMPT, boundary=150)
    core.step()
    core.step()
    core.scheduler.cancel(request_id, core.now_s)
    assert core.run([*PROMPT[:150], 7]).cached == 150


def test_every_request_ends_exactly_once(make_core):
    core = make_core(lanes=2, entries=1, queue_timeout_s=5.0)
    ids = [core.submit([number] * 60, max_tokens=30) for number in range(8)]
    core.step()
    core.step(fail=[ids[0]])
    core.log += core.scheduler.cancel(ids[1], core.now_s)
    core.log += core.scheduler.cancel(ids[5], core.now_s)
    core.step()
    core.now_s += 6.0
    core.drain()
    ended = [event.request_id for event in core.log if isinstance(event, Terminal)]
    assert sorted(ended) == sorted(ids)

"""A failure affects one request only; sequences kept before it stay reusable."""

from __future__ import annotations

import pytest

from kvreg_service.core.admission import AdmissionPlanner
from kvreg_service.core.errors import KvregError, RequestFailed
from kvreg_service.core.events import Failed, Finished, ReuseFailed, TokenSampled
from kvreg_service.core.labels import EvictionReason

SESSION = list(range(200))


def _with_session(make_core, **options):
    core = make_core(entries=1, **options)
    core.run([*SESSION, 1, 2], boundary=200)
    return core


def _session_cached(core) -> int:
    return core.run([*SESSION, 3, 4], boundary=200).cached


def test_a_failed_first_chunk_of_a_side_request_preserves_the_displaced_session(make_core):
    core = _with_session(make_core)
    core.runner.fails_moves = False
    core.step(fail=[core.submit([9] * 50)])
    assert _session_cached(core) == 200


class _Broken(RuntimeError):
    pass


def _raise(*_args, **_options):
    raise _Broken


# With exchange, the session and the one on the lane swap places. Without it, the one on the lane is
# detached to an empty entry and a fork of the session stays in its entry.
@pytest.mark.parametrize(
    ("exchange", "owner", "name"),
    [
        (True, "registry", "exchange"),
        (True, "registry", "restore"),
        (True, "pages", "resume"),
        (True, "pages", "unseal"),
        (True, "placement", "_wake"),
        (True, "placement", "_announce"),
        (True, "placement", "_own_tail_page"),
        (True, "holdings", "rewind_kept_pages"),
        (False, "registry", "detach"),
        (False, "registry", "attach"),
        (False, "registry", "fork"),
        (False, "pages", "fork"),
    ],
)
def test_an_admission_that_raises_midway_is_a_cold_prefill_and_keeps_the_pools_consistent(
    make_core, monkeypatch, exchange, owner, name
):
    core = make_core(entries=2 if exchange else 3, exchange=exchange)
    others = [list(range(first, first + 150)) for first in (1000, 2000)]
    core.run([*SESSION, 1, 2], boundary=200)
    for prompt in others:
        core.run([*prompt, 1], boundary=150)
    holdings = core.scheduler.holdings
    owners = {
        "registry": holdings.registry,
        "pages": holdings.pages,
        "holdings": holdings,
        "placement": core.scheduler._intake._placement,
    }
    follow_up = [*SESSION, 1, 2, 3, 4]
    with monkeypatch.context() as patch:
        patch.setattr(owners[owner], name, _raise)
        core.submit(follow_up, boundary=202)
        _, happened = core.step()
    (failed,) = [event for event in happened if isinstance(event, ReuseFailed)]
    assert isinstance(failed.error.__cause__, _Broken)
    lost = [event.reason for event in happened if event is not failed]
    assert set(lost) == {EvictionReason.FAILED}, "unexpected events"
    expected = make_core().run(follow_up).answer
    cold = core.drain()
    assert (cold.cached, cold.answer) == (0, expected)
    for prompt in others:
        core.run([*prompt, 1, 2], boundary=150)
    assert core.run(follow_up, boundary=202).answer == expected


@pytest.mark.parametrize("keep", [True, False])
def test_a_failing_side_request_does_not_affect_a_running_request(make_core, keep):
    core = _with_session(make_core, keep_current=keep, lanes=2)
    core.runner.fails_moves = False
    running = core.submit([8] * 60, max_tokens=30)
    core.step()
    side = core.submit([9] * 60)
    _, happened = core.step(fail=[side])
    assert [event.request_id for event in happened if isinstance(event, Failed)] == [side]
    outcome = core.drain()
    assert outcome.terminal.request_id == running
    expected = make_core().run([8] * 60, max_tokens=30).answer
    assert [event.token for event in core.log if isinstance(event, TokenSampled)][-30:] == expected


def test_after_a_failed_decode_the_session_is_reusable_from_its_checkpoint(make_core):
    core = make_core()
    request_id = core.submit([*SESSION, 1, 2], boundary=200, max_tokens=50)
    for _ in range(10):
        core.step()
    core.step(fail=[request_id])
    assert _session_cached(core) == 200


def test_a_chunk_that_fails_during_its_capture_leaves_no_checkpoint(make_core):
    core = make_core()
    request_id = core.submit([*SESSION, 1, 2], boundary=200)
    core.runner.fails_moves = False
    core.step(fail=[request_id])
    assert core.kept() == []
    assert _session_cached(core) == 0


def test_a_chunk_that_fails_before_the_boundary_preserves_the_old_checkpoint(make_core):
    core = make_core(chunk_tokens=50)
    core.run([*SESSION, 1, 2], boundary=200)
    request_id = core.submit([*SESSION, *[5] * 100], boundary=280)
    core.runner.fails_moves = False
    core.step(fail=[request_id])
    assert _session_cached(core) == 200


@pytest.mark.parametrize("keep", [True, False])
def test_a_failed_attach_is_a_cold_prefill_without_error(make_core, keep):
    core = _with_session(make_core, keep_current=keep)
    core.run([9] * 60)
    follow_up = [*SESSION, 3, 4]
    core.step(fail=[core.submit(follow_up, boundary=200)])
    outcome = core.drain()
    assert isinstance(outcome.terminal, Finished)
    assert (outcome.cached, outcome.answer) == (0, make_core().run(follow_up).answer)


@pytest.mark.parametrize("exchange", [True, False])
def test_failed_moves_lose_only_the_sequences_they_move(make_core, exchange):
    core = make_core(entries=3 if exchange else 4, exchange=exchange)
    texts = [list(range(first, first + 150)) for first in (1000, 2000, 3000, 4000)]
    for text in texts:
        core.run([*text, 1], boundary=150)
    # The first is attached and the last displaced; the two others do not move.
    request_id = core.submit([*texts[0], 5, 6], boundary=151)
    core.step(fail=[request_id])
    core.drain()
    assert [core.run([*text, 7], max_tokens=1).cached for text in texts[1:3]] == [150, 150]


def test_an_exception_in_the_policy_fails_the_request_being_admitted(make_core, monkeypatch):
    core = _with_session(make_core)
    core.run([9] * 60)
    with monkeypatch.context() as patch:
        patch.setattr(type(core.rules.policy), "value", _raise)
        core.submit([8] * 60)
        core.step()
        _, (failed,) = core.step()
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, RequestFailed)
    assert _session_cached(core) == 200


def test_an_exception_in_the_policy_fails_the_request_that_needs_pages(make_core, monkeypatch):
    core = make_core(lanes=2, num_pages=8, max_context_tokens=512)
    core.run([*SESSION, 1, 2], boundary=200)
    core.submit([8] * 500, max_tokens=1)
    with monkeypatch.context() as patch:
        patch.setattr(type(core.rules.policy), "value", _raise)
        _, happened = core.step()
    assert isinstance(happened[-1], Failed)
    assert not core.scheduler.has_work
    assert _session_cached(core) == 200


def test_a_failed_admission_does_not_block_the_queue(make_core, monkeypatch):
    core = make_core()
    core.submit([1] * 50)
    second = core.submit([2] * 50)
    with monkeypatch.context() as patch:
        patch.setattr(AdmissionPlanner, "plan", _raise)
        core.step()
        core.step()
    assert core.drain().admitted.request_id == second


def test_a_kvreg_error_is_reported_unchanged(make_core):
    core = make_core()
    core.runner.fails_moves = False
    error = KvregError("named")
    _, happened = core.step(fail=[core.submit([1] * 50)], error=error)
    (failed,) = [event for event in happened if isinstance(event, Failed)]
    assert failed.error is error

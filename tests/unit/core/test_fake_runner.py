"""The fake runner detects wrong states and pages; the other core tests depend on it."""

from __future__ import annotations

import pytest

from kvreg_service.core.errors import InvariantBroken, KvregError
from kvreg_service.core.memory.pages import PageCopy
from kvreg_service.core.requests.sampling_params import SamplingParams
from kvreg_service.core.scheduling.step import LanePreparation, SlotCopy, StepPlan, Work
from kvreg_service.testing.fake_runner import FakeRunner


def _work(tokens, *, start=0, slot=0, pages=(0, 1), samples=False, capture_to=None):
    return Work(
        request_id="r",
        session_id=1,
        lane=0,
        slot=slot,
        start=start,
        token_ids=tuple(tokens),
        pages=pages,
        samples=samples,
        capture_to=capture_to,
        sampling=SamplingParams(),
    )


def _runner_at(position):
    runner = FakeRunner(4, 4)
    runner.execute(StepPlan(None, (_work(range(position), capture_to=1),)))
    return runner


def _moved(*moves):
    return StepPlan(LanePreparation("r", moves))


def test_continuing_from_the_right_state_and_pages_succeeds():
    runner = _runner_at(70)
    result = runner.execute(StepPlan(None, (_work([7], start=70, samples=True),)))
    assert set(result.sampled) == {"r"}
    assert runner.state(0) == (*range(70), 7)


@pytest.mark.parametrize(
    "work",
    [
        _work([7], start=69),
        _work([7], start=71),
        _work([7], start=70, slot=2),
        _work([7], start=70, pages=(1, 0)),
        _work([7], start=70, pages=(0, 2)),
        _work([7], start=70, pages=(0,)),
    ],
    ids=["again", "gap", "never written", "swapped pages", "foreign page", "too few pages"],
)
def test_continuing_from_a_wrong_state_or_page_raises(work):
    with pytest.raises(InvariantBroken):
        _runner_at(70).execute(StepPlan(None, (work,)))


def test_continuing_on_a_page_overwritten_by_another_request_raises():
    runner = _runner_at(70)
    runner.execute(StepPlan(None, (_work([9] * 10, slot=2, pages=(1, 3)),)))
    with pytest.raises(InvariantBroken):
        runner.execute(StepPlan(None, (_work([7], start=70),)))


def test_states_and_pages_are_copied():
    runner = _runner_at(70)
    runner.execute(_moved(SlotCopy(0, 2), PageCopy(1, 3)))
    assert runner.holds((0, 1), 0)
    assert runner.holds((0, 3), 2)


def test_a_captured_state_is_not_changed_by_later_work():
    runner = _runner_at(70)
    runner.execute(StepPlan(None, (_work([7], start=70),)))
    assert runner.state(1) == tuple(range(70))


def test_failed_moves_invalidate_their_destinations():
    runner = _runner_at(70)
    runner.fail_next = {"r": KvregError("injected")}
    result = runner.execute(_moved(SlotCopy(0, 1), SlotCopy(0, 2), PageCopy(1, 2), SlotCopy(0, 1)))
    assert set(result.failed) == {"r"}
    assert not result.is_prepared
    assert [runner.state(slot) is None for slot in range(4)] == [False, True, False, True]
    assert not runner.holds((0, 2), 0)


def test_failed_work_invalidates_its_state_and_the_pages_it_writes():
    runner = _runner_at(70)
    runner.fails_moves = False
    runner.fail_next = {"r": KvregError("injected")}
    result = runner.execute(StepPlan(LanePreparation("r", ()), (_work([7], start=70),)))
    assert set(result.failed) == {"r"}
    assert result.is_prepared
    assert runner.state(0) is None
    assert runner.holds((0, 1), 1)


def test_a_failure_is_injected_once():
    runner = _runner_at(70)
    runner.fail_next = {"r": KvregError("injected")}
    runner.execute(StepPlan())
    assert not runner.execute(_moved(SlotCopy(0, 1))).failed

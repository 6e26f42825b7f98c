"""A session that was detached and attached is the one that never moved, to the last bit."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from engine_bench import EngineBench, is_same_state, token_prompt

from kvreg_service.core.ids import EntryId, LaneId

BOUNDARY = 90
LANE = LaneId(0)
ENTRY = EntryId(0)


@dataclass
class Session:
    """Two turns of tokens; the second goes on from the answer, or from the boundary."""

    first: list[int]
    more: list[int]
    is_append: bool

    def start(self, bench: EngineBench):
        return bench.run(bench.request(token_prompt(self.first, BOUNDARY)))[0]

    def go_on(self, bench: EngineBench, answer):
        history = [*self.first, *answer.tokens] if self.is_append else self.first[:BOUNDARY]
        return bench.run(bench.request(token_prompt([*history, *self.more]), max_tokens=20))[0]


@pytest.fixture(params=[True, False], ids=["append", "restore"])
def session(request, ids):
    return Session(ids(1, 100), ids(2, 30), request.param)


@pytest.fixture
def side(ids):
    """A side request that no profile would rather keep than the session."""
    return token_prompt(ids(3, 40), 30)


def _undisturbed(make_bench, session):
    bench = make_bench()
    answer = session.go_on(bench, session.start(bench))
    return answer, bench.state(bench.scheduler.limits.layout.lane_current(LANE))


@pytest.mark.parametrize("exchange", [True, False], ids=["exchange", "no exchange"])
def test_detached_and_attached_is_undisturbed(make_bench, session, side, exchange):
    bench = make_bench(exchange=exchange)
    answer = session.start(bench)
    bench.run(bench.request(side))
    ours = session.go_on(bench, answer)
    theirs, their_state = _undisturbed(make_bench, session)

    assert ours.admission.attach == "registry", "the precondition of this test"
    assert (ours.text, ours.tokens) == (theirs.text, theirs.tokens)
    assert is_same_state(bench.state(0), their_state)


def test_attached_without_its_current_state_is_undisturbed_up_to_rounding(
    make_bench, session, side
):
    """In drop mode the tokens behind the checkpoint are computed again, in another split."""
    bench = make_bench(keep_current=False)
    answer = session.start(bench)
    bench.run(bench.request(side))
    ours = session.go_on(bench, answer)
    theirs, _ = _undisturbed(make_bench, session)

    assert ours.admission.reuse_path == "restore_turn_checkpoint", "the precondition of this test"
    assert ours.tokens == theirs.tokens


def test_moved_to_another_lane_is_in_place(make_bench, session, ids):
    bench = make_bench(lanes=2)
    answer = session.start(bench)
    # Long sequences that fill their pages are worth most: the second takes the session's lane.
    bench.run(*(bench.request(token_prompt(ids(seed, n))) for seed, n in ((4, 300), (5, 500))))
    ours = session.go_on(bench, answer)
    theirs, their_state = _undisturbed(make_bench, session)

    lanes = [bench.runner.work_of(name)[0].lane for name in ("r1", "r4")]
    assert lanes == [0, 1], "the precondition of this test"
    assert (ours.text, ours.tokens) == (theirs.text, theirs.tokens)
    assert is_same_state(bench.state(1), their_state)


@pytest.mark.parametrize("keep_current", [True, False], ids=["keep", "drop"])
def test_detaching_copies_states_bit_by_bit(make_bench, session, side, keep_current):
    bench = make_bench(keep_current=keep_current)
    session.start(bench)
    layout = bench.scheduler.limits.layout
    current = bench.state(layout.lane_current(LANE))
    checkpoint = bench.state(layout.lane_checkpoint(LANE))
    bench.run(bench.request(side))

    assert is_same_state(bench.state(layout.entry_checkpoint(ENTRY)), checkpoint)
    if keep_current:
        assert is_same_state(bench.state(layout.entry_current(ENTRY)), current)


@pytest.mark.parametrize("exchange", [True, False], ids=["exchange", "no exchange"])
@pytest.mark.parametrize("lane", [0, 1])
def test_attaching_brings_back_what_was_detached(make_bench, session, ids, exchange, lane):
    """Compared before anything is computed, on the lane it came from and on another one."""
    bench = make_bench(lanes=1 + lane, exchange=exchange)
    answer = session.start(bench)
    layout = bench.scheduler.limits.layout
    expected = bench.state(
        layout.lane_current(LANE) if session.is_append else layout.lane_checkpoint(LANE)
    )
    for seed, length in [(4, 300), (5, 500)][: 1 + lane]:
        bench.run(bench.request(token_prompt(ids(seed, length))))
    attached = []
    bench.runner.after_moves = lambda _: attached.append(bench.state(lane))
    session.go_on(bench, answer)

    assert len(attached) == 1
    assert is_same_state(attached[0], expected)


def test_exchange_detaches_the_side_request_bit_by_bit(make_bench, session, side):
    bench = make_bench()
    answer = session.start(bench)
    bench.run(bench.request(side))
    layout = bench.scheduler.limits.layout
    current, checkpoint = bench.state(0), bench.state(layout.lane_checkpoint(LANE))
    session.go_on(bench, answer)

    assert is_same_state(bench.state(layout.entry_current(ENTRY)), current)
    assert is_same_state(bench.state(layout.entry_checkpoint(ENTRY)), checkpoint)


def test_pages_only_change_owner(make_bench, session, side):
    bench = make_bench()
    answer = session.start(bench)
    pages = list(bench.resting_on(0).pages)
    bench.run(bench.request(side))
    assert bench.kept_at(0).pages == pages
    session.go_on(bench, answer)

    assert bench.resting_on(0).pages[: len(pages)] == pages


def test_pages_of_a_detached_session_are_not_written(make_bench, session, side):
    bench = make_bench()
    session.start(bench)
    rows = torch.tensor(bench.pages.rows(bench.resting_on(0).pages, 0, len(session.first)))
    before = bench.pages.kv.index_select(2, rows)
    bench.run(bench.request(side))

    assert torch.equal(bench.pages.kv.index_select(2, rows), before)

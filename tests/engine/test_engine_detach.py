"""A session that was detached and attached is bitwise equal to one that never moved."""

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
    """Two turns of tokens; the second continues from the answer or from the boundary."""

    first: list[int]
    more: list[int]
    is_append: bool

    def start(self, bench: EngineBench):
        return bench.run(bench.request(token_prompt(self.first, BOUNDARY)))[0]

    def resume(self, bench: EngineBench, answer):
        history = [*self.first, *answer.tokens] if self.is_append else self.first[:BOUNDARY]
        return bench.run(bench.request(token_prompt([*history, *self.more]), max_tokens=20))[0]


@pytest.fixture(params=[True, False], ids=["append", "restore"])
def session(request, ids):
    return Session(ids(1, 100), ids(2, 30), request.param)


@pytest.fixture
def side(ids):
    """A side request with a lower value than the session under every profile."""
    return token_prompt(ids(3, 40), 30)


def _uninterrupted(make_bench, session):
    bench = make_bench()
    answer = session.resume(bench, session.start(bench))
    return answer, bench.state(bench.scheduler.limits.layout.lane_current(LANE))


@pytest.mark.parametrize("exchange", [True, False], ids=["exchange", "no exchange"])
def test_attached_session_equals_an_uninterrupted_one(make_bench, session, side, exchange):
    bench = make_bench(exchange=exchange)
    answer = session.start(bench)
    bench.run(bench.request(side))
    ours = session.resume(bench, answer)
    theirs, their_state = _uninterrupted(make_bench, session)

    assert ours.admission.attach == "registry", "precondition of this test"
    assert (ours.text, ours.tokens) == (theirs.text, theirs.tokens)
    assert is_same_state(bench.state(0), their_state)


def test_attached_session_in_drop_mode_has_the_tokens_of_an_uninterrupted_one(
    make_bench, session, side
):
    """In drop mode, the tokens after the checkpoint are recomputed in different chunks."""
    bench = make_bench(keep_current=False)
    answer = session.start(bench)
    bench.run(bench.request(side))
    ours = session.resume(bench, answer)
    theirs, _ = _uninterrupted(make_bench, session)

    assert ours.admission.reuse_path == "restore_turn_checkpoint", "precondition of this test"
    assert ours.tokens == theirs.tokens


def test_session_attached_to_another_lane_equals_an_uninterrupted_one(make_bench, session, ids):
    bench = make_bench(lanes=2)
    answer = session.start(bench)
    # Long sequences that fill their pages have the highest value: the second displaces the session.
    bench.run(*(bench.request(token_prompt(ids(seed, n))) for seed, n in ((4, 300), (5, 500))))
    ours = session.resume(bench, answer)
    theirs, their_state = _uninterrupted(make_bench, session)

    lanes = [bench.runner.work_of(name)[0].lane for name in ("r1", "r4")]
    assert lanes == [0, 1], "precondition of this test"
    assert (ours.text, ours.tokens) == (theirs.text, theirs.tokens)
    assert is_same_state(bench.state(1), their_state)


@pytest.mark.parametrize("keep_current", [True, False], ids=["keep", "drop"])
def test_detaching_copies_states_exactly(make_bench, session, side, keep_current):
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
def test_attaching_restores_the_detached_state(make_bench, session, ids, exchange, lane):
    """Compared before any token is computed, on the original lane and on another one."""
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
    session.resume(bench, answer)

    assert len(attached) == 1
    assert is_same_state(attached[0], expected)


def test_exchange_copies_the_states_of_the_side_request_exactly(make_bench, session, side):
    bench = make_bench()
    answer = session.start(bench)
    bench.run(bench.request(side))
    layout = bench.scheduler.limits.layout
    current, checkpoint = bench.state(0), bench.state(layout.lane_checkpoint(LANE))
    session.resume(bench, answer)

    assert is_same_state(bench.state(layout.entry_current(ENTRY)), current)
    assert is_same_state(bench.state(layout.entry_checkpoint(ENTRY)), checkpoint)


def test_detach_and_attach_copy_no_pages(make_bench, session, side):
    bench = make_bench()
    answer = session.start(bench)
    pages = list(bench.resting_on(0).pages)
    bench.run(bench.request(side))
    assert bench.kept_at(0).pages == pages
    session.resume(bench, answer)

    assert bench.resting_on(0).pages[: len(pages)] == pages


def test_pages_of_a_detached_session_are_not_written(make_bench, session, side):
    bench = make_bench()
    session.start(bench)
    rows = torch.tensor(bench.pages.rows(bench.resting_on(0).pages, 0, len(session.first)))
    before = bench.pages.kv.index_select(2, rows)
    bench.run(bench.request(side))

    assert torch.equal(bench.pages.kv.index_select(2, rows), before)

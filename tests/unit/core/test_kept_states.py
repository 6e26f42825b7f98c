"""The tree of kept states: which one a prompt finds, parents, and what freeing one changes."""

from __future__ import annotations

from itertools import permutations

import pytest

from kvreg_service.core.errors import CurrentSlotDropped, InvariantBroken
from kvreg_service.core.events import Evicted, StateKept
from kvreg_service.core.ids import LaneId, RequestId, pages_for
from kvreg_service.core.labels import EvictionReason, StateKind
from kvreg_service.core.memory.slots import LaneOwner, SlotLayout, StateOwner
from kvreg_service.core.requests.identity import Identity
from kvreg_service.core.requests.ledger import TokenLedger
from kvreg_service.core.states.cost import CostModel
from kvreg_service.core.states.store import StateStore

COST = CostModel(slot_bytes=1000, page_bytes=100)
OURS, THEIRS = Identity(b"epoch", "tenant"), Identity(b"epoch", "theirs")
TEXT = list(range(100, 500))
LANE = LaneId(0)


class Tree:
    """A store that requests leave states in. No request runs between two calls."""

    def __init__(self) -> None:
        self.store = StateStore(SlotLayout(2, 6), 64, COST)

    def keep(
        self, tokens, *positions, kind=StateKind.TURN, session=None, identity=OURS, boundaries=()
    ):
        """Keep the states of one request at some positions; return them."""
        store, ledger = self.store, TokenLedger(identity, tokens)
        session = session or store.begin_session(identity.tenant, 0.0)
        table = store.pages.allocate(pages_for(len(tokens)))
        kept = [
            store.keep(
                session,
                kind,
                ledger,
                position,
                slot=store.slots.take(LaneOwner(LANE)),
                pages=table,
                request_id=RequestId("r"),
                now_s=0.0,
                boundaries=boundaries,
            )
            for position in positions
        ]
        store.pages.release(table)
        self.check()
        return kept

    def free(self, state, reason=EvictionReason.REQUESTED):
        self.store.free(state, reason)
        self.check()

    def check(self):
        self.store.check_invariants({}, [])

    def find(self, tokens, identity=OURS):
        return self.store.find(TokenLedger(identity, tokens))


@pytest.fixture
def tree():
    return Tree()


# What a prompt finds.


def test_the_deepest_state_of_the_path_is_found(tree):
    near, deep = tree.keep(TEXT, 100, 200)
    assert tree.find(TEXT[:300]) is deep
    assert tree.find(TEXT[:150]) is near
    assert tree.find(TEXT[:100]) is None


@pytest.mark.parametrize("position", [1, 63, 64, 65, 128, 200])
def test_one_token_is_left_to_compute(tree, position):
    (state,) = tree.keep(TEXT, position)
    assert tree.find(TEXT[:position]) is None
    assert tree.find(TEXT[: position + 1]) is state


@pytest.mark.parametrize("wrong", [0, 63, 64, 127, 199])
def test_one_other_token_is_a_miss(tree, wrong):
    tree.keep(TEXT, 200)
    prompt = TEXT[:300]
    prompt[wrong] = 9999
    assert tree.find(prompt) is None


def test_a_state_of_another_branch_is_not_found(tree):
    tree.keep([*TEXT[:150], *[9] * 50], 200)
    (mine,) = tree.keep(TEXT, 120)
    assert tree.find(TEXT[:300]) is mine


def test_a_state_of_another_tenant_is_not_found(tree):
    (theirs,) = tree.keep(TEXT, 200, identity=THEIRS)
    assert tree.find(TEXT[:300]) is None
    assert tree.find(TEXT[:300], THEIRS) is theirs


def test_a_state_whose_digest_collides_is_passed_over_for_one_whose_tokens_are_equal(tree):
    near, deep = tree.keep(TEXT, 100, 200)
    # The digest of the deeper one is unchanged, one token before it differs.
    deep.ledger = deep.ledger.copy(200)
    deep.ledger.tokens[150] = 9999
    assert tree.find(TEXT[:300]) is near


def test_a_state_is_found_at_exactly_its_position(tree):
    near, deep = tree.keep(TEXT, 100, 200)
    ledger = TokenLedger(OURS, TEXT)
    found = [tree.store.find_at(ledger, position) for position in (99, 100, 101, 200)]
    assert found == [None, near, None, deep]
    assert tree.store.find_at(TokenLedger(OURS, [*TEXT[:99], 9, 9]), 100) is None


def test_the_longest_known_prefix_goes_beyond_the_kept_states(tree):
    tree.keep(TEXT, 100)
    known = tree.store.longest_known
    assert known(TokenLedger(OURS, [*TEXT[:317], 9, 9])) == 317
    assert known(TokenLedger(OURS, [9])) == 0
    assert known(TokenLedger(THEIRS, TEXT)) is None


def test_the_longest_known_prefix_counts_the_paths_of_running_requests(tree):
    tree.keep([*TEXT[:80], 9, 9], 50)
    prompt = TokenLedger(OURS, [*TEXT[:200], 8])
    running = [TokenLedger(OURS, TEXT), TokenLedger(THEIRS, [*TEXT[:200], 8, 8])]
    assert tree.store.longest_known(prompt) == 80
    assert tree.store.longest_known(prompt, running) == 200
    assert tree.store.longest_known(prompt, running[1:]) == 80


# Parents.


@pytest.mark.parametrize("order", list(permutations((64, 100, 150))))
def test_the_parent_is_the_longest_kept_prefix_in_any_order_of_capture(tree, order):
    for position in order:
        tree.keep(TEXT, position)
    states = sorted(tree.store, key=lambda state: state.position)
    assert [one.parent for one in states] == [None, *states[:2]]


def test_two_branches_have_the_state_before_them_as_parent(tree):
    (stem,) = tree.keep(TEXT, 100)
    (left,) = tree.keep(TEXT, 200)
    (right,) = tree.keep([*TEXT[:150], *[9] * 50], 200)
    (middle,) = tree.keep(TEXT, 150)
    assert [one.parent for one in (left, right, middle)] == [middle, middle, stem]


def test_a_state_of_another_tenant_is_no_parent(tree):
    tree.keep(TEXT, 100)
    (theirs,) = tree.keep(TEXT, 200, identity=THEIRS)
    assert theirs.parent is None


def test_the_states_behind_a_freed_one_get_its_parent(tree):
    stem, middle, end = tree.keep(TEXT, 50, 100, 150)
    tree.free(middle)
    assert end.parent is stem
    tree.free(stem)
    assert end.parent is None


def test_the_path_to_a_position_has_the_nearest_state_first(tree):
    near, deep = tree.keep(TEXT, 100, 200)
    tree.keep([*TEXT[:120], *[9] * 50], 130)
    ledger = TokenLedger(OURS, TEXT)
    assert tree.store.path_to(ledger, 300) == [deep, near]
    assert tree.store.path_to(ledger, 200) == [near]
    assert tree.store.path_to(ledger, 100) == []


def test_a_state_saves_the_prefill_from_the_nearest_kept_one_before_it(tree):
    tree.keep(TEXT, 100)
    ledger = TokenLedger(OURS, TEXT)
    whole = COST.prefill_seconds
    assert tree.store.saved_seconds(ledger, 300) == pytest.approx(whole(300) - whole(100))
    assert tree.store.saved_seconds(ledger, 100) == pytest.approx(whole(100))


# Keeping and freeing.


def test_a_kept_state_owns_its_slot_and_the_pages_up_to_its_position(tree):
    (state,) = tree.keep(TEXT, 150)
    assert tree.store.slots.owner(state.slot) == StateOwner(state.state_id)
    assert len(state.pages) == 3
    assert tree.store.pages.num_free == 64 - 3


def test_states_of_one_request_share_its_pages(tree):
    near, deep = tree.keep(TEXT, 100, 300)
    assert near.pages == deep.pages[:2]
    assert tree.store.own_bytes(near) == 1000
    assert tree.store.own_bytes(deep) == 1000 + 3 * 100


def test_keeping_and_freeing_a_state_are_reported(tree):
    (state,) = tree.keep(TEXT, 150, kind=StateKind.ROUND)
    session_id = state.session.session_id
    tree.free(state, EvictionReason.QUOTA)
    assert tree.store.events == [
        StateKept(state.state_id, session_id, RequestId("r"), StateKind.ROUND, 150, False),
        Evicted(
            state_id=state.state_id,
            session_id=session_id,
            kind=StateKind.ROUND,
            reason=EvictionReason.QUOTA,
            tenant="tenant",
            tokens=150,
            freed_bytes=1000 + 3 * 100,
        ),
    ]


def test_a_freed_state_gives_back_its_slot_and_the_pages_of_its_own(tree):
    near, deep = tree.keep(TEXT, 100, 300)
    num_slots = tree.store.slots.num_free
    tree.free(deep)
    assert (tree.store.slots.num_free, tree.store.pages.num_free) == (num_slots + 1, 62)
    tree.free(near)
    assert (tree.store.slots.num_free, tree.store.pages.num_free) == (num_slots + 2, 64)
    assert list(tree.store) == []


def test_a_lane_takes_over_the_slot_and_the_pages_of_the_state_that_it_resumes(tree):
    near, deep = tree.keep(TEXT, 100, 300)
    store, pages = tree.store, deep.pages
    store.take_over(deep, LANE)
    assert store.slots.owner(deep.slot) == LaneOwner(LANE)
    store.check_invariants({deep.slot: LANE}, [pages])
    assert [event.reason for event in store.events[2:]] == [EvictionReason.SLOT_NEEDED]
    assert list(store) == [near]


def test_a_session_is_forgotten_with_its_last_state_unless_a_request_runs_on_it(tree):
    session = tree.store.begin_session("tenant", 0.0)
    near, deep = tree.keep(TEXT, 100, 200, session=session)
    tree.free(near)
    assert tree.store.find_session(session.session_id) is session
    session.num_running = 1
    tree.free(deep)
    assert tree.store.find_session(session.session_id) is session
    session.num_running = 0
    tree.store.forget_if_gone(session)
    assert tree.store.find_session(session.session_id) is None


def test_freeing_a_session_frees_its_states_and_no_others(tree):
    near, deep = tree.keep(TEXT, 100, 200)
    (other,) = tree.keep(TEXT, 300)
    tree.store.free_session(near.session, EvictionReason.EXPIRED)
    tree.check()
    assert list(tree.store) == [other]
    freed = [event for event in tree.store.events if isinstance(event, Evicted)]
    assert [event.state_id for event in freed] == [near.state_id, deep.state_id]


def test_what_a_session_needs_to_go_on_is_its_deepest_boundary_and_its_last_frontier(tree):
    session = tree.store.begin_session("tenant", 0.0)
    _, boundary = tree.keep(TEXT, 100, 200, session=session)
    assert (session.boundary, session.frontier) == (boundary, None)
    (first,) = tree.keep(TEXT, 250, session=session, kind=StateKind.FRONTIER)
    # A later answer of the same conversation may be shorter.
    (last,) = tree.keep([*TEXT[:200], 9, 9], 202, session=session, kind=StateKind.FRONTIER)
    assert session.essentials == [boundary, last]
    tree.free(last)
    assert session.frontier is first


# States whose conversation went on.


@pytest.mark.parametrize("kind", [StateKind.TURN, StateKind.ROUND, StateKind.RESPONSE])
def test_a_boundary_marks_the_states_of_its_conversation_before_it_as_followed(tree, kind):
    first = tree.keep(TEXT, 50)
    first += tree.keep(TEXT, 120, kind=StateKind.FRONTIER)
    (beside,) = tree.keep([*TEXT[:50], 9, 9], 52, kind=StateKind.FRONTIER)
    (new,) = tree.keep(TEXT, 200, kind=kind)
    assert [one.visits.is_followed for one in (*first, beside, new)] == [True, True, False, False]


def test_a_boundary_does_not_follow_the_other_boundaries_of_its_request(tree):
    first, turn = tree.keep(TEXT, 50, 100)
    tree.keep(TEXT, 200, kind=StateKind.ROUND, boundaries={100, 200})
    assert [one.visits.is_followed for one in (first, turn)] == [True, False]


def test_an_end_of_an_answer_or_a_shared_state_marks_nothing_as_followed(tree):
    (first,) = tree.keep(TEXT, 50)
    for position, kind in enumerate(
        (StateKind.FRONTIER, StateKind.HEAD, StateKind.BRANCH_POINT), start=100
    ):
        tree.keep(TEXT, position, kind=kind)
    assert not first.visits.is_followed


@pytest.mark.parametrize("kind", [StateKind.HEAD, StateKind.BRANCH_POINT])
def test_a_shared_state_is_never_followed(tree, kind):
    (shared,) = tree.keep(TEXT, 50, kind=kind)
    tree.keep(TEXT, 200)
    assert not shared.visits.is_followed


# What a state inherits from freed ones beyond it.


def test_the_parent_of_a_freed_state_inherits_its_chance_of_a_return(tree):
    stem, middle, end = tree.keep(TEXT, 50, 100, 150)
    tree.free(end)
    assert middle.freed_beyond == [end.visits]
    tree.free(middle)
    assert stem.freed_beyond == [end.visits, middle.visits]


def test_a_freed_state_that_was_computed_again_is_no_longer_inherited(tree):
    stem, end = tree.keep(TEXT, 50, 100)
    tree.free(end)
    tree.store.rates.resume_freed(end.visits)
    (again,) = tree.keep(TEXT, 100)
    tree.free(again)
    assert stem.freed_beyond == [again.visits]


def test_a_state_inherits_from_the_last_eight_freed_ones(tree):
    (stem,) = tree.keep(TEXT, 50)
    freed = []
    for position in range(100, 110):
        (state,) = tree.keep(TEXT, position)
        freed.append(state.visits)
        tree.free(state)
    assert stem.freed_beyond == freed[-8:]


# Repair and checks.


def test_rebuilding_frees_a_slot_and_pages_that_nobody_holds(tree):
    (state,) = tree.keep(TEXT, 100)
    tree.store.slots.take(LaneOwner(LANE))
    tree.store.pages.allocate(3)
    tree.store.rebuild({}, [])
    tree.check()
    assert list(tree.store) == [state]
    assert tree.store.pages.num_free == 62


@pytest.mark.parametrize("is_in_tree", [True, False])
def test_rebuilding_gives_up_a_state_that_is_only_half_kept_and_reports_it_once(tree, is_in_tree):
    stem, half, end = tree.keep(TEXT, 50, 100, 150)
    half.session.states.remove(half)
    if not is_in_tree:
        half.session.states.append(half)
        tree.store._by_identity[OURS].remove(half)
    for _ in range(2):
        tree.store.rebuild({}, [])
        tree.check()
    assert list(tree.store) == [stem, end]
    assert end.parent is stem
    assert [
        (event.state_id, event.reason) for event in tree.store.events if isinstance(event, Evicted)
    ] == [(half.state_id, EvictionReason.FAILED)]


def _forget_parent(tree):
    tree.keep(TEXT, 50, 100)[1].parent = None


def _lose_page(tree):
    (state,) = tree.keep(TEXT, 100)
    tree.store.pages.release(state.pages)
    state.pages = state.pages[:1]
    tree.store.pages.recount([state.pages])


def _leave_session(tree):
    (state,) = tree.keep(TEXT, 100)
    state.session.states.clear()


def _join_second_session(tree):
    (state,) = tree.keep(TEXT, 100)
    tree.store.begin_session("tenant", 0.0).states.append(state)


def _leak_slot(tree):
    tree.store.slots.take(LaneOwner(LANE))


def _leak_page(tree):
    tree.store.pages.allocate(1)


@pytest.mark.parametrize(
    "damage",
    [_forget_parent, _lose_page, _leave_session, _join_second_session, _leak_slot, _leak_page],
)
def test_a_contradiction_breaks_an_invariant(tree, damage):
    damage(tree)
    with pytest.raises(InvariantBroken):
        tree.check()


def test_a_frontier_of_a_displaced_session_must_not_be_kept_in_drop_mode(tree):
    (state,) = tree.keep(TEXT, 100, kind=StateKind.FRONTIER)
    tree.store.check_dropped([state.session])
    with pytest.raises(CurrentSlotDropped) as caught:
        tree.store.check_dropped([])
    assert caught.value.fields["session"] == state.session.session_id

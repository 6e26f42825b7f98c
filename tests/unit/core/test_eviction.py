"""Eviction order rules common to all policies, and sequences that may not be evicted."""

from __future__ import annotations

from kvreg_service.core.eviction import EvictionOrder
from kvreg_service.core.requests.identity import Identity
from kvreg_service.core.ids import SequenceId, pages_for
from kvreg_service.core.labels import CheckpointKind
from kvreg_service.core.requests.ledger import TokenLedger
from kvreg_service.core.policies import CostPolicy, build_policy
from kvreg_service.core.states.quota import Quota
from kvreg_service.core.sequence import Checkpoint, Sequence
from kvreg_service.core.value import CostModel

COST = CostModel(slot_bytes=1000, page_bytes=100)


def _kept(
    number=1,
    tokens=1000,
    last_used_s=0.0,
    checkpoint=None,
    created_s=0.0,
    tenant="tenant",
    **options,
):
    return Sequence(
        sequence_id=SequenceId(number),
        ledger=TokenLedger(Identity(b"epoch", tenant)),
        created_s=created_s,
        last_used_s=last_used_s,
        frontier=tokens,
        checkpoint=None if checkpoint is None else Checkpoint(checkpoint, CheckpointKind.TURN),
        pages=list(range(pages_for(tokens))),
        **options,
    )


def _order(*sequences, now_s=0.0):
    order = EvictionOrder(sequences, [], CostPolicy(COST), {}, now_s)
    return [sequence.sequence_id for sequence in sorted(sequences, key=order.rank)]


def test_a_superseded_fork_is_evicted_before_its_branch_whatever_its_value():
    fork = _kept(1, tokens=30_000, num_hits=50, superseded_by=SequenceId(2))
    assert _order(_kept(2, tokens=100, num_hits=52), fork) == [1, 2]


def test_a_fork_whose_branch_was_resumed_once_outlasts_a_side_request():
    fork = _kept(1, tokens=1000, superseded_by=SequenceId(2))
    branch, side = _kept(2, tokens=1030, num_hits=1), _kept(3, tokens=50)
    assert _order(branch, fork, side) == [3, 1, 2]


def test_a_fork_whose_branch_was_resumed_once_is_evicted_before_a_session_of_its_size():
    fork = _kept(1, tokens=1000, superseded_by=SequenceId(2))
    branch, session = _kept(2, tokens=1030, num_hits=1), _kept(3, tokens=900)
    assert _order(branch, fork, session)[0] == 1


def test_a_fork_whose_successor_is_gone_is_ranked_by_its_value():
    fork = _kept(1, tokens=30_000, superseded_by=SequenceId(9))
    assert _order(fork, _kept(2, tokens=100)) == [2, 1]


def test_the_least_valuable_is_evicted_first():
    assert _order(_kept(1, tokens=500), _kept(2, tokens=400), _kept(3, tokens=600)) == [2, 1, 3]


def test_among_equal_values_the_oldest_is_evicted_first():
    assert _order(_kept(2), _kept(1), _kept(3)) == [1, 2, 3]


def test_a_pinned_sequence_ranks_last_and_may_not_be_evicted():
    pinned, session = _kept(1, tokens=10, pinned_until_s=5.0), _kept(2, tokens=9000)
    order = EvictionOrder([pinned, session], [], CostPolicy(COST), {}, 4.0)
    assert order.rank(pinned) > order.rank(session)
    assert order.first([pinned], "tenant") is None


def test_a_sequence_may_be_evicted_when_its_pin_has_expired():
    pinned = _kept(1, pinned_until_s=5.0)
    assert EvictionOrder([pinned], [], CostPolicy(COST), {}, 5.0).first([pinned], "b") is pinned


def test_a_sequence_within_a_quota_is_evicted_only_for_its_own_tenant():
    kept = _kept(1, tenant="a")
    order = EvictionOrder([kept], [], CostPolicy(COST), {"a": Quota(1, 9)}, 0.0)
    assert order.first([kept], "b") is None
    assert order.first([kept], "a") is kept


def test_a_sequence_without_a_quota_may_be_evicted_for_any_tenant():
    kept = _kept(1, tenant="b")
    order = EvictionOrder([kept], [], CostPolicy(COST), {"a": Quota(1, 9)}, 0.0)
    assert order.first([kept], "a") is kept


def test_a_lent_sequence_may_be_evicted_for_any_tenant():
    kept = _kept(1, tenant="a", is_lent=True)
    order = EvictionOrder([kept], [], CostPolicy(COST), {"a": Quota(1, 9)}, 0.0)
    assert order.first([kept], "b") is kept


def test_every_policy_discounts_the_value_of_a_superseded_fork():
    for name in ("cost", "lru", "lfu", "fifo", "slru", "priority"):
        fork, twin = _kept(1, superseded_by=SequenceId(3)), _kept(2)
        branch = _kept(3, num_hits=1)
        order = EvictionOrder([fork, twin, branch], [], build_policy(name, COST), {}, 9.0)
        assert order.rank(fork) < order.rank(twin), name

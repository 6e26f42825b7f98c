"""The eviction policies: the same traffic has a different victim under each policy."""

from __future__ import annotations

import pytest

from kvreg_service.core.events import Evicted
from kvreg_service.core.eviction import EvictionOrder
from kvreg_service.core.requests.identity import Identity
from kvreg_service.core.ids import SequenceId, pages_for
from kvreg_service.core.labels import EvictionReason
from kvreg_service.core.requests.ledger import TokenLedger
from kvreg_service.core.policies import POLICY_NAMES, LFUPolicy, SLRUPolicy, build_policy
from kvreg_service.core.sequence import Sequence
from kvreg_service.core.value import CostModel

COST = CostModel(slot_bytes=1000, page_bytes=640)


# The eviction order alone.


def _kept(number, *, tokens=300, created_s=0.0, last_used_s=0.0, num_hits=0, priority=0):
    return Sequence(
        sequence_id=SequenceId(number),
        ledger=TokenLedger(Identity(b"epoch", "tenant")),
        created_s=created_s,
        last_used_s=last_used_s,
        frontier=tokens,
        pages=list(range(pages_for(tokens))),
        num_hits=num_hits,
        priority=priority,
    )


OLDEST, LEAST_RECENT, NEVER_RESUMED, SHORT, UNIMPORTANT, SELDOM, RECENT, NEWEST = range(1, 9)
EIGHT = (
    _kept(OLDEST, created_s=0.0, last_used_s=180.0, num_hits=3),
    _kept(LEAST_RECENT, created_s=10.0, last_used_s=20.0, num_hits=9, tokens=1500),
    _kept(NEVER_RESUMED, created_s=190.0, last_used_s=190.0, tokens=700),
    _kept(SHORT, created_s=30.0, last_used_s=182.0, num_hits=2, tokens=20),
    _kept(UNIMPORTANT, created_s=40.0, last_used_s=184.0, num_hits=2, priority=-1),
    _kept(SELDOM, created_s=50.0, last_used_s=60.0, num_hits=1, tokens=1500),
    _kept(RECENT, created_s=195.0, last_used_s=195.0),
    _kept(NEWEST, created_s=199.0, last_used_s=199.0),
)
NOW_S = 200.0
VICTIMS = {
    "cost": SHORT,
    "lru": LEAST_RECENT,
    "lfu": SELDOM,
    "fifo": OLDEST,
    "slru": NEVER_RESUMED,
    "priority": UNIMPORTANT,
    "none": LEAST_RECENT,
}


def _order(name, sequences, now_s=NOW_S):
    policy = build_policy(name, COST)
    order = EvictionOrder(sequences, [], policy, {}, now_s)
    return [one.sequence_id for one in sorted(sequences, key=order.rank)]


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_each_policy_evicts_its_own_victim_first(name):
    assert _order(name, EIGHT)[0] == VICTIMS[name]


@pytest.mark.parametrize("name", POLICY_NAMES)
@pytest.mark.parametrize("now_s", [0.0, 1e3, 1e9])
def test_every_value_is_finite_and_positive(name, now_s):
    policy = build_policy(name, COST)
    for one in EIGHT:
        assert 0.0 < policy.value(one, now_s) < float("inf")


# lfu.


def test_lfu_ranks_by_uses_before_recency():
    often, once = _kept(1, num_hits=3, last_used_s=80.0), _kept(2, last_used_s=100.0)
    assert _order("lfu", [often, once]) == [2, 1]


def test_lfu_halves_the_use_count_in_each_half_life():
    policy = LFUPolicy(half_life_s=60.0)
    four = _kept(1, num_hits=3)
    assert policy.value(four, 60.0) == pytest.approx(2.0)
    assert policy.value(four, 120.0) == pytest.approx(1.0)


def test_lfu_evicts_a_frequently_used_sequence_after_a_long_idle_time():
    frequent, once = _kept(1, num_hits=99, last_used_s=0.0), _kept(2, last_used_s=500.0)
    assert _order("lfu", [frequent, once], now_s=500.0) == [1, 2]


def test_lfu_ranks_by_uses_after_equal_idle_time():
    """The decay depends on idle time only; with equal idle time the use count decides."""
    often, seldom = _kept(1, num_hits=5), _kept(2, num_hits=4)
    for now_s in (0.0, 100.0, 3000.0):
        assert _order("lfu", [often, seldom], now_s) == [2, 1]


# fifo, lru.


def test_fifo_ignores_uses():
    old, new = _kept(1, created_s=0.0, last_used_s=99.0, num_hits=50), _kept(2, created_s=50.0)
    assert _order("fifo", [old, new]) == [1, 2]


def test_lru_ignores_age_uses_and_size():
    old = _kept(1, created_s=0.0, last_used_s=99.0, tokens=10)
    new = _kept(2, created_s=50.0, last_used_s=60.0, tokens=5000, num_hits=50)
    assert _order("lru", [old, new]) == [2, 1]


# slru.


def test_slru_evicts_never_resumed_sequences_first():
    resumed = _kept(1, num_hits=1, last_used_s=0.0)
    fresh = [_kept(2, last_used_s=98.0), _kept(3, last_used_s=99.0)]
    assert _order("slru", [resumed, *fresh]) == [2, 3, 1]


def test_slru_evicts_the_least_recently_used_within_each_segment():
    sequences = [
        _kept(1, num_hits=1, last_used_s=50.0),
        _kept(2, num_hits=7, last_used_s=40.0),
        _kept(3, last_used_s=90.0),
        _kept(4, last_used_s=80.0),
    ]
    assert _order("slru", sequences) == [4, 3, 2, 1]


@pytest.mark.parametrize(("num_kept", "num_protected"), [(1, 0), (2, 0), (3, 1), (5, 3), (11, 8)])
def test_slru_limits_the_protected_segment(num_kept, num_protected):
    kept = [_kept(n, num_hits=1, last_used_s=float(n)) for n in range(1, num_kept + 1)]
    levels = SLRUPolicy().levels(kept)
    assert set(levels) == {one.sequence_id for one in kept[num_kept - num_protected :]}


def test_slru_evicts_the_least_recently_used_resumed_sequence_before_a_new_one():
    resumed = [_kept(n, num_hits=2, last_used_s=float(n)) for n in range(1, 6)]
    new = _kept(6, last_used_s=99.0)
    # Four of six are protected.
    assert _order("slru", [*resumed, new])[:2] == [1, 6]


# priority.


def test_priority_ranks_before_value():
    important, valuable = _kept(1, tokens=10, priority=1), _kept(2, tokens=9000)
    assert _order("priority", [important, valuable]) == [2, 1]


def test_priority_ranks_equal_priorities_by_cost():
    sequences = [_kept(1, tokens=900), _kept(2, tokens=100), _kept(3, tokens=400)]
    assert _order("priority", sequences) == _order("cost", sequences) == [2, 3, 1]


@pytest.mark.parametrize("name", [name for name in POLICY_NAMES if name != "priority"])
def test_all_other_policies_ignore_priority(name):
    same = [_kept(number, priority=-number) for number in (1, 2, 3)]
    assert _order(name, same) == [1, 2, 3]


# Through the scheduler: the victims of the same traffic.

LENGTHS = {OLDEST: 250, LEAST_RECENT: 1500, NEVER_RESUMED: 700, SHORT: 20, UNIMPORTANT: 240}
LENGTHS |= {SELDOM: 1400, RECENT: 300, NEWEST: 300}
TRAFFIC = (
    *(OLDEST, *[LEAST_RECENT] * 10, SELDOM, SELDOM, SHORT, UNIMPORTANT),
    *("pause", SHORT, UNIMPORTANT, SHORT, UNIMPORTANT, *[OLDEST] * 3, NEVER_RESUMED),
    *(RECENT, NEWEST),
)
PAUSE_S = 100.0


def _text(number: int, length: int) -> list[int]:
    return list(range(10_000 * number, 10_000 * number + length))


def _play(make_core, name, **options):
    """Run the traffic of the eight sessions above; return the core and their names by id."""
    core = make_core(policy=name, num_pages=95, **options)
    for number in TRAFFIC:
        if number == "pause":
            core.now_s += PAUSE_S
            continue
        length = LENGTHS[number]
        priority = -1 if number == UNIMPORTANT else 0
        core.run([*_text(number, length), 7], boundary=length, max_tokens=1, priority=priority)
    names = {one.sequence_id: one.ledger.tokens[0] // 10_000 for one in core.kept()}
    assert sorted(names.values()) == list(range(1, 9)), "precondition of these tests"
    return core, names


def _victims(outcome, names):
    return [(names[event.sequence_id], event.reason) for event in outcome.of(Evicted)]


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_each_policy_displaces_its_own_victim_from_a_lane(make_core, name):
    core, names = _play(make_core, name, lanes=8)
    outcome = core.run(_text(9, 90), max_tokens=1)
    assert _victims(outcome, names) == [(VICTIMS[name], EvictionReason.DISPLACED)]


@pytest.mark.parametrize("name", [name for name in POLICY_NAMES if name != "none"])
def test_each_policy_evicts_the_entry_of_its_own_victim(make_core, name):
    core, names = _play(make_core, name, lanes=1, entries=7)
    outcome = core.run(_text(9, 90), max_tokens=1)
    assert _victims(outcome, names) == [(VICTIMS[name], EvictionReason.ENTRY_NEEDED)]


def test_policy_none_evicts_the_displaced_sequence(make_core):
    core, names = _play(make_core, "none", lanes=1, entries=7)
    outcome = core.run(_text(9, 90), max_tokens=1)
    assert _victims(outcome, names) == [(NEWEST, EvictionReason.DISPLACED)]


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_each_policy_evicts_its_own_victim_under_page_pressure(make_core, name):
    core, names = _play(make_core, name, lanes=9)
    num_free = core.scheduler.holdings.pages.num_free
    outcome = core.run(_text(9, 64 * num_free), max_tokens=2)
    assert _victims(outcome, names) == [(VICTIMS[name], EvictionReason.PAGES_NEEDED)]

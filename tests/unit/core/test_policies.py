"""The eviction policies: the same states and the same traffic have a victim under each policy."""

from __future__ import annotations

import math

import pytest

from kvreg_service.core.errors import ConfigurationError
from kvreg_service.core.events import Evicted
from kvreg_service.core.ids import SessionId
from kvreg_service.core.labels import EvictionReason, StateKind
from kvreg_service.core.requests.identity import Identity
from kvreg_service.core.requests.ledger import TokenLedger
from kvreg_service.core.states.kept_state import Session
from kvreg_service.core.states.policies import POLICIES, Prospect, find_policy
from kvreg_service.core.states.return_rates import Visits

KEY = TokenLedger(Identity(b"epoch", "tenant")).prefix_key(0)


def _prospect(*, saved_s=1.0, rate=0.1, rest=5, priority=0):
    session = Session(SessionId(1), "tenant", 0.0, 0.0, priority=priority)
    return Prospect(session, Visits(KEY, StateKind.TURN), saved_s, rate, rest)


SMALL = _prospect(saved_s=0.2)
UNLIKELY = _prospect(rate=0.03)
OLD = _prospect(rest=900, rate=0.5)
UNIMPORTANT = _prospect(saved_s=9.0, rest=1, priority=-1)
USUAL = _prospect()
PROSPECTS = {
    "small": SMALL,
    "unlikely": UNLIKELY,
    "old": OLD,
    "unimportant": UNIMPORTANT,
    "usual": USUAL,
}


def _order(name):
    policy = find_policy(name)
    return sorted(
        PROSPECTS, key=lambda one: (policy.level(PROSPECTS[one]), policy.value(PROSPECTS[one]))
    )


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("cost", ["small", "unlikely", "usual", "old", "unimportant"]),
        ("priority", ["unimportant", "small", "unlikely", "usual", "old"]),
    ],
)
def test_cost_and_priority_order_by_the_expected_seconds_saved(name, order):
    assert _order(name) == order


@pytest.mark.parametrize("name", ["lru", "none"])
def test_lru_and_none_order_by_the_last_use_only(name):
    assert (_order(name)[0], _order(name)[-1]) == ("old", "unimportant")
    policy = find_policy(name)
    assert policy.value(SMALL) == policy.value(UNLIKELY) == policy.value(USUAL)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("saved_s", [0.0, 1e-6, 1e6])
@pytest.mark.parametrize("rest", [0, 10**6])
def test_every_value_is_finite_and_not_negative(name, saved_s, rest):
    value = find_policy(name).value(_prospect(saved_s=saved_s, rate=1e-9, rest=rest))
    assert value >= 0
    assert math.isfinite(value)


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "priority"])
def test_all_other_policies_have_one_level(name):
    assert {find_policy(name).level(one) for one in PROSPECTS.values()} == {0}


def test_only_the_policies_of_seconds_divide_by_pages():
    assert [name for name, one in POLICIES.items() if one.is_per_page] == ["cost", "priority"]


def test_only_policy_none_frees_nothing_to_make_room():
    assert [name for name, one in POLICIES.items() if one.keeps_only_r_sessions] == ["none"]


def test_policies_are_found_by_their_names():
    assert [find_policy(name).name for name in POLICIES] == list(POLICIES)


def test_an_unknown_policy_is_refused_with_the_valid_names():
    with pytest.raises(ConfigurationError) as caught:
        find_policy("lru2")
    assert all(name in caught.value.message for name in POLICIES)


# Through the scheduler: the first victim of the same traffic. One state each, in each slot one.

OLDEST, SHORT, UNLOVED, LONG = range(1, 5)
LENGTHS = {OLDEST: 300, SHORT: 70, UNLOVED: 350, LONG: 800}
VICTIMS = {"cost": SHORT, "lru": OLDEST, "priority": UNLOVED, "none": OLDEST}


def _text(number: int, length: int) -> list[int]:
    return list(range(10_000 * number, 10_000 * number + length))


def _play(make_core, name, **options):
    core = make_core(policy=name, **options)
    for number, length in LENGTHS.items():
        priority = -1 if number == UNLOVED else 0
        core.run(_text(number, length), max_tokens=1, priority=priority)
    assert [one.position for one in core.states()] == list(LENGTHS.values()), "precondition"
    return core


def _victims(outcome):
    names = {length: number for number, length in LENGTHS.items()}
    return [(names[event.tokens], event.reason) for event in outcome.of(Evicted)]


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "none"])
def test_each_policy_takes_the_slot_of_its_own_victim(make_core, name):
    core = _play(make_core, name, entries=1)
    outcome = core.run(_text(9, 400), max_tokens=1)
    assert _victims(outcome) == [(VICTIMS[name], EvictionReason.SLOT_NEEDED)]


def test_policy_none_gives_up_the_session_on_the_lane(make_core):
    core = make_core(policy="none", entries=1)
    for number, length in LENGTHS.items():
        core.run(_text(number, length), max_tokens=1)
    assert [one.position for one in core.states()] == [LENGTHS[OLDEST], LENGTHS[LONG]]
    outcome = core.run(_text(9, 400), max_tokens=1)
    assert _victims(outcome) == [(LONG, EvictionReason.DISPLACED)]


@pytest.mark.parametrize("name", POLICIES)
def test_each_policy_frees_the_pages_of_its_own_victim(make_core, name):
    core = _play(make_core, name, lanes=5, num_pages=40)
    num_free = core.scheduler.store.pages.num_free
    outcome = core.run(_text(9, 64 * num_free), max_tokens=2)
    assert _victims(outcome) == [(VICTIMS[name], EvictionReason.PAGES_NEEDED)]

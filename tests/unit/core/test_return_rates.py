"""How often states are resumed: ages in admissions, what is learned, and the rate of a state."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kvreg_service.core.labels import StateKind
from kvreg_service.core.requests.identity import Identity
from kvreg_service.core.requests.ledger import TokenLedger
from kvreg_service.core.states.return_rates import (
    AGE_EDGES,
    RateTable,
    ReturnRates,
    Visits,
    pace_of,
)

TEXT = TokenLedger(Identity(b"epoch", "tenant"), range(1000))
BOUNDARIES = [StateKind.TURN, StateKind.ROUND, StateKind.RESPONSE]
SHARED = [StateKind.HEAD, StateKind.BRANCH_POINT]
MANY = 200
"""Rests that outweigh every expectation."""


def _visits(position=100, kind=StateKind.TURN, **options):
    return Visits(TEXT.prefix_key(position), kind, **options)


def _pass(rates, count):
    for _ in range(count):
        rates.count_admission()


def _at_age(rates, age, **options):
    """Return visits that rest for ``age`` admissions."""
    visits = _visits(**options)
    rates.rest(visits)
    _pass(rates, age)
    return visits


def _learn(rates, age, count=MANY, **options):
    """Count states that are all resumed at ``age``."""
    for _ in range(count):
        rates.resume(_at_age(rates, age, **options))


def _learn_no_returns(rates, count=MANY, **options):
    """Count states that rest long and are not resumed; nothing else happens meanwhile."""
    for _ in range(count):
        rates.rest(_visits(**options))
    _pass(rates, 3000)


def _rates_by_age(rates, *ages, **options):
    """Return the rates at some ages, without a change of the counts."""
    return [
        rates.rate(_visits(age_class=AGE_EDGES.index(age), resting_since=0, **options))
        for age in ages
    ]


# Ages.


def test_age_classes_have_two_edges_to_a_doubling():
    assert AGE_EDGES[:9] == (1, 2, 3, 4, 6, 8, 12, 16, 24)


@pytest.mark.parametrize("age", [1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 100])
def test_a_state_at_rest_grows_older_with_every_admission(age):
    visits = _at_age(ReturnRates(), age)
    reached = AGE_EDGES[visits.age_class]
    assert reached <= age < AGE_EDGES[visits.age_class + 1]


def test_a_state_in_use_does_not_grow_older():
    rates = ReturnRates()
    visits = _at_age(rates, 5)
    rates.resume(visits)
    _pass(rates, 20)
    assert (visits.age_class, visits.resting_since) == (0, None)


def test_the_next_rest_begins_at_age_zero():
    rates = ReturnRates()
    visits = _at_age(rates, 5)
    rates.resume(visits)
    rates.rest(visits)
    assert (visits.age_class, visits.resting_since) == (0, 5)
    # What was due in the first rest is not counted in the second.
    _pass(rates, 1)
    assert visits.age_class == 0


@pytest.mark.parametrize(("age", "pace"), [(1, 1), (3, 1), (4, 2), (11, 2), (12, 3), (500, 3)])
def test_the_pace_of_a_conversation_is_the_class_of_its_last_rest(age, pace):
    rates = ReturnRates()
    visits = _at_age(rates, age)
    assert pace_of(visits) == pace
    rates.resume(visits)
    assert visits.pace == pace


# Counts.


def _counts(rates, **options):
    """Return what was counted of a class: states that left each age class, and returns in it."""
    (table,) = (t for c, t in rates.tables() if c == _visits(**options).state_class)
    return table.rested, table.returned


def test_a_return_is_counted_at_its_age_and_every_age_before_it_without_one():
    rates = ReturnRates()
    rates.resume(_at_age(rates, 4))
    rested, returned = _counts(rates)
    assert rested[:5] == [1, 1, 1, 1, 0]
    assert returned[:5] == [0, 0, 0, 1, 0]


def test_a_return_that_a_freed_state_would_have_had_is_not_counted_twice():
    rates = ReturnRates()
    visits = _at_age(rates, 1)
    rates.resume(visits, is_deepest=False)
    assert visits.num_returns == 1
    assert list(rates.tables()) == []


def test_kinds_followed_states_and_paces_are_counted_apart():
    rates = ReturnRates()
    for options in ({}, {"kind": StateKind.HEAD}, {"is_followed": True}, {"pace": 2}):
        rates.resume(_at_age(rates, 1, **options))
        assert _counts(rates, **options)[1][0] == 1
    assert len(list(rates.tables())) == 4


def test_counts_are_halved_so_that_old_traffic_is_forgotten():
    table = RateTable()
    for _ in range(4096):
        table.count(0, is_return=True)
    assert table.rested[0] == 4096
    table.count(0, is_return=True)
    assert (table.rested[0], table.returned[0]) == (4097 / 2, 4097 / 2)
    for _ in range(4096):
        table.count(0, is_return=False)
    assert table.chance(0, 0.0, 0.0) < 0.5


# Freed states.


def test_a_freed_state_is_watched_and_found_by_the_prompt_that_would_have_resumed_it():
    rates = ReturnRates()
    near, deep = _visits(100), _visits(200)
    for visits in (near, deep):
        rates.free(visits)
    assert near.is_watched
    assert rates.find_freed(TEXT, 0) is deep
    assert rates.find_freed(TEXT, 200) is None
    assert rates.find_freed(TEXT.copy(200), 0) is near
    other = TokenLedger(TEXT.identity, [*range(150), *[7] * 100])
    assert rates.find_freed(other, 0) is near


def test_the_return_of_a_freed_state_is_counted_at_its_age():
    rates = ReturnRates()
    visits = _at_age(rates, 2)
    rates.free(visits)
    _pass(rates, 2)
    rates.resume_freed(visits)
    assert _counts(rates)[1][:4] == [0, 0, 0, 1]
    assert not visits.is_watched
    assert rates.find_freed(TEXT, 0) is None
    _pass(rates, 50)
    assert sum(_counts(rates)[0]) == 4, "it is not counted any longer"


def test_the_first_of_many_freed_states_is_watched_no_longer():
    rates = ReturnRates()
    freed = [_at_age(rates, 0, position=1 + number) for number in range(401)]
    for visits in freed:
        rates.free(visits)
    assert [one.is_watched for one in freed] == [False, *[True] * 400]
    assert rates.find_freed(TEXT.copy(3), 0) is freed[1]
    _pass(rates, 2)
    assert sum(_counts(rates)[0]) == 400


# Rates.


@pytest.mark.parametrize("kind", list(StateKind))
def test_before_anything_is_learned_the_rate_halves_with_every_doubling_of_the_age(kind):
    at = _rates_by_age(ReturnRates(), 1, 2, 4, 8, 16, 32, 64, 1024, kind=kind)
    assert at[0] == at[1] > 0
    assert [older / younger for younger, older in pairwise(at[1:-1])] == pytest.approx([0.5] * 5)
    assert at[-1] == pytest.approx(at[-2] / 16)


@pytest.mark.parametrize("kind", [*BOUNDARIES, StateKind.FRONTIER])
def test_a_state_whose_conversation_went_on_is_expected_to_return_less(kind):
    rates = ReturnRates()
    (followed,) = _rates_by_age(rates, 1, kind=kind, is_followed=True)
    (last,) = _rates_by_age(rates, 1, kind=kind)
    assert 0 < followed < last


@pytest.mark.parametrize("kind", SHARED)
def test_a_shared_state_is_expected_to_return_less_than_the_end_of_a_conversation(kind):
    rates = ReturnRates()
    assert 0 < _rates_by_age(rates, 1, kind=kind)[0] < _rates_by_age(rates, 1)[0]


@pytest.mark.parametrize("kind", list(StateKind))
def test_a_rate_as_if_the_conversation_had_gone_on_changes_nothing(kind):
    rates = ReturnRates()
    _learn(rates, 1, kind=kind)
    visits = _visits(kind=kind)
    as_if = rates.rate(visits, is_followed=True)
    assert not visits.is_followed
    if visits.can_be_followed:
        assert as_if == rates.rate(_visits(kind=kind, is_followed=True)) < rates.rate(visits)
    else:
        assert as_if == rates.rate(visits)


@pytest.mark.parametrize("age", [3, 8, 12, 48])
def test_a_class_that_always_returns_at_one_age_is_worth_most_just_before_it(age):
    rates = ReturnRates()
    _learn(rates, age)
    edges = [edge for edge in AGE_EDGES if edge <= 4 * age]
    at = dict(zip(edges, _rates_by_age(rates, *edges), strict=True))
    before = [at[edge] for edge in edges if edge <= age]
    assert before == sorted(before)
    assert max(at, key=lambda edge: at[edge]) == age
    assert all(at[edge] < at[age] / 10 for edge in edges if edge > age)


def test_the_rate_is_that_of_the_best_horizon():
    rates = ReturnRates()
    _learn(rates, 12)
    # Every state returns within 12 admissions, at the end of a class of four.
    width = AGE_EDGES[AGE_EDGES.index(12) + 1] - 12
    assert _rates_by_age(rates, 12)[0] == pytest.approx(1 / width, rel=0.02)
    assert _rates_by_age(rates, 1)[0] == pytest.approx(1 / (11 + width), rel=0.05)


def test_a_class_without_returns_loses_its_rate():
    rates = ReturnRates()
    (before,) = _rates_by_age(rates, 1)
    _learn_no_returns(rates)
    assert _rates_by_age(rates, 1)[0] < before / 10


def test_a_class_keeps_its_rate_whatever_another_one_does():
    rates = ReturnRates()
    _learn(rates, 1, kind=StateKind.TURN)
    _learn_no_returns(rates, kind=StateKind.HEAD)
    returning, never = (
        _rates_by_age(rates, 1, kind=kind)[0] for kind in (StateKind.TURN, StateKind.HEAD)
    )
    assert returning > 0.9
    assert never < 0.05


def test_an_unknown_class_expects_what_all_classes_have_in_common():
    rates = ReturnRates()
    unknown = {"kind": StateKind.ROUND, "pace": 3}
    (before,) = _rates_by_age(rates, 1, **unknown)
    _learn(rates, 1)
    assert _rates_by_age(rates, 1, **unknown)[0] > 10 * before


def test_freed_states_that_would_have_returned_raise_the_rate():
    rates = ReturnRates()
    (before,) = _rates_by_age(rates, 1)
    for _ in range(MANY):
        visits = _at_age(rates, 1)
        rates.free(visits)
        rates.resume_freed(visits)
    assert _rates_by_age(rates, 1)[0] > 10 * before


def test_a_first_return_is_noticed_at_once():
    rates = ReturnRates()
    visits = _visits()
    before = rates.rate(visits)
    _learn(rates, 1, count=1)
    assert rates.rate(visits) > before


@pytest.mark.parametrize("kind", list(StateKind))
def test_every_rate_is_positive_and_at_most_one(kind):
    rates = ReturnRates()
    _learn(rates, 3)
    _learn(rates, 1, kind=StateKind.HEAD)
    _learn_no_returns(rates, kind=StateKind.FRONTIER)
    for is_followed in (False, True):
        at = _rates_by_age(rates, *AGE_EDGES[:-1], kind=kind, is_followed=is_followed)
        assert all(0 < rate <= 1 for rate in at)


def test_the_same_history_gives_the_same_rates():
    def learn():
        rates = ReturnRates()
        for number in range(300):
            visits = _at_age(rates, number % 7, kind=list(StateKind)[number % 6])
            if number % 3:
                rates.resume(visits)
        return _rates_by_age(rates, *AGE_EDGES[:-1])

    assert learn() == learn()

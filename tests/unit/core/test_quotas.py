"""A quota limits what is kept for a tenant, in sessions, heads and pages, and guarantees it."""

from __future__ import annotations

import pytest

from kvreg_service.core.errors import ConfigurationError
from kvreg_service.core.events import Admitted, Evicted, Finished
from kvreg_service.core.labels import EvictionReason
from kvreg_service.core.requests.identity import Identity
from kvreg_service.core.states.policies import POLICIES
from kvreg_service.core.states.quota import Quota

SHORT, LONG = 70, 400
A, B, OTHER = (Identity(b"epoch", name) for name in ("a", "b", "other"))
SMALL = {"num_pages": 16, "max_context_tokens": 512}
"""Sixteen pages, of which a full context takes eight."""


def _text(number: int, length: int) -> list[int]:
    return list(range(1000 * number, 1000 * number + length))


def _keep(core, identity, number, length=SHORT, **options):
    """Serve a session with a boundary at ``length``."""
    options = {"boundary": length, "max_tokens": 1, **options}
    return core.run([*_text(number, length), 7], identity=identity, **options)


def _with_quotas(make_core, quotas, **options):
    core = make_core(**options)
    core.scheduler.sessions.set_quotas(quotas, core.now_s)
    return core


def _kept(core, tenant):
    """Return the sessions of a tenant."""
    return [one for one in core.sessions() if one.tenant == tenant]


def _numbers(core, tenant):
    """Return the numbers of the texts whose sessions are kept."""
    return [one.states[0].ledger.tokens[0] // 1000 for one in _kept(core, tenant)]


def _num_pages(core, tenant):
    return len({page for one in core.states() if one.tenant == tenant for page in one.pages})


def _displaced(core, tenant):
    """Return the sessions of a tenant that are the last one of no lane."""
    on_lanes = [lane.session for lane in core.scheduler.lanes]
    return [one for one in _kept(core, tenant) if one not in on_lanes and not one.is_shared]


def _evicted(outcome, reason=None):
    return {
        (event.tenant, event.session_id)
        for event in outcome.of(Evicted)
        if reason in (None, event.reason)
    }


# The limit.


def test_a_tenant_keeps_no_more_displaced_sessions_than_its_quota(make_core):
    core = _with_quotas(make_core, {"a": Quota(entries=1, pages=32)}, entries=4)
    for number in range(4):
        _keep(core, A, number)
        assert len(_displaced(core, "a")) <= 1


def test_at_its_quota_a_tenant_loses_its_own_least_valuable_session(make_core):
    core = _with_quotas(make_core, {"a": Quota(entries=2, pages=32)}, entries=4)
    short, *_ = (_keep(core, A, n, length) for n, length in enumerate((SHORT, 300, 300)))
    outcome = _keep(core, B, 9)
    assert _evicted(outcome) == {("a", short.admission.session_id)}
    assert {event.reason for event in outcome.of(Evicted)} == {EvictionReason.QUOTA}
    assert core.scheduler.store.slots.num_free > 0


def test_a_tenant_keeps_no_more_pages_than_its_quota(make_core):
    core = _with_quotas(make_core, {"a": Quota(entries=4, pages=6)}, entries=4)
    for number, length in enumerate((100, 150, 120, 300, 60)):
        _keep(core, A, number, length)
        assert _num_pages(core, "a") <= 6


def test_above_its_page_quota_a_tenant_loses_its_own_states_only(make_core):
    core = _with_quotas(make_core, {"a": Quota(entries=4, pages=6)}, entries=4)
    _keep(core, OTHER, 9, SHORT)
    _keep(core, A, 1, SHORT)
    _keep(core, A, 2, 200)
    outcome = _keep(core, A, 3, 60)
    assert {tenant for tenant, _ in _evicted(outcome)} == {"a"}
    assert _kept(core, "other")


def test_a_session_larger_than_the_quota_is_not_kept(make_core):
    core = _with_quotas(make_core, {"a": Quota(entries=4, pages=6)}, entries=4)
    outcome = _keep(core, A, 1, LONG)
    assert _evicted(outcome, EvictionReason.QUOTA) == {("a", outcome.admission.session_id)}
    assert isinstance(outcome.terminal, Finished)
    assert _kept(core, "a") == []


def test_a_zero_quota_serves_requests_and_keeps_nothing(make_core):
    core = _with_quotas(make_core, {"a": Quota(entries=0, pages=0)}, entries=2, anchors=1)
    expected = make_core().run([*_text(1, LONG), 7], max_tokens=1).answer
    for _ in range(3):
        outcome = _keep(core, A, 1, LONG, heads=(128,))
        assert (outcome.cached, outcome.answer) == (0, expected)
        assert core.kept() == []


def test_all_states_of_a_session_count_as_one_entry(make_core):
    core = _with_quotas(make_core, {"a": Quota(entries=1, pages=32)}, entries=4)
    _keep(core, A, 1, 200)
    for tail in range(3):
        core.run([*_text(1, 200), *[tail] * 50], identity=A, boundary=249)
    _keep(core, OTHER, 2)
    (session,) = _displaced(core, "a")
    assert len(session.states) > 2


def test_shared_heads_are_limited_apart_from_sessions(make_core):
    core = _with_quotas(
        make_core, {"a": Quota(entries=1, pages=32, anchors=1)}, entries=1, anchors=3
    )
    for number in range(3):
        core.run([*_text(number, 200), 7], identity=A, heads=(128,), marks_heads=True)
        assert sum(one.is_shared for one in _kept(core, "a")) <= 1
    assert len(_displaced(core, "a")) == 1


def test_a_shared_page_counts_once(make_core):
    core = _with_quotas(
        make_core, {"a": Quota(entries=2, pages=5, anchors=1)}, entries=2, anchors=1
    )
    core.run([*_text(1, 200), 7], identity=A, heads=(192,), max_tokens=1)
    core.run([*_text(1, 195), *_text(2, 20)], identity=A, heads=(192,), max_tokens=1)
    # Three pages of the head and one page of each conversation.
    assert len(_kept(core, "a")) == 3
    assert _num_pages(core, "a") == 5


# The guarantee.


@pytest.mark.parametrize("policy", POLICIES)
def test_other_tenants_do_not_free_a_session_within_a_quota(make_core, policy):
    core = _with_quotas(make_core, {"a": Quota(entries=1, pages=32)}, entries=2, policy=policy)
    kept = _keep(core, A, 1).admission.session_id
    for number in range(2, 9):
        outcome = _keep(core, OTHER, number, LONG, priority=9)
        assert ("a", kept) not in _evicted(outcome)
    assert _keep(core, A, 1).cached == SHORT


@pytest.mark.parametrize("policy", POLICIES)
def test_a_displaced_session_gets_the_place_guaranteed_by_its_quota(make_core, policy):
    core = _with_quotas(make_core, {"a": Quota(entries=1, pages=32)}, entries=1, policy=policy)
    _keep(core, OTHER, 1, LONG)
    _keep(core, A, 2, SHORT)
    _keep(core, OTHER, 3, LONG)
    assert _keep(core, A, 2).cached == SHORT


def test_other_tenants_do_not_free_pages_within_a_quota(make_core):
    core = _with_quotas(make_core, {"a": Quota(entries=2, pages=8)}, entries=3, **SMALL)
    kept = [_keep(core, A, number, 150).admission.session_id for number in (1, 2)]
    for number in range(3, 8):
        assert isinstance(_keep(core, OTHER, number, 450, max_tokens=50).terminal, Finished)
    assert [one.session_id for one in _kept(core, "a")] == kept


def test_other_tenants_do_not_free_heads_within_a_quota(make_core):
    core = _with_quotas(make_core, {"a": Quota(entries=0, pages=8, anchors=1)}, anchors=1)
    core.run([*_text(1, 100), 7], identity=A, heads=(64,))
    for number in range(2, 6):
        core.run([*_text(number, 900), 7], identity=OTHER, heads=(800,), marks_heads=True)
    assert core.run([*_text(1, 64), 9], identity=A).cached == 64


def test_a_tenant_with_a_quota_may_free_sessions_of_tenants_without_one(make_core):
    core = _with_quotas(make_core, {"a": Quota(entries=1, pages=4)}, entries=1, **SMALL)
    for number in (1, 2):
        _keep(core, OTHER, number, 450)
    outcome = _keep(core, A, 3, 500, max_tokens=11)
    assert isinstance(outcome.terminal, Finished)
    assert {tenant for tenant, _ in _evicted(outcome, EvictionReason.PAGES_NEEDED)} >= {"other"}


def test_two_tenants_with_quotas_do_not_free_each_others_sessions(make_core):
    quotas = {"a": Quota(entries=1, pages=4), "b": Quota(entries=1, pages=4)}
    core = _with_quotas(make_core, quotas, entries=2, **SMALL)
    kept = [_keep(core, one, n, 100).admission.session_id for n, one in enumerate((A, B))]
    for number in range(3, 9):
        _keep(core, (A, B)[number % 2], number, 60, retain=False)
    _keep(core, OTHER, 9, 500, max_tokens=11)
    assert [one.session_id for one in core.sessions() if one.tenant in "ab"] == kept


@pytest.mark.parametrize("quotas", [{}, {"a": Quota(2, 8, 1)}])
def test_no_tenant_reuses_the_kept_prefix_of_another(make_core, quotas):
    core = _with_quotas(make_core, quotas, entries=2, anchors=1)
    outcome = _keep(core, A, 1, LONG, heads=(128,))
    for identity in (B, OTHER):
        admission = _keep(core, identity, 1, LONG, heads=(128,)).admission
        assert (admission.cached_tokens, admission.diverged_at) == (0, None)
    assert outcome.cached == 0


# Lending: kept pages that back a promise to the tenant's own request.


def test_a_request_does_not_wait_for_pages_kept_by_its_own_tenant(make_core):
    core = _with_quotas(make_core, {"a": Quota(entries=2, pages=8)}, lanes=3, entries=2, **SMALL)
    for number in (1, 2):
        _keep(core, A, number, 200)
    core.submit(_text(8, 20), identity=OTHER, max_tokens=480)
    core.submit(_text(9, 20), identity=A, max_tokens=480)
    admitted = [e for _ in range(2) for e in core.step()[1] if isinstance(e, Admitted)]
    assert len(admitted) == 2
    outcome = core.drain()
    assert len(outcome.of(Finished)) == 2


def test_a_request_waits_for_pages_reserved_by_the_quota_of_another_tenant(make_core):
    core = _with_quotas(make_core, {"a": Quota(entries=2, pages=8)}, lanes=4, entries=2, **SMALL)
    for number in (1, 2):
        _keep(core, A, number, 200)
    first = core.submit(_text(8, 20), identity=OTHER, max_tokens=480)
    second = core.submit(_text(9, 20), identity=OTHER, max_tokens=480)
    admitted = [e for _ in range(3) for e in core.step()[1] if isinstance(e, Admitted)]
    assert [event.request_id for event in admitted] == [first]
    outcome = core.drain()
    assert outcome.admitted.request_id == second
    assert _numbers(core, "a") == [1, 2]


def test_lent_sessions_are_returned_when_the_request_has_ended(make_core):
    core = _with_quotas(make_core, {"a": Quota(entries=2, pages=8)}, lanes=3, entries=2, **SMALL)
    kept = {_keep(core, A, number, 200).admission.session_id for number in (1, 2)}
    other = core.submit(_text(8, 20), identity=OTHER, max_tokens=480)
    own = core.submit(_text(9, 20), identity=A, max_tokens=480)
    core.step()
    core.step()
    assert any(one.is_lent for one in _kept(core, "a")), "precondition of this test"
    for request_id in (own, other):
        core.scheduler.cancel(request_id, core.now_s)
    assert not any(one.is_lent for one in _kept(core, "a"))
    assert kept <= {one.session_id for one in _kept(core, "a")}


# Setting quotas.


@pytest.mark.parametrize(
    ("quotas", "fields"),
    [
        ({"a": Quota(3, 1)}, {"quota": "entries", "asked": 3, "limit": 2}),
        ({"a": Quota(2, 1), "b": Quota(1, 1)}, {"quota": "entries", "asked": 3, "limit": 2}),
        ({"a": Quota(1, 1, 2)}, {"quota": "anchors", "asked": 2, "limit": 1}),
        ({"a": Quota(1, 9)}, {"quota": "pages", "asked": 9, "limit": 8}),
        ({"a": Quota(1, 5), "b": Quota(1, 4)}, {"quota": "pages", "asked": 9, "limit": 8}),
    ],
)
def test_quotas_above_capacity_are_refused_with_the_sum_and_the_limit(make_core, quotas, fields):
    core = make_core(entries=2, anchors=1, **SMALL)
    with pytest.raises(ConfigurationError) as caught:
        core.scheduler.sessions.set_quotas(quotas, core.now_s)
    assert {name: caught.value.fields[name] for name in fields} == fields
    assert core.scheduler.eviction.quotas == {}


def test_quotas_may_add_up_to_the_whole_capacity(make_core):
    quotas = {"a": Quota(1, 4, 1), "b": Quota(1, 4)}
    core = _with_quotas(make_core, quotas, entries=2, anchors=1, **SMALL)
    assert core.scheduler.eviction.quotas == quotas


@pytest.mark.parametrize("field", ["entries", "pages", "anchors"])
def test_a_negative_quota_is_refused(field):
    with pytest.raises(ConfigurationError):
        Quota(**{"entries": 1, "pages": 1, "anchors": 1, field: -1})


def test_reducing_a_quota_frees_the_excess_at_once(make_core):
    core = _with_quotas(make_core, {"a": Quota(3, 32)}, entries=3)
    for number in range(4):
        _keep(core, A, number, 100 + 150 * number)
    happened = core.scheduler.sessions.set_quotas({"a": Quota(1, 32)}, core.now_s)
    assert {(e.reason, e.tenant) for e in happened} == {(EvictionReason.QUOTA, "a")}
    assert _numbers(core, "a") == [2, 3]


def test_a_quota_without_anchors_frees_existing_heads(make_core):
    core = _with_quotas(make_core, {"a": Quota(0, 8, anchors=1)}, anchors=1)
    core.run([*_text(1, 100), 7], identity=A, heads=(64,))
    happened = core.scheduler.sessions.set_quotas({"a": Quota(0, 8)}, core.now_s)
    assert [(e.reason, e.tokens) for e in happened] == [(EvictionReason.QUOTA, 64)]


def test_removing_a_quota_removes_its_guarantee(make_core):
    core = _with_quotas(make_core, {"a": Quota(1, 32)}, entries=1)
    _keep(core, A, 1)
    core.scheduler.sessions.set_quotas({}, core.now_s)
    for number in range(2, 6):
        _keep(core, OTHER, number, LONG)
    assert _kept(core, "a") == []


def test_setting_quotas_during_a_step_returns_only_its_own_events(make_core):
    core = make_core(entries=2)
    for number in range(3):
        _keep(core, A, number)
    core.submit(_text(9, 100), identity=OTHER)
    plan = core.scheduler.schedule(core.now_s)
    happened = core.scheduler.sessions.set_quotas({"a": Quota(0, 32)}, core.now_s)
    assert {type(event) for event in happened} == {Evicted}
    later = core.scheduler.commit(plan, core.runner.execute(plan), core.now_s)
    assert any(isinstance(event, Admitted) for event in later)


# Combined.


@pytest.mark.parametrize("policy", POLICIES)
def test_all_requests_finish_under_quotas_pins_and_page_pressure(make_core, policy):
    quotas = {"a": Quota(entries=1, pages=3, anchors=1), "b": Quota(entries=1, pages=2)}
    core = _with_quotas(
        make_core, quotas, lanes=3, entries=4, anchors=2, policy=policy, queue_limit=99, **SMALL
    )
    pinned = _keep(core, OTHER, 1, 150).admission.session_id
    core.scheduler.sessions.pin(pinned, 100_000.0, core.now_s)
    ids = [
        core.submit(
            _text(number, 60 + 37 * number % 400),
            identity=(A, B, OTHER)[number % 3],
            boundary=50,
            max_tokens=(5, 70, 500)[number % 3],
            heads=(64,),
        )
        for number in range(30)
    ]
    outcome = core.drain()
    assert sorted(event.request_id for event in outcome.of(Finished)) == sorted(ids)
    assert pinned in {one.session_id for one in core.sessions()}
    for tenant, quota in quotas.items():
        assert _num_pages(core, tenant) <= quota.pages

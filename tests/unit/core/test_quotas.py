"""A quota limits the kept entries, pages and anchors of a tenant, and guarantees them."""

from __future__ import annotations

import pytest

from kvreg_service.core.errors import ConfigurationError
from kvreg_service.core.events import Admitted, Evicted, Finished, Forked
from kvreg_service.core.requests.identity import Identity
from kvreg_service.core.labels import EvictionReason
from kvreg_service.core.states.quota import Quota
from kvreg_service.core.requests.request import Head

SHORT, LONG = 70, 400
A, B, OTHER = (Identity(b"epoch", name) for name in ("a", "b", "other"))
SMALL = {"num_pages": 16, "max_context_tokens": 512}
"""Sixteen pages, of which a full context takes eight."""


def _text(number: int, length: int) -> list[int]:
    return list(range(1000 * number, 1000 * number + length))


def _keep(core, identity, number, length=SHORT, **options):
    options = {"boundary": length, "max_tokens": 1, **options}
    return core.run([*_text(number, length), 7], identity=identity, **options)


def _with_quotas(make_core, quotas, **options):
    core = make_core(**options)
    core.scheduler.custody.set_quotas(quotas, core.now_s)
    return core


def _kept(core, tenant):
    return [one for one in core.kept() if one.tenant == tenant]


def _num_pages(core, tenant):
    return len({page for one in _kept(core, tenant) for page in one.pages})


def _in_entries(core, tenant):
    return [one for _, one in core.scheduler.holdings.registry if one.tenant == tenant]


def _evicted(outcome, reason=None):
    return [
        (event.tenant, event.sequence_id)
        for event in outcome.of(Evicted)
        if reason in (None, event.reason)
    ]


# The limit.


def test_a_tenant_keeps_no_more_entries_than_its_quota(make_core):
    core = _with_quotas(make_core, {"a": Quota(entries=1, pages=32)}, entries=4)
    for number in range(4):
        _keep(core, A, number)
        assert len(_in_entries(core, "a")) <= 1


def test_at_its_quota_a_tenant_replaces_its_own_least_valuable_entry(make_core):
    core = _with_quotas(make_core, {"a": Quota(entries=2, pages=32)}, entries=4)
    short, _, _ = (_keep(core, A, n, length) for n, length in enumerate((SHORT, 300, 300)))
    outcome = _keep(core, B, 9)
    assert _evicted(outcome) == [("a", short.admission.sequence_id)]
    assert len(core.scheduler.holdings.registry.empty_entries()) == 2


def test_at_its_quota_the_least_valuable_is_evicted_although_entries_are_empty(make_core):
    core = _with_quotas(make_core, {"a": Quota(entries=1, pages=32)}, entries=4)
    _keep(core, A, 1, LONG)
    short = _keep(core, A, 2, SHORT)
    outcome = _keep(core, B, 9)
    assert _evicted(outcome, EvictionReason.DISPLACED) == [("a", short.admission.sequence_id)]


def test_a_tenant_keeps_no_more_pages_than_its_quota(make_core):
    core = _with_quotas(make_core, {"a": Quota(entries=4, pages=6)}, entries=4)
    for number, length in enumerate((100, 150, 120, 300, 60)):
        _keep(core, A, number, length)
        assert _num_pages(core, "a") <= 6


def test_above_its_page_quota_the_least_valuable_sequence_of_the_tenant_is_evicted(make_core):
    core = _with_quotas(make_core, {"a": Quota(entries=4, pages=6)}, entries=4)
    _keep(core, OTHER, 9, SHORT)
    short = _keep(core, A, 1, SHORT).admission.sequence_id
    _keep(core, A, 2, 200)
    assert _evicted(_keep(core, A, 3, 60)) == [("a", short)]
    assert _kept(core, "other")


def test_a_sequence_larger_than_the_quota_is_not_kept(make_core):
    core = _with_quotas(make_core, {"a": Quota(entries=4, pages=6)}, entries=4)
    outcome = _keep(core, A, 1, LONG)
    assert _evicted(outcome, EvictionReason.QUOTA) == [("a", outcome.admission.sequence_id)]
    assert isinstance(outcome.terminal, Finished)


def test_a_zero_quota_serves_requests_and_keeps_nothing(make_core):
    core = _with_quotas(make_core, {"a": Quota(entries=0, pages=0)}, entries=2, anchors=1)
    expected = make_core().run([*_text(1, LONG), 7], max_tokens=1).answer
    for _ in range(3):
        outcome = _keep(core, A, 1, LONG, heads=(Head(128),))
        assert (outcome.cached, outcome.answer) == (0, expected)
        assert core.kept() == []


def test_forks_count_as_entries(make_core):
    core = _with_quotas(make_core, {"a": Quota(entries=1, pages=32)}, entries=4)
    _keep(core, A, 1, 200)
    for tail in range(5):
        core.run([*_text(1, 200), *[tail] * 5], identity=A, boundary=204)
        assert len(_in_entries(core, "a")) <= 1


def test_at_its_quota_a_fork_does_not_replace_a_superseded_fork_of_another_tenant(make_core):
    core = _with_quotas(make_core, {"a": Quota(entries=1, pages=32)}, entries=3)
    first = _keep(core, OTHER, 1, 200)
    prompt = [*_text(1, 200), 7, *first.answer, *[5] * 20]
    second = core.run([*prompt, 1], identity=OTHER, boundary=len(prompt))
    core.run([*prompt, 1, *second.answer, 6], identity=OTHER)
    assert len(second.of(Forked)) == 1, "precondition of this test"
    _keep(core, A, 2, 200)
    _keep(core, A, 3, 700)
    side = core.run([*_text(3, 700), 4, 4, 4], identity=A, boundary=702)
    assert not side.of(Forked)
    assert not side.of(Evicted)


def test_anchors_are_limited_separately_from_entries(make_core):
    core = _with_quotas(make_core, {"a": Quota(entries=0, pages=32, anchors=1)}, anchors=3)
    for number in range(3):
        core.run([*_text(number, 200), 7], identity=A, heads=(Head(128),))
        core.now_s += 100.0
    anchors = list(core.scheduler.holdings.anchors)
    assert len(anchors) == 1


def test_a_shared_page_counts_once(make_core):
    core = _with_quotas(
        make_core, {"a": Quota(entries=2, pages=5, anchors=1)}, entries=2, anchors=1
    )
    heads = (Head(192),)
    core.run([*_text(1, 200), 7], identity=A, heads=heads, max_tokens=1)
    core.run([*_text(1, 195), *_text(2, 20)], identity=A, heads=heads, max_tokens=1)
    # Three pages of the head and one page of each conversation.
    assert len(_kept(core, "a")) == 3
    assert _num_pages(core, "a") == 5


# The guarantee.


@pytest.mark.parametrize("policy", ["cost", "lru", "fifo", "slru", "priority", "lfu"])
def test_other_tenants_do_not_evict_entries_within_a_quota(make_core, policy):
    core = _with_quotas(make_core, {"a": Quota(entries=1, pages=32)}, entries=2, policy=policy)
    kept = _keep(core, A, 1).admission.sequence_id
    for number in range(2, 9):
        core.now_s += 100.0
        outcome = _keep(core, OTHER, number, LONG, priority=9)
        assert ("a", kept) not in _evicted(outcome)
    assert _keep(core, A, 1).cached == SHORT


@pytest.mark.parametrize("policy", ["cost", "lru", "none"])
def test_a_displaced_session_gets_the_entry_guaranteed_by_its_quota(make_core, policy):
    core = _with_quotas(make_core, {"a": Quota(entries=1, pages=32)}, entries=1, policy=policy)
    _keep(core, OTHER, 1, LONG)
    _keep(core, A, 2, SHORT)
    _keep(core, OTHER, 3, LONG)
    assert _keep(core, A, 2).cached == SHORT


def test_other_tenants_do_not_evict_pages_within_a_quota(make_core):
    core = _with_quotas(make_core, {"a": Quota(entries=2, pages=8)}, entries=3, **SMALL)
    kept = [_keep(core, A, number, 150).admission.sequence_id for number in (1, 2)]
    for number in range(3, 8):
        assert isinstance(_keep(core, OTHER, number, 450, max_tokens=50).terminal, Finished)
    assert sorted(one.sequence_id for one in _kept(core, "a")) == kept


def test_other_tenants_do_not_evict_anchors_within_a_quota(make_core):
    core = _with_quotas(make_core, {"a": Quota(entries=0, pages=8, anchors=1)}, anchors=1)
    core.run([*_text(1, 100), 7], identity=A, heads=(Head(64),))
    for number in range(2, 6):
        core.now_s += 100.0
        core.run([*_text(number, 900), 7], identity=OTHER, heads=(Head(800, is_marked=True),))
    assert [one.sequence.tenant for one in core.scheduler.holdings.anchors] == ["a"]


def test_a_head_within_a_quota_replaces_an_anchor_of_another_tenant(make_core):
    core = _with_quotas(make_core, {"a": Quota(entries=0, pages=8, anchors=1)}, anchors=1)
    for question in (7, 8):
        core.run([*_text(1, 900), question], identity=OTHER, heads=(Head(800, is_marked=True),))
    core.run([*_text(2, 100), 7], identity=A, heads=(Head(64),))
    assert [one.sequence.tenant for one in core.scheduler.holdings.anchors] == ["a"]


def test_a_tenant_with_a_quota_may_evict_sequences_of_tenants_without_one(make_core):
    core = _with_quotas(make_core, {"a": Quota(entries=1, pages=4)}, entries=1, **SMALL)
    _keep(core, OTHER, 1, 450)
    outcome = _keep(core, A, 2, 500, max_tokens=11)
    assert isinstance(outcome.terminal, Finished)


def test_two_tenants_with_quotas_do_not_evict_each_other(make_core):
    quotas = {"a": Quota(entries=1, pages=4), "b": Quota(entries=1, pages=4)}
    core = _with_quotas(make_core, quotas, entries=2, **SMALL)
    kept = [_keep(core, one, n, 100).admission.sequence_id for n, one in enumerate((A, B))]
    for number in range(3, 9):
        _keep(core, (A, B)[number % 2], number, 60, retain=False)
    _keep(core, OTHER, 9, 500, max_tokens=11)
    assert sorted(one.sequence_id for one in core.kept() if one.tenant in "ab") == kept


@pytest.mark.parametrize("quotas", [{}, {"a": Quota(2, 8, 1)}])
def test_no_tenant_reuses_the_kept_prefix_of_another(make_core, quotas):
    core = _with_quotas(make_core, quotas, entries=2, anchors=1)
    outcome = _keep(core, A, 1, LONG, heads=(Head(128),))
    for identity in (B, OTHER):
        admission = _keep(core, identity, 1, LONG, heads=(Head(128),)).admission
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
    assert len(_kept(core, "a")) == 2


def test_lent_sequences_are_returned_when_the_request_has_ended(make_core):
    core = _with_quotas(make_core, {"a": Quota(entries=2, pages=8)}, lanes=3, entries=2, **SMALL)
    kept = [_keep(core, A, number, 200).admission.sequence_id for number in (1, 2)]
    other = core.submit(_text(8, 20), identity=OTHER, max_tokens=480)
    own = core.submit(_text(9, 20), identity=A, max_tokens=480)
    core.step()
    core.step()
    assert any(one.is_lent for one in _kept(core, "a")), "precondition of this test"
    for request_id in (own, other):
        core.scheduler.cancel(request_id, core.now_s)
    assert not any(one.is_lent for one in _kept(core, "a"))
    assert set(kept) <= {one.sequence_id for one in _kept(core, "a")}


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
        core.scheduler.custody.set_quotas(quotas, core.now_s)
    assert {name: caught.value.fields[name] for name in fields} == fields
    assert core.scheduler.holdings.quotas == {}


def test_quotas_may_add_up_to_the_whole_capacity(make_core):
    quotas = {"a": Quota(1, 4, 1), "b": Quota(1, 4)}
    core = _with_quotas(make_core, quotas, entries=2, anchors=1, **SMALL)
    assert core.scheduler.holdings.quotas == quotas


@pytest.mark.parametrize("field", ["entries", "pages", "anchors"])
def test_a_negative_quota_is_refused(field):
    with pytest.raises(ConfigurationError):
        Quota(**{"entries": 1, "pages": 1, "anchors": 1, field: -1})


def test_reducing_a_quota_evicts_the_excess_at_once(make_core):
    core = _with_quotas(make_core, {"a": Quota(3, 32)}, entries=3)
    for number in range(4):
        _keep(core, A, number, 100 + 30 * number)
    happened = core.scheduler.custody.set_quotas({"a": Quota(1, 32)}, core.now_s)
    assert [(e.reason, e.tenant) for e in happened] == [(EvictionReason.QUOTA, "a")] * 2
    assert [one.ledger.tokens[0] for one in _in_entries(core, "a")] == [2000]


def test_a_quota_without_anchors_evicts_existing_anchors(make_core):
    core = _with_quotas(make_core, {"a": Quota(0, 8, anchors=1)}, anchors=1)
    core.run([*_text(1, 100), 7], identity=A, heads=(Head(64),))
    happened = core.scheduler.custody.set_quotas({"a": Quota(0, 8)}, core.now_s)
    assert [(e.reason, e.anchor) for e in happened] == [(EvictionReason.QUOTA, 0)]


def test_removing_a_quota_removes_its_guarantee(make_core):
    core = _with_quotas(make_core, {"a": Quota(1, 32)}, entries=1)
    _keep(core, A, 1)
    core.scheduler.custody.set_quotas({}, core.now_s)
    _keep(core, OTHER, 2, LONG)
    _keep(core, OTHER, 3, LONG)
    assert _kept(core, "a") == []


def test_setting_quotas_during_a_step_returns_only_its_own_events(make_core):
    core = make_core(entries=2)
    for number in range(3):
        _keep(core, A, number)
    core.submit(_text(9, 100), identity=OTHER)
    plan = core.scheduler.schedule(core.now_s)
    happened = core.scheduler.custody.set_quotas({"a": Quota(0, 32)}, core.now_s)
    assert [type(event) for event in happened] == [Evicted] * len(happened)
    assert happened
    later = core.scheduler.commit(plan, core.runner.execute(plan), core.now_s)
    assert any(isinstance(event, Admitted) for event in later)


# Combined.


@pytest.mark.parametrize("policy", ["cost", "lru", "none"])
def test_all_requests_finish_under_quotas_pins_and_page_pressure(make_core, policy):
    quotas = {"a": Quota(entries=1, pages=3, anchors=1), "b": Quota(entries=1, pages=2)}
    core = _with_quotas(
        make_core, quotas, lanes=3, entries=4, anchors=2, policy=policy, queue_limit=99, **SMALL
    )
    pinned = _keep(core, OTHER, 1, 150).admission.sequence_id
    core.scheduler.custody.pin(pinned, 100_000.0, core.now_s)
    ids = [
        core.submit(
            _text(number, 60 + 37 * number % 400),
            identity=(A, B, OTHER)[number % 3],
            boundary=50,
            max_tokens=(5, 70, 500)[number % 3],
            heads=(Head(64),),
        )
        for number in range(30)
    ]
    outcome = core.drain()
    assert sorted(event.request_id for event in outcome.of(Finished)) == sorted(ids)
    assert pinned in {one.sequence_id for one in core.kept()}
    for tenant, quota in quotas.items():
        assert _num_pages(core, tenant) <= quota.pages

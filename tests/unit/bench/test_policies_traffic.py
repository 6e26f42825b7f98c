"""The synthetic traffic is deterministic and has the documented properties."""

from __future__ import annotations

from dataclasses import replace

import pytest
from policies_bound import find_opportunities
from policies_replay import COST, MAX_CONTEXT_TOKENS, Setup, replay
from policies_traffic import SCENARIOS, Kind, build_stream

from kvreg_service.core.policies import build_policy

_SHORT = [replace(scenario, requests=60) for scenario in SCENARIOS]


def _named(scenario):
    return scenario.name


@pytest.fixture(scope="module", params=_SHORT, ids=_named)
def stream(request):
    return build_stream(request.param, "test")


def _content(stream):
    return [(one.number, one.arrival_s, one.prompt.tokens, one.answer) for one in stream]


def test_same_seed_gives_the_same_stream():
    assert _content(build_stream(_SHORT[1], "a")) == _content(build_stream(_SHORT[1], "a"))


def test_another_seed_gives_another_stream():
    assert _content(build_stream(_SHORT[1], "a")) != _content(build_stream(_SHORT[1], "b"))


def test_requests_arrive_in_order(stream):
    arrivals = [one.arrival_s for one in stream]
    assert arrivals == sorted(arrivals)


def test_every_request_fits_the_context(stream):
    assert max(one.frontier for one in stream) < MAX_CONTEXT_TOKENS


def test_every_return_can_resume_from_an_earlier_request(stream):
    opportunities = find_opportunities(stream)
    returns = [
        one for request, one in zip(stream, opportunities, strict=True) if request.kind.is_return
    ]
    assert returns
    assert all(one.tokens > 0 for one in returns)


def test_one_off_prompt_is_never_continued():
    documents = next(one for one in _SHORT if one.name == "documents")
    stream = build_stream(documents, "test")
    conversations = [one.conversation for one in find_opportunities(stream)]
    one_offs = [
        conversation
        for request, conversation in zip(stream, conversations, strict=True)
        if request.kind is Kind.ONE_SHOT
    ]
    assert one_offs
    assert all(conversations.count(one) == 1 for one in one_offs)


def test_every_reusable_token_is_hit_when_every_sequence_fits(stream):
    """With room for every sequence and fork, hits are limited only by the traffic."""
    opportunities = find_opportunities(stream)
    setup = Setup(lanes=1, entries=2 * len(stream), num_pages=40_000)
    outcome = replay(stream, opportunities, setup, build_policy("lru", COST))
    assert outcome.hit_tokens == sum(one.tokens for one in opportunities)
    assert outcome.returns_hit == outcome.returns

"""The replay serves the stream in the order in which its clients send it."""

from __future__ import annotations

from array import array

from policies_bound import find_opportunities
from policies_replay import COST, Setup, replay
from policies_traffic import Kind, TrafficRequest

from kvreg_service.core.requests.identity import Identity
from kvreg_service.core.requests.ledger import TokenLedger
from kvreg_service.core.policies import build_policy
from kvreg_service.core.requests.request import Head

_ANSWER = array("i", (1, 2, 3))


def _request(number, tokens, *, arrival_s=0.0, kind=Kind.FIRST, after=None, heads=()):
    prompt = TokenLedger(Identity(b"epoch", "tenant"), array("i", tokens))
    return TrafficRequest(number, arrival_s, kind, prompt, len(prompt) - 1, _ANSWER, heads, after)


def _replay(stream, setup):
    return replay(stream, find_opportunities(stream), setup, build_policy("cost", COST))


def test_client_waits_for_the_end_of_the_request_that_it_continues():
    first = _request("first", range(300))
    tokens = [*first.prompt.tokens, *_ANSWER, *range(1000, 1100)]
    step = _request("step", tokens, kind=Kind.STEP, after="first")
    outcome = _replay([first, step], Setup(2, 0, 64))
    assert outcome.hit_tokens == first.frontier
    assert (outcome.returns, outcome.returns_hit) == (1, 1)


def test_every_prompt_token_is_counted_once():
    stream = [_request(f"{n}", range(n, n + 200 + n), arrival_s=float(n)) for n in range(5)]
    outcome = _replay(stream, Setup(1, 1, 64))
    assert outcome.prompt_tokens == sum(len(one.prompt) for one in stream)


def test_second_conversation_hits_the_head_if_it_is_anchored():
    heads = (Head(128),)
    stream = [
        _request(name, [*range(128), *range(start, start + 50)], arrival_s=at_s, heads=heads)
        for name, start, at_s in (("first", 500, 0.0), ("second", 700, 60.0))
    ]
    assert _replay(stream, Setup(1, 1, 64)).hit_tokens == 0
    with_anchors = _replay(stream, Setup(1, 1, 64, anchors=1))
    assert (with_anchors.hit_tokens, with_anchors.anchor_hits) == (128, 1)

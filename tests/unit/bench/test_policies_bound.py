"""The policy bound is never below a brute-force optimum, and is reached without branches."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import chain, combinations
from random import Random

import pytest
from policies_bound import Interval, find_opportunities, most_gain, pack
from policies_replay import COST, Setup, replay
from policies_traffic import Kind, TrafficRequest

from kvreg_service.core.requests.identity import Identity
from kvreg_service.core.requests.ledger import TokenLedger
from kvreg_service.core.policies import POLICY_NAMES, build_policy
from kvreg_service.core.requests.request import Head

_IDENTITY = Identity(b"epoch", "tenant")
_ANSWER_TOKENS = 3
_TAIL_TOKENS = 2
_HEAD_TOKENS = 128


@dataclass(frozen=True)
class _ArbitraryPolicy:
    """Random values from a seed, so that any eviction order can occur."""

    seed: int
    name: str = "arbitrary"
    evicts_for_detach: bool = True

    def value(self, sequence, now_s):
        return Random(f"{self.seed}/{sequence.sequence_id}/{now_s}").random() + 1e-9

    def levels(self, kept):  # noqa: ARG002
        return {}


def _stream(seed, num_requests, *, branches):
    """Return conversations whose turns append to the frontier or restore a checkpoint."""
    rng = Random(seed)
    heads = [_draw(rng, _HEAD_TOKENS) for _ in range(2)]
    stream = []
    ends = []
    for index in range(num_requests):
        if ends and rng.random() < 0.7:
            last = rng.choice(ends)
            if not branches or rng.random() < 0.5:
                ends.remove(last)
            if rng.random() < 0.5:
                known = last.prompt.tokens + last.answer
            else:
                known = last.prompt.tokens[: last.boundary]
        else:
            known = rng.choice(heads)
        prompt = known + _draw(rng, rng.randint(1, 150))
        request = TrafficRequest(
            number=f"{index}",
            arrival_s=float(index),
            kind=Kind.TURN,
            prompt=TokenLedger(_IDENTITY, prompt + _draw(rng, _TAIL_TOKENS)),
            boundary=len(prompt),
            answer=_draw(rng, _ANSWER_TOKENS),
            heads=(Head(_HEAD_TOKENS),),
            after=None,
        )
        stream.append(request)
        ends.append(request)
    return stream


def _draw(rng, num_tokens):
    return array("i", (rng.randrange(50_000) for _ in range(num_tokens)))


def _bound(stream, num_places, *, has_anchors=False):
    opportunities = find_opportunities(stream)
    heads = [one.head_tokens if has_anchors else 0 for one in opportunities]
    gains = [max(0, one.tokens - head) for one, head in zip(opportunities, heads, strict=True)]
    return sum(heads) + most_gain(opportunities, gains, num_places)


def _resumed_at(earlier, prompt):
    """Return the longest position of an earlier request from which a prompt can resume."""
    ledger = TokenLedger(_IDENTITY, earlier.prompt.tokens + earlier.answer)
    return max(
        (
            position
            for position in (earlier.boundary, earlier.frontier)
            if position < len(prompt) and prompt.starts_with(ledger, position)
        ),
        default=0,
    )


def _brute_force_optimum(stream, num_places):
    """Return the best reuse over every choice of kept states that fits the places."""
    best = {frozenset(): 0}
    for index, request in enumerate(stream):
        after = {}
        for kept, so_far in best.items():
            gain = so_far + max(
                (_resumed_at(stream[one], request.prompt) for one in kept), default=0
            )
            for others in _subsets(kept, num_places - 1):
                key = frozenset((*others, index))
                after[key] = max(after.get(key, 0), gain)
        best = after
    return max(best.values())


def _subsets(items, most):
    sizes = range(min(most, len(items)) + 1)
    return chain.from_iterable(combinations(sorted(items), size) for size in sizes)


@pytest.mark.parametrize("num_places", [1, 2, 3])
@pytest.mark.parametrize("branches", [False, True])
def test_brute_force_optimum_never_exceeds_the_bound(num_places, branches):
    for seed in range(40):
        stream = _stream(seed, 8, branches=branches)
        assert _brute_force_optimum(stream, num_places) <= _bound(stream, num_places), seed


@pytest.mark.parametrize("num_places", [1, 2, 3])
def test_bound_equals_the_brute_force_optimum_without_branches(num_places):
    for seed in range(40):
        stream = _stream(seed, 8, branches=False)
        assert _brute_force_optimum(stream, num_places) == _bound(stream, num_places), seed


@pytest.mark.parametrize("setup", [Setup(1, 1, 64), Setup(1, 3, 64), Setup(2, 2, 24, anchors=1)])
def test_no_policy_exceeds_the_bound(setup):
    for seed in range(12):
        stream = _stream(seed, 24, branches=True)
        bound = _bound(stream, setup.num_places, has_anchors=setup.anchors > 0)
        policies = [build_policy(name, COST) for name in POLICY_NAMES]
        policies += [_ArbitraryPolicy(number) for number in range(6)]
        for policy in policies:
            outcome = replay(stream, find_opportunities(stream), setup, policy)
            assert outcome.hit_tokens <= bound, (seed, policy)


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_packed_gain_equals_the_brute_force_optimum(depth):
    rng = Random(depth)
    for _ in range(60):
        intervals = []
        for _ in range(8):
            start = rng.randrange(10)
            intervals.append(Interval(start, rng.randint(start, 10), rng.randrange(20)))
        assert pack(intervals, depth) == max(
            sum(one.gain for one in chosen)
            for chosen in _subsets_of(intervals)
            if _max_depth(chosen) <= depth
        )


def _subsets_of(intervals):
    return chain.from_iterable(combinations(intervals, size) for size in range(len(intervals) + 1))


def _max_depth(intervals):
    return max(sum(one.start <= event < one.end for one in intervals) for event in range(11))


def test_prefix_without_a_kept_state_cannot_be_reused():
    stream = _stream(0, 1, branches=False)
    (one,) = find_opportunities(stream)
    assert (one.tokens, one.head_tokens) == (0, 0)


def test_head_counts_from_its_second_use():
    heads = [one.head_tokens for one in find_opportunities(_stream(3, 12, branches=False))]
    assert heads.count(0) == 2
    assert set(heads) == {0, _HEAD_TOKENS}


def test_conversations_that_share_only_a_head_stay_separate():
    stream = [_stream(seed, 1, branches=False)[0] for seed in (1, 1)]
    head = stream[0].prompt.tokens[:_HEAD_TOKENS]
    other = TrafficRequest(
        number="other",
        arrival_s=1.0,
        kind=Kind.FIRST,
        prompt=TokenLedger(_IDENTITY, head + _draw(Random("other"), 50)),
        boundary=_HEAD_TOKENS + 48,
        answer=stream[0].answer,
        heads=stream[0].heads,
        after=None,
    )
    first, second = find_opportunities([stream[0], other])
    assert first.conversation != second.conversation
    assert (second.tokens, second.head_tokens) == (0, _HEAD_TOKENS)

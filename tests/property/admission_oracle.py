"""What an admission must do, by plain comparison of token lists. Shares no code with admission.

It is given the state before and the events after, and knows neither digests nor plans. Only what a
sequence is worth is asked of the policy: a formula that is tuned has no second opinion.
"""

from __future__ import annotations

from dataclasses import dataclass

from event_mirror import Mirror, Seen

from kvreg_service.core import events
from kvreg_service.core.events import EvictionReason
from kvreg_service.core.identity import Identity
from kvreg_service.core.ids import SequenceId
from kvreg_service.core.ledger import TokenLedger
from kvreg_service.core.policies import EvictionPolicy
from kvreg_service.core.request import Request
from kvreg_service.core.sequence import Checkpoint, CheckpointKind, Sequence

_NO_TOKENS = TokenLedger(Identity(b"epoch", "tenant"))


@dataclass(frozen=True)
class Profile:
    lanes: int
    entries: int
    keep_current: bool
    exchange: bool
    value_policy: EvictionPolicy

    @property
    def is_cost(self) -> bool:
        return self.value_policy.name == "cost"

    def can_keep(self, seen: Seen) -> bool:
        return seen.checkpoint is not None or (self.keep_current and seen.has_current)


def longest_reuse(kept: list[Seen], request: Request) -> tuple[int, dict[int, list[str]]]:
    """Return the best position and, by sequence, the ways to resume there."""
    prompt = list(request.prompt.tokens)
    best, found = 0, {}
    if not request.may_reuse:
        return best, found
    for seen in kept:
        if seen.tenant != request.prompt.identity.tenant:
            continue
        for kind, position in seen.positions.items():
            if position >= len(prompt) or position < best:
                continue
            if prompt[:position] != seen.tokens[:position]:
                continue
            if position > best:
                best, found = position, {}
            found.setdefault(seen.sequence_id, []).append(kind)
    return best, found


class Ranking:
    """The order in which kept sequences go, at one moment."""

    def __init__(self, mirror: Mirror, profile: Profile, now_s: float) -> None:
        self._alive = mirror.sequences
        self._profile = profile
        self._now_s = now_s

    def is_superseded(self, seen: Seen) -> bool:
        branch = self._alive.get(seen.superseded_by)
        return branch is not None and branch.num_hits >= seen.num_hits + 2

    def value(self, seen: Seen) -> float:
        """What the policy says of a sequence like this; its formula has tests of its own."""
        like = Sequence(
            sequence_id=SequenceId(seen.sequence_id),
            ledger=_NO_TOKENS,
            created_s=0.0,
            last_used_s=seen.last_used_s,
            frontier=seen.frontier,
            has_current=seen.has_current,
            checkpoint=seen.checkpoint and Checkpoint(seen.checkpoint, CheckpointKind.TURN),
            pages=list(range(seen.num_pages)),
            num_hits=seen.num_hits,
        )
        return self._profile.value_policy.value(like, self._now_s)

    def place(self, seen: Seen) -> tuple[bool, float, int]:
        """Superseded forks go first, then the less valuable, then the older."""
        weight = 0.25 if seen.superseded_by in self._alive else 1
        return (not self.is_superseded(seen), weight * self.value(seen), seen.sequence_id)

    def assert_first(self, victim: Seen, others: list[Seen]) -> None:
        for other in others:
            assert self.place(victim) <= self.place(other), f"{other} goes before {victim}"


def check_admission(
    mirror: Mirror,
    profile: Profile,
    happened: list[events.Event],
    num_free_pages: int,
    now_s: float,
) -> None:
    """Check the admission in ``happened`` against the state in ``mirror``, which precedes it."""
    index = next((i for i, e in enumerate(happened) if isinstance(e, events.Admitted)), None)
    if index is None:
        assert not any(isinstance(e, events.Detached | events.Forked) for e in happened)
        return
    admitted = happened[index]
    assert isinstance(admitted, events.Admitted)
    request = mirror.requests[admitted.request_id]
    kept = mirror.kept()
    origin = _check_reuse(admitted, kept, request)
    ranking = Ranking(mirror, profile, now_s)
    before = happened[:index]
    taken = _check_displacement(mirror, profile, ranking, admitted, origin, before)
    _check_fork(profile, ranking, admitted, origin, request, before, taken, kept, num_free_pages)


def _check_reuse(admitted: events.Admitted, kept: list[Seen], request: Request) -> Seen | None:
    best, found = longest_reuse(kept, request)
    assert admitted.cached_tokens == best, (admitted, found)
    assert admitted.prompt_tokens == request.prompt_tokens
    if best == 0:
        assert admitted.reuse_path.value == "full_reset"
        assert admitted.attach.value == "none"
        tenant = request.prompt.identity.tenant
        shared = [_common(request, seen) for seen in kept if seen.tenant == tenant]
        assert admitted.diverged_at == max(shared, default=None)
        return None
    assert admitted.sequence_id in found, "resumed from a sequence that does not match"
    origin = next(seen for seen in kept if seen.sequence_id == admitted.sequence_id)
    ways = found[origin.sequence_id]
    can_append = any("append" in kinds for kinds in found.values())
    assert can_append == ("append" in ways), "ties go to append"
    if can_append:
        assert admitted.reuse_path.value == "append_frontier"
    else:
        assert admitted.reuse_path.value == f"{ways[0]}_checkpoint"
    on_lanes = [
        seen
        for seen in kept
        if seen.sequence_id in found
        and seen.lane is not None
        and can_append == ("append" in found[seen.sequence_id])
    ]
    assert (origin.lane is not None) == bool(on_lanes), "what is on a lane is used where it is"
    assert admitted.attach.value == ("none" if on_lanes else "registry")
    return origin


def _common(request: Request, seen: Seen) -> int:
    prompt = list(request.prompt.tokens)
    pairs = zip(prompt, seen.tokens, strict=False)
    return next(
        (i for i, (mine, theirs) in enumerate(pairs) if mine != theirs),
        min(len(prompt), len(seen.tokens)),
    )


def _check_displacement(
    mirror: Mirror,
    profile: Profile,
    ranking: Ranking,
    admitted: events.Admitted,
    origin: Seen | None,
    before: list[events.Event],
) -> int | None:
    """Return the entry that a displaced sequence took."""
    busy = {seen.lane for seen in mirror.running()}
    at_rest = {seen.lane: seen for seen in mirror.kept() if seen.lane is not None}
    assert admitted.lane not in busy
    displaced = at_rest.get(admitted.lane)
    detached = [e for e in before if isinstance(e, events.Detached)]
    dropped = _evictions(before, EvictionReason.DISPLACED)
    if origin is not None and origin.lane is not None:
        assert admitted.lane == origin.lane, "a sequence on a lane is continued there"
        displaced = None
    empty_lanes = set(range(profile.lanes)) - busy - set(at_rest)
    if displaced is None:
        assert not detached
        assert not dropped
        return None
    assert not empty_lanes, "a spare lane is used before a kept session is displaced"
    ranking.assert_first(displaced, list(at_rest.values()))
    entries = {seen.entry: seen for seen in mirror.kept() if seen.entry is not None}
    empty = set(range(profile.entries)) - set(entries)
    leaving = origin.entry if origin is not None else None
    others = [seen for entry, seen in entries.items() if entry != leaving]
    if dropped:
        assert [e.sequence_id for e in dropped] == [displaced.sequence_id]
        assert not detached
        if profile.can_keep(displaced):
            assert not empty, "an empty entry is used before anybody is dropped"
            assert leaving is None or not profile.exchange
            if profile.is_cost:
                ranking.assert_first(displaced, others)
        return None
    (event,) = detached
    assert event.sequence_id == displaced.sequence_id
    assert profile.can_keep(displaced)
    if event.entry not in empty and event.entry != leaving:
        assert profile.is_cost, "policy none evicts nobody for a displaced sequence"
        assert not empty
        victim = entries[event.entry]
        ranking.assert_first(victim, [*others, displaced])
        assert victim.sequence_id in [
            e.sequence_id for e in _evictions(before, EvictionReason.ENTRY_NEEDED)
        ]
    if event.entry == leaving:
        assert profile.exchange
    return event.entry


def _check_fork(
    profile: Profile,
    ranking: Ranking,
    admitted: events.Admitted,
    origin: Seen | None,
    request: Request,
    before: list[events.Event],
    taken: int | None,
    kept: list[Seen],
    num_free_pages: int,
) -> None:
    forks = [e for e in before if isinstance(e, events.Forked)]
    evicted = [
        e.sequence_id for e in _evictions(before, EvictionReason.ENTRY_NEEDED) if e.entry != taken
    ]
    captures = (
        request.retain
        and request.boundary is not None
        and admitted.cached_tokens < request.boundary < request.prompt_tokens
    )
    loses = captures or not request.retain
    if origin is None or not loses or not profile.is_cost or not profile.can_keep(origin):
        assert not forks, "a copy where nothing would have been lost"
        assert not evicted
        return
    if forks:
        (fork,) = forks
        assert fork.origin_id == origin.sequence_id
        victims = [seen for seen in kept if seen.sequence_id in evicted]
        assert len(victims) == len(evicted) <= 1
        for victim in victims:
            assert victim.entry == fork.entry
            assert ranking.is_superseded(victim) or victim.family == origin.family
            assert ranking.value(victim) < ranking.value(origin)
        return
    assert not evicted
    has_pages = origin.num_pages - admitted.cached_tokens // 64 <= num_free_pages
    entries = {seen.entry for seen in kept if seen.entry is not None}
    has_room = bool(set(range(profile.entries)) - entries - {taken}) or (
        origin.entry is not None and origin.entry != taken
    )
    assert not (has_pages and has_room), "the position was lost although there was room for it"


def _evictions(happened: list[events.Event], reason: EvictionReason) -> list[events.Evicted]:
    return [e for e in happened if isinstance(e, events.Evicted) and e.reason is reason]

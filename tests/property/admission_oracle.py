"""Checks each admission by brute-force comparison of token lists. Shares no code with admission.

Input: the mirrored state before the step, and the events of the step. Uses no digests or plans.
"""

from __future__ import annotations

from dataclasses import dataclass

from event_mirror import Mirror
from ranking import Profile, Ranking
from seen import Seen

from kvreg_service.core import events
from kvreg_service.core.labels import EvictionReason
from kvreg_service.core.requests.request import Admission, Request


@dataclass(frozen=True)
class _Change:
    """An admission, its request, and the sequence that it resumes, if any."""

    admission: Admission
    request: Request
    origin: Seen | None

    @property
    def captures(self) -> bool:
        boundary = self.request.boundary
        cached, prompt = self.admission.cached_tokens, self.request.prompt_tokens
        return (
            self.request.cache_policy.retain and boundary is not None and cached < boundary < prompt
        )

    def replaces_branch(self, seen: Seen, ranking: Ranking) -> bool:
        """Whether the request replaces the end of the branch ``seen``, which is then obsolete."""
        origin = self.origin
        if not self.captures or origin is None or origin.superseded_by is None:
            return False
        if origin.family != seen.family or ranking.is_superseded(origin):
            return False
        known = max(origin.frontier, _common(self.request, origin))
        return _common(self.request, seen) - known >= 16


def longest_reuse(kept: list[Seen], request: Request) -> tuple[int, dict[int, list[str]]]:
    """Return the longest reusable prefix and, by sequence, the ways to resume there."""
    prompt = list(request.prompt.tokens)
    best, found = 0, {}
    if not request.cache_policy.may_reuse:
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


def check_admission(
    mirror: Mirror,
    profile: Profile,
    emitted: list[events.Event],
    num_free_pages: int,
    now_s: float,
) -> None:
    """Check the admission in ``emitted`` against the state in ``mirror``, which precedes it."""
    index = next((i for i, e in enumerate(emitted) if isinstance(e, events.Admitted)), None)
    if index is None:
        assert not any(isinstance(e, events.Detached | events.Forked) for e in emitted)
        return
    event = emitted[index]
    assert isinstance(event, events.Admitted)
    admission = event.admission
    request = mirror.requests[event.request_id]
    kept = mirror.kept()
    origin = _check_reuse(admission, kept, request, now_s)
    ranking = Ranking(mirror, profile, now_s)
    before = emitted[:index]
    change = _Change(admission, request, origin)
    taken = _check_displacement(mirror, profile, ranking, change, before, now_s)
    _check_fork(mirror, profile, ranking, change, taken, before, num_free_pages)


def _check_reuse(
    admission: Admission, kept: list[Seen], request: Request, now_s: float
) -> Seen | None:
    best, found = longest_reuse(kept, request)
    if best and not admission.cached_tokens:
        origins = [seen for seen in kept if seen.sequence_id in found]
        is_pinned_without_checkpoint = [
            seen.is_pinned(now_s) and seen.checkpoint is None for seen in origins
        ]
        assert not request.cache_policy.retain, "a retaining request ignored a pinned sequence"
        assert any(is_pinned_without_checkpoint)
        best = 0
    assert admission.cached_tokens == best, (admission, found)
    assert admission.prompt_tokens == request.prompt_tokens
    if best == 0:
        assert admission.reuse_path == "full_reset"
        assert admission.attach == "none"
        tenant = request.prompt.identity.tenant
        shared = [_common(request, seen) for seen in kept if seen.tenant == tenant]
        assert admission.diverged_at == max(shared, default=None)
        return None
    can_append = any("append" in kinds for kinds in found.values())
    kept_there = [seen for seen in kept if seen.sequence_id in found]
    if can_append:
        kept_there = [seen for seen in kept_there if "append" in found[seen.sequence_id]]
    on_lanes = [seen for seen in kept_there if seen.lane is not None]
    in_entries = [seen for seen in kept_there if seen.entry is not None]
    # A sequence on a lane is preferred to one in an entry, and both to an anchor.
    choice = on_lanes or in_entries or kept_there
    attach = "none" if on_lanes else "registry" if in_entries else "anchor"
    assert admission.attach == attach
    if attach == "anchor":
        (origin,) = choice
        assert admission.sequence_id not in {seen.sequence_id for seen in kept}
        assert admission.reuse_path == "restore_anchor"
        return origin
    (origin,) = (seen for seen in choice if seen.sequence_id == admission.sequence_id)
    ways = found[origin.sequence_id]
    path = "append_frontier" if can_append else f"{ways[0]}_checkpoint"
    assert admission.reuse_path == path
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
    change: _Change,
    before: list[events.Event],
    now_s: float,
) -> int | None:
    """Check which sequence was displaced; return the entry that it moved to."""
    admission, origin = change.admission, change.origin
    busy = {seen.lane for seen in mirror.running()}
    at_rest = {seen.lane: seen for seen in mirror.kept() if seen.lane is not None}
    assert admission.lane not in busy
    displaced = at_rest.get(admission.lane)
    detached = [(e.sequence_id, e.entry) for e in before if isinstance(e, events.Detached)]
    dropped = [e.sequence_id for e in _evictions(before, EvictionReason.DISPLACED)]
    if origin is not None and origin.lane is not None:
        assert admission.lane == origin.lane, "a sequence on a lane was resumed on another lane"
        displaced = None
    if displaced is None:
        assert not detached
        assert not dropped
        return None
    empty_lanes = set(range(profile.lanes)) - busy - set(at_rest)
    assert not empty_lanes, "a sequence was displaced although a lane was empty"
    assert displaced is min(at_rest.values(), key=ranking.eviction_key), (
        "not the least valuable sequence was displaced"
    )
    entries = {seen.entry: seen for seen in mirror.kept() if seen.entry is not None}
    entry = _expected_entry(mirror, profile, ranking, displaced, change, entries, now_s)
    if entry is None:
        assert (dropped, detached) == ([displaced.sequence_id], [])
        return None
    assert (dropped, detached) == ([], [(displaced.sequence_id, entry)])
    victim = entries.get(entry)
    if victim is not None and victim is not origin:
        assert victim.sequence_id in [
            e.sequence_id for e in _evictions(before, EvictionReason.ENTRY_NEEDED)
        ]
    return entry


def _expected_entry(
    mirror: Mirror,
    profile: Profile,
    ranking: Ranking,
    displaced: Seen,
    change: _Change,
    entries: dict[int, Seen],
    now_s: float,
) -> int | None:
    """Return the entry that the displaced sequence must move to; None if it must be dropped."""
    if not profile.can_keep(displaced):
        return None
    quota = mirror.quotas.get(displaced.tenant)
    origin, empty = change.origin, set(range(profile.entries)) - set(entries)
    leaving = origin if origin is not None and origin.entry is not None else None
    others = [seen for seen in entries.values() if seen is not leaving]
    own = [seen for seen in others if seen.tenant == displaced.tenant]
    must_keep = displaced.is_pinned(now_s)
    if quota is not None and len(own) >= quota.entries:
        others = own
    else:
        if leaving is not None and (profile.exchange or must_keep):
            leaves_fork = profile.policy.evicts_for_detach and change.replaces_branch(
                displaced, ranking
            )
            if not leaves_fork or must_keep:
                return leaving.entry
            if empty and quota is None:
                return min(empty)
            others = own if quota is not None else others
        elif empty:
            return min(empty)
        elif quota is not None:
            must_keep = True
            others = [seen for seen in others if seen.tenant != displaced.tenant] or others
    victim = ranking.first_victim(others, displaced.tenant)
    if victim is None or not (must_keep or profile.policy.evicts_for_detach):
        return None
    is_less_valuable = ranking.eviction_key(victim) < ranking.eviction_key(displaced)
    return victim.entry if must_keep or is_less_valuable else None


def _check_fork(
    mirror: Mirror,
    profile: Profile,
    ranking: Ranking,
    change: _Change,
    taken: int | None,
    before: list[events.Event],
    num_free_pages: int,
) -> None:
    origin = change.origin
    forks = [e for e in before if isinstance(e, events.Forked)]
    evicted = [
        e.sequence_id for e in _evictions(before, EvictionReason.ENTRY_NEEDED) if e.entry != taken
    ]
    if (
        origin is None
        or origin.anchor is not None
        or not (change.captures or not change.request.cache_policy.retain)
        or not profile.policy.evicts_for_detach
        or not profile.can_keep(origin)
    ):
        assert not forks, "a fork was made although no state would have been lost"
        assert not evicted
        return
    is_at_quota = _is_at_quota(mirror, origin, taken, before)
    if forks:
        (fork,) = forks
        assert fork.origin_id == origin.sequence_id
        victims = [seen for seen in mirror.kept() if seen.sequence_id in evicted]
        assert len(victims) == len(evicted) <= 1
        for victim in victims:
            assert victim.entry == fork.entry
            assert ranking.is_superseded(victim) or victim.family == origin.family
            is_less_valuable = ranking.level_and_value(victim) < ranking.level_and_value(origin)
            assert is_less_valuable or change.replaces_branch(victim, ranking)
            assert ranking.may_evict(victim, origin.tenant)
        assert not is_at_quota or [seen.tenant for seen in victims] == [origin.tenant]
        return
    assert not evicted
    has_pages = len(origin.pages) - change.admission.cached_tokens // 64 <= num_free_pages
    entries = {seen.entry for seen in mirror.kept() if seen.entry is not None}
    has_room = bool(set(range(profile.entries)) - entries - {taken}) or (
        origin.entry is not None and origin.entry != taken
    )
    assert is_at_quota or not (has_pages and has_room), "no fork was made although there was room"


def _is_at_quota(
    mirror: Mirror, origin: Seen, taken: int | None, before: list[events.Event]
) -> bool:
    """Whether one more entry would exceed the quota of the resumed sequence's tenant."""
    quota = mirror.quotas.get(origin.tenant)
    gone = [e.sequence_id for e in _evictions(before, EvictionReason.ENTRY_NEEDED)]
    gone = [i for i in gone if mirror.sequences[i].entry == taken]
    detached = [e.sequence_id for e in before if isinstance(e, events.Detached)]
    own = [
        seen
        for seen in mirror.kept()
        if seen.tenant == origin.tenant
        and (seen.entry is not None or seen.sequence_id in detached)
        and seen is not origin
        and seen.sequence_id not in gone
    ]
    return quota is not None and len(own) >= quota.entries


def _evictions(emitted: list[events.Event], reason: EvictionReason) -> list[events.Evicted]:
    return [e for e in emitted if isinstance(e, events.Evicted) and e.reason is reason]

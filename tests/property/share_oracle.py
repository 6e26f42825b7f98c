"""Checks page reservations, quotas and pins: which request is next, which sequences are lent.

Shares no code with the scheduler: subsets are enumerated, and pages are counted as sets.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

from event_mirror import Mirror
from ranking import Profile, Ranking
from seen import Seen

from kvreg_service.core.requests.request import Request


class ShareOracle:
    """Follows one mirror."""

    def __init__(self, mirror: Mirror, profile: Profile) -> None:
        self._mirror = mirror
        self._profile = profile

    # Admission order.

    def next_request(self, now_s: float) -> str | None:
        """Return the head of the queue, or a later request that cannot delay the head."""
        queue = [self._mirror.requests[request_id] for request_id in self._mirror.queue]
        if not queue or len(self._mirror.running()) == self._profile.lanes:
            return None
        head = queue[0]
        if self._fits(head, now_s):
            return head.request_id
        if self._is_anything_protected():
            return None
        for request in queue[1:]:
            if self._fits(request, now_s) and not self._delays(request, head):
                return request.request_id
        return None

    def _pages_of(self, request: Request) -> int:
        room = self._profile.context_tokens - request.prompt_tokens
        return (request.prompt_tokens + min(request.max_tokens, room) + 63) // 64

    def _reserved_pages(self) -> list[int]:
        return [self._pages_of(seen.request) for seen in self._mirror.running() if seen.request]

    def _fits(self, request: Request, now_s: float) -> bool:
        ranking = Ranking(self._mirror, self._profile, now_s)
        kept = [one for one in self._mirror.kept() if not ranking.may_evict(one, request.tenant)]
        needed = sum(self._reserved_pages()) + self._pages_of(request) + self._num_pages_held(kept)
        return needed <= self._mirror.num_pages

    def _delays(self, request: Request, head: Request) -> bool:
        """Whether any subset of the running requests has room for the head, but not for both."""
        reserved, room = self._reserved_pages(), self._mirror.num_pages - self._pages_of(head)
        staying = [
            sum(some) for size in range(len(reserved) + 1) for some in combinations(reserved, size)
        ]
        return any(some <= room < some + self._pages_of(request) for some in staying)

    def _is_anything_protected(self) -> bool:
        return bool(self._mirror.quotas) or any(
            seen.pinned_until_s is not None for seen in self._mirror.sequences.values()
        )

    def _num_pages_held(self, kept: Iterable[Seen]) -> int:
        """Return how many pages these hold that no running request shares."""
        shared = {page for seen in self._mirror.running() for page in seen.pages}
        return len({page for seen in kept for page in seen.pages} - shared)

    # Quotas.

    def lend(self, tenant: str, now_s: float) -> None:
        """Lend a tenant's least valuable sequences until all reservations fit."""
        own = [seen for seen in self._mirror.kept() if seen.tenant == tenant]
        for seen in own:
            seen.is_lent = False
        room = self._mirror.num_pages - sum(self._reserved_pages())
        ranking = Ranking(self._mirror, self._profile, now_s)
        while tenant in self._mirror.quotas and self._num_pages_held(self._protected(now_s)) > room:
            lent = ranking.first_victim([seen for seen in own if not seen.is_lent], tenant)
            if lent is None:
                return
            lent.is_lent = True

    def _protected(self, now_s: float) -> list[Seen]:
        ranking = Ranking(self._mirror, self._profile, now_s)
        return [
            seen for seen in self._mirror.kept() if not ranking.may_evict(seen, "another tenant")
        ]

    def check(self, now_s: float) -> None:
        """Check that all reservations fit and that no tenant exceeds its quota."""
        num_committed = sum(self._reserved_pages()) + self._num_pages_held(self._protected(now_s))
        assert num_committed <= self._mirror.num_pages, (
            "reserved and protected pages exceed the pool"
        )
        for tenant, quota in self._mirror.quotas.items():
            kept = [seen for seen in self._mirror.kept() if seen.tenant == tenant]
            assert sum(seen.entry is not None for seen in kept) <= quota.entries
            assert sum(seen.anchor is not None for seen in kept) <= quota.anchors
            assert self._num_pages_held(kept) <= quota.pages

    def exceeds_quota(self, tenant: str) -> bool:
        """Whether a tenant exceeds its quota."""
        quota = self._mirror.quotas[tenant]
        kept = [seen for seen in self._mirror.kept() if seen.tenant == tenant]
        return (
            sum(seen.entry is not None for seen in kept) > quota.entries
            or sum(seen.anchor is not None for seen in kept) > quota.anchors
            or self._num_pages_held(kept) > quota.pages
        )

    # Pins.

    def may_pin(self, seen: Seen, now_s: float) -> bool:
        """Whether a kept sequence may be pinned in addition to those that are."""
        if seen.anchor is None and not self._profile.can_keep(seen):
            return False
        quotas, quota = self._mirror.quotas, self._mirror.quotas.get(seen.tenant)
        pinned = [seen] + [
            one
            for one in self._mirror.sequences.values()
            if one is not seen
            and one.is_pinned(now_s)
            and (one.tenant == seen.tenant if quota else one.tenant not in quotas)
        ]
        num_places = sum((one.anchor is None) is (seen.anchor is None) for one in pinned)
        num_pages = len({page for one in pinned for page in one.pages})
        if quota is not None:
            max_places = quota.entries if seen.anchor is None else quota.anchors
            max_pages = quota.pages
        else:
            max_places = (
                self._profile.entries - sum(one.entries for one in quotas.values())
                if seen.anchor is None
                else self._profile.anchors - sum(one.anchors for one in quotas.values())
            )
            max_pages = self._mirror.num_pages - self._profile.context_tokens // 64
            max_pages -= sum(one.pages for one in quotas.values())
        held = self._num_pages_held([*self._protected(now_s), seen])
        return (
            num_places <= max_places
            and num_pages <= max_pages
            and sum(self._reserved_pages()) + held <= self._mirror.num_pages
        )

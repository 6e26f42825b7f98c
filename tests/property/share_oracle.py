"""Checks page promises, quotas and pins: which request is next, what a tenant may keep and lends.

Shares no code with the scheduler: subsets are enumerated, and pages are counted as sets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import combinations

from event_mirror import Mirror
from ranking import Profile, Ranking
from seen import SeenSession, SeenState

from kvreg_service.core.ids import pages_for
from kvreg_service.core.requests.request import Request


class ShareOracle:
    """Follows one mirror."""

    def __init__(self, mirror: Mirror, profile: Profile, ranking: Ranking) -> None:
        self._mirror = mirror
        self._profile = profile
        self._ranking = ranking

    # Admission order.

    def next_request(self, now_s: float) -> Request | None:
        """Return the head of the queue, or a later request that cannot delay the head."""
        queue = self._mirror.queue
        if not queue or len(self._mirror.runs) == self._profile.lanes:
            return None
        head = queue[0]
        if self._fits(head, now_s):
            return head
        if self.is_anything_protected():
            return None
        for request in queue[1:]:
            if self._fits(request, now_s) and not self._delays(request, head):
                return request
        return None

    def _promised(self) -> list[int]:
        return [one.promised_pages for one in self._mirror.all_runs]

    def _fits(self, request: Request, now_s: float) -> bool:
        kept = [
            one
            for one in self._mirror.states
            if not self._ranking.may_free(one, request.tenant, now_s)
        ]
        needed = sum(self._promised()) + _num_pages(request) + self.num_pages_held(kept)
        return needed <= self._mirror.num_pages

    def _delays(self, request: Request, head: Request) -> bool:
        """Whether any subset of the running requests has room for the head, but not for both."""
        promised, room = self._promised(), self._mirror.num_pages - _num_pages(head)
        staying = [
            sum(some) for size in range(len(promised) + 1) for some in combinations(promised, size)
        ]
        return any(some <= room < some + _num_pages(request) for some in staying)

    def is_anything_protected(self) -> bool:
        return bool(self._mirror.quotas) or any(
            one.pinned_until_s is not None for one in self._mirror.sessions.values()
        )

    def num_pages_held(self, kept: Iterable[SeenState]) -> int:
        """Return how many pages these hold that no running request shares."""
        shared = {page for one in self._mirror.all_runs for page in one.pages}
        return len({page for one in kept for page in one.pages} - shared)

    def _protected(self, now_s: float) -> list[SeenState]:
        return [one for one in self._mirror.states if self._ranking.is_protected(one, now_s)]

    # Quotas.

    def quota_victims(self, tenant: str, now_s: float) -> Iterator[SeenState]:
        """Yield what a tenant must give up to keep its quota, as the mirror stands then."""
        quota = self._mirror.quotas.get(tenant)
        if quota is None:
            return
        yield from self._least_worth(self._mirror.displaced(tenant), quota.entries, now_s)
        shared = [one for one in self._own(tenant) if one.is_shared and one.states]
        yield from self._least_worth(shared, quota.anchors, now_s)
        while True:
            states = [one for one in self._mirror.states if one.tenant == tenant]
            allowed = [one for one in states if self._ranking.may_free(one, tenant, now_s)]
            victim = self._ranking.first_for_pages(allowed)
            if victim is None or self.num_pages_held(states) <= quota.pages:
                return
            yield victim

    def _least_worth(
        self, sessions: list[SeenSession], limit: int, now_s: float
    ) -> Iterator[SeenState]:
        unpinned = sorted((one for one in sessions if not one.is_pinned(now_s)), key=self._worth)
        for session in unpinned[: max(0, len(sessions) - limit)]:
            yield from tuple(session.states)

    def _worth(self, session: SeenSession) -> tuple[float, int]:
        values = [self._ranking.value(one) for one in session.states]
        return max(values, default=0.0), session.session_id or 0

    def _own(self, tenant: str) -> list[SeenSession]:
        return [one for one in self._mirror.sessions.values() if one.tenant == tenant]

    def lend(self, tenant: str, now_s: float) -> None:
        """Lend the least valuable sessions of a tenant until all promises fit."""
        own = self._own(tenant)
        for one in own:
            one.is_lent = False
        room = self._mirror.num_pages - sum(self._promised())
        for one in sorted(own, key=self._worth):
            if self.num_pages_held(self._protected(now_s)) <= room:
                return
            one.is_lent = not one.is_pinned(now_s)

    def check(self, now_s: float) -> None:
        """Check that all promises fit and that no tenant exceeds its quota."""
        num_reserved = sum(self._promised()) + self.num_pages_held(self._protected(now_s))
        assert not self.is_anything_protected() or num_reserved <= self._mirror.num_pages, (
            "promised and protected pages exceed the pool"
        )
        for tenant, quota in self._mirror.quotas.items():
            states = [one for one in self._mirror.states if one.tenant == tenant]
            shared = [one for one in self._own(tenant) if one.is_shared]
            assert len(self._mirror.displaced(tenant)) <= quota.entries
            assert len(shared) <= quota.anchors
            assert self.num_pages_held(states) <= quota.pages

    # Pins.

    def ending_pins(self, now_s: float) -> list[SeenSession]:
        """Return the sessions whose pins leave too little for others, in their order."""
        pinned = [one for one in self._mirror.sessions.values() if one.is_pinned(now_s)]
        pinned.sort(key=lambda one: (len(one.pages), one.session_id))
        fitting: list[SeenSession] = []
        ending: list[SeenSession] = []
        for one in pinned:
            (fitting if self._has_room_for(one, fitting) else ending).append(one)
        return ending

    def may_pin(self, session: SeenSession, now_s: float) -> bool:
        """Whether a kept session may be pinned in addition to those that are."""
        others = [
            one
            for one in self._mirror.sessions.values()
            if one is not session and one.is_pinned(now_s)
        ]
        held = self.num_pages_held([*self._protected(now_s), *session.essentials])
        return (
            self._has_room_for(session, others)
            and sum(self._promised()) + held <= self._mirror.num_pages
        )

    def _has_room_for(self, session: SeenSession, others: Collection[SeenSession]) -> bool:
        """Whether places and pages remain for others if a session is pinned beside some."""
        quotas, quota = self._mirror.quotas, self._mirror.quotas.get(session.tenant)
        pinned = [session] + [
            one
            for one in others
            if (one.tenant == session.tenant if quota else one.tenant not in quotas)
        ]
        num_places = sum(one.is_shared is session.is_shared for one in pinned)
        num_pages = len({page for one in pinned for page in one.pages})
        if quota is not None:
            max_places = quota.anchors if session.is_shared else quota.entries
            return num_places <= max_places and num_pages <= quota.pages
        if session.is_shared:
            max_places = self._profile.anchors - sum(one.anchors for one in quotas.values())
        else:
            max_places = self._profile.entries - sum(one.entries for one in quotas.values())
        max_pages = self._mirror.num_pages - pages_for(self._profile.context_tokens)
        max_pages -= sum(one.pages for one in quotas.values())
        return num_places <= max_places and num_pages <= max_pages


def _num_pages(request: Request) -> int:
    return pages_for(request.prompt_tokens + request.max_tokens)

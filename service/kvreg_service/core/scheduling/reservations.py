"""Reservations: pages promised to running requests, quotas of tenants, pins.

Owns the arithmetic by which every running request can finish: promised and protected pages never
exceed the pool. *Protected* is what a session needs to go on, if it is pinned or belongs to a
tenant with a quota. A tenant that needs more than the others leave lends its own sessions to its
request: any request may then free their states.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from kvreg_service.core.errors import ConfigurationError, InvariantBroken, PinRefused
from kvreg_service.core.events import PinEnded
from kvreg_service.core.ids import PageId, pages_for
from kvreg_service.core.labels import EvictionReason
from kvreg_service.core.requests.request import Request
from kvreg_service.core.scheduling.eviction import Eviction
from kvreg_service.core.scheduling.lane import Lane
from kvreg_service.core.states.kept_state import KeptState, Session
from kvreg_service.core.states.quota import Quota
from kvreg_service.core.states.store import StateStore


class Reservations:
    """Enforces the limits of one `StateStore`.

    Invariant: promised pages + protected pages that no running request shares <= all pages.
    """

    def __init__(
        self,
        store: StateStore,
        lanes: Sequence[Lane],
        eviction: Eviction,
        max_context_tokens: int,
    ) -> None:
        self._store = store
        self._lanes = lanes
        self._eviction = eviction
        # Pages outside of all pins and quotas, so that any request can be served.
        self._context_pages = pages_for(max_context_tokens)

    # Promises.

    def promised_pages(self) -> int:
        """Return the pages that are promised to running requests."""
        return sum(lane.run.promised_pages for lane in self._lanes if lane.run)

    def pages_for_request(self, request: Request) -> int:
        """Return the pages that a request holds at most, with its whole answer."""
        return pages_for(request.prompt_tokens + request.max_tokens)

    def fits(self, request: Request, now_s: float) -> bool:
        """Whether the pages of a request can be promised in addition to those of running ones."""
        room = self._store.pages.num_pages - self.promised_pages()
        room -= self.pages_for_request(request)
        return room >= 0 and (
            not self._has_protection() or room >= self._untakeable_pages(request.tenant, now_s)
        )

    def may_pass(self, request: Request, head: Request, now_s: float) -> bool:
        """Whether ``request`` fits now and cannot delay the start of ``head``.

        The head starts once enough running requests have ended, in an unknown order. Of all sums of
        promises beside which it could start, the largest counts: if the request fits beside that
        one as well, it never delays the head. Pages that pins or quotas protect may stay taken when
        their request ends, so no request passes while there are any.
        """
        if self._has_protection() or not self.fits(request, now_s):
            return False
        room = self._store.pages.num_pages - self.pages_for_request(head)
        # Bit n is set when some of the running requests are promised n pages together.
        sums = 1
        for lane in self._lanes:
            if lane.run:
                sums |= sums << lane.run.promised_pages
        largest = (sums & ((1 << (room + 1)) - 1)).bit_length() - 1
        return largest + self.pages_for_request(request) <= room

    def _has_protection(self) -> bool:
        return bool(self._eviction.quotas) or any(
            one.pinned_until_s is not None for one in self._store.sessions
        )

    def _untakeable_pages(self, tenant: str, now_s: float) -> int:
        """Return the pages that a request of ``tenant`` cannot take; a tenant lends its own."""
        return self._count_pages(
            one
            for one in self._protected(now_s)
            if one.tenant != tenant or one.session.is_pinned(now_s)
        )

    def _protected(self, now_s: float) -> list[KeptState]:
        return [one for one in self._store if self._eviction.is_protected(one, now_s)]

    def _count_pages(self, states: Iterable[KeptState]) -> int:
        """Return how many pages these hold that no running request shares."""
        shared: set[PageId] = set()
        for lane in self._lanes:
            if lane.run:
                shared.update(lane.run.pages)
        return len({page for one in states for page in one.pages} - shared)

    # After a change.

    def settle(self, tenant: str, now_s: float) -> None:
        """Restore all limits after a change for ``tenant``.

        Effects: removes pins that leave too little, frees what the tenant keeps beyond its quota,
        and lends its sessions as far as its promises need them.
        """
        if not self._has_protection():
            return
        self._end_large_pins(now_s)
        self._enforce_quota(tenant, now_s)
        self._lend(tenant, now_s)

    def _end_large_pins(self, now_s: float) -> None:
        """Remove the pins that leave too little, the largest ones, so that small ones stay."""
        pinned = [one for one in self._store.sessions if one.is_pinned(now_s)]
        fitting: list[Session] = []
        for session in sorted(pinned, key=lambda one: (len(_pages(one)), one.session_id)):
            num_places, limit = self._pinned_places(session, fitting)
            if num_places <= limit and self._pins_fit(session, fitting):
                fitting.append(session)
            else:
                session.pinned_until_s = None
                self._store.events.append(PinEnded(session.session_id))

    def displaced(self, tenant: str | None = None) -> list[Session]:
        """Return the kept conversations that are not the last ones of a lane.

        Of all tenants or of one, those at rest and those that run elsewhere.
        """
        on_lanes = [lane.session for lane in self._lanes]
        return [
            one
            for one in self._store.sessions
            if one.states
            and not one.is_shared
            and one not in on_lanes
            and tenant in (None, one.tenant)
        ]

    def _enforce_quota(self, tenant: str, now_s: float) -> None:
        quota = self._eviction.quotas.get(tenant)
        if quota is None:
            return
        own = [one for one in self._store.sessions if one.tenant == tenant]
        self._shrink(self.displaced(tenant), quota.entries, now_s)
        self._shrink([one for one in own if one.is_shared], quota.anchors, now_s)
        while True:
            states = [state for one in own for state in one.states]
            if self._count_pages(states) <= quota.pages:
                return
            takeable = [one for one in states if self._eviction.may_free(one, tenant, now_s)]
            victim = self._eviction.first_to_free(takeable)
            if victim is None:
                return
            self._store.free(victim, EvictionReason.QUOTA)

    def _shrink(self, sessions: list[Session], limit: int, now_s: float) -> None:
        """Free whole sessions, the least valuable first, until ``limit`` are left."""
        takeable = [one for one in sessions if not one.is_pinned(now_s)]
        takeable.sort(key=lambda one: (self._worth(one), one.session_id))
        for session in takeable[: max(0, len(sessions) - limit)]:
            self._store.free_session(session, EvictionReason.QUOTA)

    def _worth(self, session: Session) -> float:
        return max((self._eviction.value(state) for state in session.states), default=0.0)

    def _lend(self, tenant: str, now_s: float) -> None:
        own = [one for one in self._store.sessions if one.tenant == tenant]
        for session in own:
            session.is_lent = False
        room = self._store.pages.num_pages - self.promised_pages()
        own.sort(key=lambda one: (self._worth(one), one.session_id))
        for session in own:
            if self._count_pages(self._protected(now_s)) <= room:
                return
            if not session.is_pinned(now_s):
                session.is_lent = True

    # Quotas.

    def set_quotas(self, quotas: Mapping[str, Quota], now_s: float) -> None:
        """Replace the quotas of all tenants.

        Raises:
            ConfigurationError: together they exceed the capacity. Nothing is changed then.
        """
        self._require_room_for(quotas)
        self._eviction.quotas = dict(quotas)
        for one in self._store.sessions:
            one.is_lent = False
        for tenant in sorted({*quotas, *(one.tenant for one in self._store.sessions)}):
            self.settle(tenant, now_s)

    def _require_room_for(self, quotas: Mapping[str, Quota]) -> None:
        num_pages, layout = self._store.pages.num_pages, self._store.layout
        for name, capacity, why in (
            ("entries", layout.entries, ""),
            ("anchors", layout.anchors, ""),
            (
                "pages",
                num_pages - self._context_pages,
                f" besides the {self._context_pages} that one full context needs",
            ),
        ):
            needed = sum(getattr(quota, name) for quota in quotas.values())
            if needed > capacity:
                raise ConfigurationError(
                    f"the quotas of all tenants need {needed} {name}, and there are "
                    f"{capacity}{why}",
                    quota=name,
                    asked=needed,
                    limit=capacity,
                )

    # Pins.

    def pin(self, session: Session, until_s: float, now_s: float) -> None:
        """Protect a session from eviction until ``until_s``.

        Raises:
            PinRefused: with it pinned sessions would take more entries, anchors or pages than may
                be pinned. Nothing is changed then.
        """
        others = [
            one for one in self._store.sessions if one is not session and one.is_pinned(now_s)
        ]
        num_places, limit = self._pinned_places(session, others)
        if num_places > limit:
            raise PinRefused(
                f"at most {limit} {'anchors' if session.is_shared else 'entries'} may be pinned",
                limit=limit,
            )
        num_pages = len(_pages(session))
        if not self._pins_fit(session, others):
            raise PinRefused(
                f"the session holds {num_pages} pages, and pinning it would leave too few for "
                "other requests",
                pages=num_pages,
            )
        held = self._count_pages([*self._protected(now_s), *session.essentials])
        if self.promised_pages() + held > self._store.pages.num_pages:
            raise PinRefused(
                "the pages of this session are promised to running requests; pin it after they "
                "have ended",
            )
        session.pinned_until_s = until_s

    def _pinned_places(self, newcomer: Session, others: Collection[Session]) -> tuple[int, int]:
        """Return how many places of its kind would be pinned, and how many may be.

        Shared heads count against anchors, all others against entries. A tenant with a quota pins
        within it, all others within what the quotas leave.
        """
        num_places = sum(
            one.is_shared is newcomer.is_shared for one in self._of_the_same_share(newcomer, others)
        )
        kind = "anchors" if newcomer.is_shared else "entries"
        quotas, layout = self._eviction.quotas, self._store.layout
        quota = quotas.get(newcomer.tenant)
        if quota is not None:
            return num_places, getattr(quota, kind)
        capacity = getattr(layout, kind)
        return num_places, capacity - sum(getattr(each, kind) for each in quotas.values())

    def _pins_fit(self, newcomer: Session, others: Collection[Session]) -> bool:
        """Whether one more pin leaves the pages of a full context and of the quotas."""
        pages = {page for one in self._of_the_same_share(newcomer, others) for page in _pages(one)}
        quotas = self._eviction.quotas
        quota = quotas.get(newcomer.tenant)
        if quota is not None:
            return len(pages) <= quota.pages
        reserved = sum(each.pages for each in quotas.values())
        return len(pages) + reserved + self._context_pages <= self._store.pages.num_pages

    def _of_the_same_share(self, newcomer: Session, others: Collection[Session]) -> list[Session]:
        """Return the newcomer and those that are pinned within the same quota, or within none."""
        quotas, tenant = self._eviction.quotas, newcomer.tenant
        return [newcomer] + [
            one
            for one in others
            if (one.tenant == tenant if tenant in quotas else one.tenant not in quotas)
        ]

    def check_invariants(self, now_s: float) -> None:
        """Raise InvariantBroken if promised and protected pages exceed the pool."""
        if not self._has_protection():
            return
        reserved = self.promised_pages() + self._count_pages(self._protected(now_s))
        if reserved > self._store.pages.num_pages:
            raise InvariantBroken(
                f"{reserved} pages are promised or protected, and there are "
                f"{self._store.pages.num_pages}"
            )


def _pages(session: Session) -> set[PageId]:
    """Return the pages of what the session needs to go on."""
    return {page for state in session.essentials for page in state.pages}

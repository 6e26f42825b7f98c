"""Reservations: pages promised to running requests, quotas of tenants, pins.

Owns the arithmetic by which every running request can finish: promised and protected pages never
exceed the pool. *Protected* is a kept sequence that others may not evict: one that is pinned, or
one of a tenant with a quota. A tenant that needs more than the others leave lends its own kept
sequences to its request: any request may then evict them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kvreg_service.core.errors import ConfigurationError, InvariantBroken, PinRefused
from kvreg_service.core.events import PinEnded
from kvreg_service.core.holdings import Holdings
from kvreg_service.core.ids import PageId, pages_for
from kvreg_service.core.labels import EvictionReason
from kvreg_service.core.quota import Quota
from kvreg_service.core.request import Request
from kvreg_service.core.sequence import Sequence


class Shares:
    """Enforces the limits of one `Holdings`.

    Invariant: promised pages + protected pages that no running sequence shares <= all pages.
    """

    def __init__(self, holdings: Holdings, max_context_tokens: int) -> None:
        self._holdings = holdings
        # Pages outside of all pins and quotas, so that any request can be served.
        self._context_pages = pages_for(max_context_tokens)

    # Promises.

    def promised_pages(self) -> int:
        """Return the pages that are promised to running requests."""
        return sum(lane.run.promised_pages for lane in self._holdings.lanes if lane.run)

    def pages_for_request(self, request: Request) -> int:
        """Return the pages that a request holds at most, with its whole answer."""
        return pages_for(request.prompt_tokens + request.max_tokens)

    def fits(self, request: Request, now_s: float) -> bool:
        """Whether the pages of a request can be promised in addition to those of running ones."""
        room = self._holdings.pages.num_pages - self.promised_pages()
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
        room = self._holdings.pages.num_pages - self.pages_for_request(head)
        # Bit n is set when some of the running requests are promised n pages together.
        sums = 1
        for lane in self._holdings.lanes:
            if lane.run:
                sums |= sums << lane.run.promised_pages
        largest = (sums & ((1 << (room + 1)) - 1)).bit_length() - 1
        return largest + self.pages_for_request(request) <= room

    def _has_protection(self) -> bool:
        return bool(self._holdings.quotas) or any(
            one.pinned_until_s is not None for one in self._holdings.sequences()
        )

    def _untakeable_pages(self, tenant: str, now_s: float) -> int:
        """Return the pages that a request of ``tenant`` cannot take; a tenant lends its own."""
        return self._count_pages(
            one for one in self._protected(now_s) if one.tenant != tenant or one.is_pinned(now_s)
        )

    def _protected(self, now_s: float) -> list[Sequence]:
        order = self._holdings.order(now_s)
        return [one for one in self._holdings.kept() if order.is_protected(one)]

    def _count_pages(self, sequences: Iterable[Sequence]) -> int:
        """Return how many pages these hold that no running sequence shares."""
        shared: set[PageId] = set()
        for one in self._holdings.running():
            shared.update(one.pages)
        return len({page for one in sequences for page in one.pages} - shared)

    # After a change.

    def settle(self, tenant: str, now_s: float) -> None:
        """Restore all limits after a change for ``tenant``.

        Effects: removes pins that leave too little, evicts what the tenant keeps beyond its quota,
        and lends its kept sequences as far as its promises need them.
        """
        if not self._has_protection():
            return
        self._end_large_pins(now_s)
        self._enforce_quota(tenant, now_s)
        self._lend(tenant, now_s)

    def _end_large_pins(self, now_s: float) -> None:
        """Remove the pins that leave too little, the largest ones, so that small ones stay."""
        pinned = [one for one in self._holdings.kept() if one.is_pinned(now_s)]
        fitting: list[Sequence] = []
        for sequence in sorted(pinned, key=lambda one: (len(one.pages), one.sequence_id)):
            num_places, limit = self._pinned_places(sequence, fitting)
            if num_places <= limit and self._pins_fit(sequence, fitting):
                fitting.append(sequence)
            else:
                sequence.pinned_until_s = None
                self._holdings.events.append(PinEnded(sequence.sequence_id))

    def _enforce_quota(self, tenant: str, now_s: float) -> None:
        quota = self._holdings.quotas.get(tenant)
        if quota is None:
            return
        holdings = self._holdings
        in_entries = [one for _, one in holdings.registry if one.tenant == tenant]
        as_anchors = [one.sequence for one in holdings.anchors if one.sequence.tenant == tenant]
        self._shrink(in_entries, quota.entries, tenant, now_s)
        self._shrink(as_anchors, quota.anchors, tenant, now_s)
        while True:
            kept = [one for one in holdings.kept() if one.tenant == tenant]
            if self._count_pages(kept) <= quota.pages:
                return
            victim = holdings.first_to_free(kept, tenant, holdings.order(now_s))
            if victim is None:
                return
            holdings.give_up(victim, EvictionReason.QUOTA)

    def _shrink(self, own: list[Sequence], limit: int, tenant: str, now_s: float) -> None:
        order = self._holdings.order(now_s)
        for _ in range(len(own) - limit):
            victim = order.first(own, tenant)
            if victim is None:
                return
            own.remove(victim)
            self._holdings.give_up(victim, EvictionReason.QUOTA)

    def _lend(self, tenant: str, now_s: float) -> None:
        kept = self._holdings.kept()
        for one in kept:
            if one.tenant == tenant:
                one.is_lent = False
        room = self._holdings.pages.num_pages - self.promised_pages()
        while self._count_pages(self._protected(now_s)) > room:
            order = self._holdings.order(now_s)
            own = [one for one in kept if one.tenant == tenant and order.is_protected(one)]
            lent = order.first(own, tenant)
            if lent is None:
                return
            lent.is_lent = True

    # Quotas.

    def set_quotas(self, quotas: Mapping[str, Quota], now_s: float) -> None:
        """Replace the quotas of all tenants.

        Raises:
            ConfigurationError: together they exceed the capacity. Nothing is changed then.
        """
        self._require_room_for(quotas)
        self._holdings.quotas = dict(quotas)
        for one in self._holdings.kept():
            one.is_lent = False
        for tenant in sorted({*quotas, *(one.tenant for one in self._holdings.kept())}):
            self.settle(tenant, now_s)

    def _require_room_for(self, quotas: Mapping[str, Quota]) -> None:
        holdings = self._holdings
        num_pages = holdings.pages.num_pages
        for name, capacity, why in (
            ("entries", holdings.registry.layout.entries, ""),
            ("anchors", holdings.anchors.num_places, ""),
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

    def pin(self, sequence: Sequence, until_s: float, now_s: float) -> None:
        """Protect a kept sequence from eviction until ``until_s``.

        Raises:
            PinRefused: it has no state that an entry could hold, or with it pinned sequences would
                take more entries, anchors or pages than may be pinned. Nothing is changed then.
        """
        holdings = self._holdings
        is_anchor = self._is_anchor(sequence)
        if not is_anchor and not holdings.registry.can_keep(sequence):
            raise PinRefused("the sequence has no state that an entry could keep")
        others = [
            one for one in holdings.sequences() if one is not sequence and one.is_pinned(now_s)
        ]
        num_places, limit = self._pinned_places(sequence, others)
        if num_places > limit:
            raise PinRefused(
                f"at most {limit} {'anchors' if is_anchor else 'entries'} may be pinned",
                limit=limit,
            )
        if not self._pins_fit(sequence, others):
            raise PinRefused(
                f"the sequence holds {len(sequence.pages)} pages, and pinning it would leave too "
                "few for other requests",
                pages=len(sequence.pages),
            )
        held = self._count_pages([*self._protected(now_s), sequence])
        if self.promised_pages() + held > holdings.pages.num_pages:
            raise PinRefused(
                "the pages of this sequence are promised to running requests; pin it after they "
                "have ended",
            )
        sequence.pinned_until_s = until_s

    def _pinned_places(self, newcomer: Sequence, others: Collection[Sequence]) -> tuple[int, int]:
        """Return how many places of its kind would be pinned, and how many may be.

        Anchors count against anchor places, all others against entries. A tenant with a quota pins
        within it, all others within what the quotas leave.
        """
        holdings = self._holdings
        is_anchor = self._is_anchor(newcomer)
        num_places = sum(
            self._is_anchor(one) is is_anchor for one in self._of_the_same_share(newcomer, others)
        )
        kind = "anchors" if is_anchor else "entries"
        quota = holdings.quotas.get(newcomer.tenant)
        if quota is not None:
            return num_places, getattr(quota, kind)
        capacity = holdings.anchors.num_places if is_anchor else holdings.registry.layout.entries
        return num_places, capacity - sum(getattr(each, kind) for each in holdings.quotas.values())

    def _is_anchor(self, sequence: Sequence) -> bool:
        return self._holdings.anchors.find_by_sequence(sequence) is not None

    def _pins_fit(self, newcomer: Sequence, others: Collection[Sequence]) -> bool:
        """Whether one more pin leaves the pages of a full context and of the quotas."""
        holdings = self._holdings
        pages = {page for one in self._of_the_same_share(newcomer, others) for page in one.pages}
        quota = holdings.quotas.get(newcomer.tenant)
        if quota is not None:
            return len(pages) <= quota.pages
        reserved = sum(each.pages for each in holdings.quotas.values())
        return len(pages) + reserved + self._context_pages <= holdings.pages.num_pages

    def _of_the_same_share(
        self, newcomer: Sequence, others: Collection[Sequence]
    ) -> list[Sequence]:
        """Return the newcomer and those that are pinned within the same quota, or within none."""
        quotas, tenant = self._holdings.quotas, newcomer.tenant
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
        if reserved > self._holdings.pages.num_pages:
            raise InvariantBroken(
                f"{reserved} pages are promised or protected, and there are "
                f"{self._holdings.pages.num_pages}"
            )

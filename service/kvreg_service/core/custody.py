"""Changes of kept sequences by their id: drop, pin, unpin; and the quotas of tenants.

All of them may come between the plan of a step and its result. What is dropped then is no longer
kept; the running step still computes, and the part of its result that belongs to it is discarded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from kvreg_service.core.errors import SessionBusy, SessionNotFound
from kvreg_service.core.events import Event
from kvreg_service.core.holdings import Holdings
from kvreg_service.core.ids import SequenceId
from kvreg_service.core.labels import EvictionReason
from kvreg_service.core.quota import Quota
from kvreg_service.core.sequence import Sequence
from kvreg_service.core.shares import Shares


class Custody:
    """Changes a `Holdings` on request. Returned events are those of the change, not of a step.

    With ``tenant`` only that tenant's sequences are found.
    """

    def __init__(self, holdings: Holdings, shares: Shares) -> None:
        self._holdings = holdings
        self._shares = shares

    def drop(self, sequence_id: SequenceId, tenant: str | None = None) -> list[Event]:
        """Evict a kept sequence from its lane, entry or anchor place.

        Raises:
            SessionNotFound: no such sequence is kept.
            SessionBusy: a request runs on it.
        """
        sequence = self._require_kept(sequence_id, tenant)
        with self._own_events() as happened:
            self._holdings.give_up(sequence, EvictionReason.REQUESTED)
        return happened

    def pin(
        self, sequence_id: SequenceId, ttl_s: float, now_s: float, tenant: str | None = None
    ) -> None:
        """Protect a sequence from eviction for ``ttl_s`` seconds.

        Raises:
            SessionNotFound, SessionBusy: as `drop`.
            PinRefused: it would leave too few places or pages for other requests.
        """
        self._shares.pin(self._require_kept(sequence_id, tenant), now_s + ttl_s, now_s)

    def unpin(self, sequence_id: SequenceId, tenant: str | None = None) -> None:
        """Allow the eviction of a sequence again.

        Raises:
            SessionNotFound, SessionBusy: as `drop`.
        """
        self._require_kept(sequence_id, tenant).pinned_until_s = None

    def set_quotas(self, quotas: Mapping[str, Quota], now_s: float) -> list[Event]:
        """Replace the quotas of all tenants.

        Raises:
            ConfigurationError: together they exceed the capacity. Nothing is changed then.
        """
        with self._own_events() as happened:
            self._shares.set_quotas(quotas, now_s)
        return happened

    def _require_kept(self, sequence_id: SequenceId, tenant: str | None) -> Sequence:
        def is_meant(sequence: Sequence) -> bool:
            return sequence.sequence_id == sequence_id and tenant in (None, sequence.tenant)

        if any(is_meant(one) for one in self._holdings.running()):
            raise SessionBusy("a request runs on this sequence")
        for sequence in self._holdings.kept():
            if is_meant(sequence):
                return sequence
        raise SessionNotFound("no such sequence is kept")

    @contextmanager
    def _own_events(self) -> Iterator[list[Event]]:
        """Collect the events of the block; leave the pools consistent if it raises."""
        happened: list[Event] = []
        num_events = len(self._holdings.events)
        try:
            yield happened
        except Exception:
            self._holdings.recount()
            raise
        happened += self._holdings.events[num_events:]
        del self._holdings.events[num_events:]

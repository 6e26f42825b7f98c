"""Changes of sessions by their id: drop, pin, unpin; and the quotas of tenants.

All of them may come between the plan of a step and its result. A slot or page that is freed then is
not used before the next plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from kvreg_service.core.errors import SessionBusy, SessionNotFound
from kvreg_service.core.events import Event
from kvreg_service.core.ids import SessionId
from kvreg_service.core.labels import EvictionReason
from kvreg_service.core.scheduling.lane import Lane, rebuild
from kvreg_service.core.scheduling.reservations import Reservations
from kvreg_service.core.states.kept_state import Session
from kvreg_service.core.states.quota import Quota
from kvreg_service.core.states.store import StateStore


class SessionControl:
    """Changes a `StateStore` on request. Returned events are those of the change, not of a step.

    With ``tenant`` only that tenant's sessions are found.
    """

    def __init__(
        self, store: StateStore, lanes: Sequence[Lane], reservations: Reservations
    ) -> None:
        self._store = store
        self._lanes = lanes
        self._reservations = reservations

    def drop(self, session_id: SessionId, tenant: str | None = None) -> list[Event]:
        """Free all states of a session.

        Raises:
            SessionNotFound: no such session is kept.
            SessionBusy: a request runs on it.
        """
        session = self._require_kept(session_id, tenant)
        with self._own_events() as happened:
            self._store.free_session(session, EvictionReason.REQUESTED)
        return happened

    def pin(
        self, session_id: SessionId, ttl_s: float, now_s: float, tenant: str | None = None
    ) -> None:
        """Protect a session from eviction for ``ttl_s`` seconds.

        Raises:
            SessionNotFound, SessionBusy: as `drop`.
            PinRefused: it would leave too few places or pages for other requests.
        """
        self._reservations.pin(self._require_kept(session_id, tenant), now_s + ttl_s, now_s)

    def unpin(self, session_id: SessionId, tenant: str | None = None) -> None:
        """Allow the eviction of a session again.

        Raises:
            SessionNotFound, SessionBusy: as `drop`.
        """
        self._require_kept(session_id, tenant).pinned_until_s = None

    def set_quotas(self, quotas: Mapping[str, Quota], now_s: float) -> list[Event]:
        """Replace the quotas of all tenants.

        Raises:
            ConfigurationError: together they exceed the capacity. Nothing is changed then.
        """
        with self._own_events() as happened:
            self._reservations.set_quotas(quotas, now_s)
        return happened

    def _require_kept(self, session_id: SessionId, tenant: str | None) -> Session:
        session = self._store.find_session(session_id)
        if session is None or tenant not in (None, session.tenant):
            raise SessionNotFound("no such session is kept")
        if session.num_running:
            raise SessionBusy("a request runs on this session")
        return session

    @contextmanager
    def _own_events(self) -> Iterator[list[Event]]:
        """Collect the events of the block; leave the pools consistent if it raises."""
        happened: list[Event] = []
        num_events = len(self._store.events)
        try:
            yield happened
        except Exception:
            rebuild(self._store, self._lanes)
            raise
        happened += self._store.events[num_events:]
        del self._store.events[num_events:]

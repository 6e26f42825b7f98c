"""Admits waiting requests to lanes, at most one per step.

An exception while a request is planned or placed concerns that request alone: it is queued again
without reuse, and fails the second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvreg_service.core.errors import KvregError, wrap_failure
from kvreg_service.core.events import Evicted, Failed, ReuseFailed, StateKept, UpkeepFailed
from kvreg_service.core.requests.request import Request
from kvreg_service.core.requests.waiting_line import WaitingLine
from kvreg_service.core.scheduling.admission import AdmissionPlanner
from kvreg_service.core.scheduling.lane import Lane, rebuild
from kvreg_service.core.scheduling.lane_starter import LaneStarter
from kvreg_service.core.scheduling.reservations import Reservations
from kvreg_service.core.scheduling.step import LanePreparation
from kvreg_service.core.states.store import StateStore


class Intake:
    """First come, first served; a small request may pass one that does not fit yet."""

    def __init__(
        self,
        queue: WaitingLine,
        store: StateStore,
        lanes: Sequence[Lane],
        reservations: Reservations,
        planner: AdmissionPlanner,
        starter: LaneStarter,
    ) -> None:
        self._queue = queue
        self._store = store
        self._lanes = lanes
        self._reservations = reservations
        self._planner = planner
        self._starter = starter

    def admit_next(self, now_s: float) -> LanePreparation | None:
        """Admit one request to a lane, if one is waiting and fits.

        Returns:
            The state moves that the runner must execute first; None if no request was admitted.
        """
        try:
            request = self._choose(now_s)
        except Exception as error:  # noqa: BLE001 - no request's failure; the next step retries
            self._store.events.append(
                UpkeepFailed(wrap_failure("choosing the next request", error))
            )
            return None
        if request is None:
            return None
        num_events = len(self._store.events)
        try:
            self._queue.remove(request)
            plan = self._planner.plan(request, now_s)
            assert plan is not None, "a request is chosen only while a lane is idle"
            moves = self._starter.start(plan, now_s)
        except Exception as error:  # noqa: BLE001 - it fails this request alone
            self._undo(request, num_events)
            self._fail(request, error)
            return None
        return LanePreparation(request.request_id, tuple(moves))

    def retry_cold(self, request: Request, error: KvregError) -> None:
        """Queue a request again without reuse, at the head; fail it the second time."""
        if request.cache_policy.may_reuse:
            cold = replace(request.cache_policy, may_reuse=False)
            self._queue.put_back(replace(request, cache_policy=cold))
            self._store.events.append(ReuseFailed(request.request_id, error))
        else:
            self._store.events.append(Failed(request.request_id, error))

    def _undo(self, request: Request, num_events: int) -> None:
        """Take a request off its lane. States that were freed for it stay freed."""
        happened = self._store.events[num_events:]
        self._store.events[num_events:] = [
            event for event in happened if isinstance(event, Evicted | StateKept)
        ]
        for lane in self._lanes:
            if lane.run is not None and lane.run.request.request_id == request.request_id:
                lane.run = None
        rebuild(self._store, self._lanes)

    def _choose(self, now_s: float) -> Request | None:
        """Return the next request: the head of the queue, or one that does not delay it."""
        head = self._queue.head
        for request in self._queue:
            try:
                if request is head:
                    if not any(not lane.is_busy for lane in self._lanes):
                        return None
                    if self._reservations.fits(request, now_s):
                        return request
                elif head is not None and self._reservations.may_pass(request, head, now_s):
                    return request
            except Exception as error:  # noqa: BLE001 - handled like a failed admission
                self._fail(request, error)
                return None
        return None

    def _fail(self, request: Request, error: Exception) -> None:
        self._queue.remove(request)
        self.retry_cold(request, wrap_failure("admission", error))

"""Owns the queue and admits its requests to lanes, at most one per step.

An exception while a request is planned or placed concerns that request alone: it is queued again
without reuse, and fails the second time.
"""

from __future__ import annotations

from dataclasses import replace

from kvreg_service.core.admission import AdmissionPlanner, AdmissionRules
from kvreg_service.core.errors import KvregError, wrap_failure
from kvreg_service.core.events import Failed, ReuseFailed, UpkeepFailed
from kvreg_service.core.holdings import Holdings
from kvreg_service.core.placement import Placement
from kvreg_service.core.request import Request
from kvreg_service.core.shares import Shares
from kvreg_service.core.step import LanePreparation
from kvreg_service.core.waiting import WaitingLine


class Intake:
    """First come, first served; a small request may pass one that does not fit yet."""

    def __init__(
        self, queue: WaitingLine, holdings: Holdings, shares: Shares, rules: AdmissionRules
    ) -> None:
        self._queue = queue
        self._holdings = holdings
        self._shares = shares
        self._rules = rules
        self._placement = Placement(holdings, shares)

    def admit_next(self, now_s: float) -> LanePreparation | None:
        """Admit one request to a lane, if one is waiting and fits.

        Returns:
            The state moves that the runner must execute first; None if no request was admitted.
        """
        try:
            request = self._choose(now_s)
        except Exception as error:  # noqa: BLE001 - no request's failure; the next step retries
            self._holdings.events.append(
                UpkeepFailed(wrap_failure("choosing the next request", error))
            )
            return None
        if request is None:
            return None
        try:
            self._queue.remove(request)
            plan = AdmissionPlanner(self._holdings, self._rules, now_s).plan(request)
            assert plan is not None, "a request is chosen only while a lane is idle"
            moves = self._placement.admit(plan, self._shares.pages_for_request(request), now_s)
        except Exception as error:  # noqa: BLE001 - it fails this request alone
            self._fail(request, error)
            return None
        return LanePreparation(request.request_id, tuple(moves))

    def retry_cold(self, request: Request, error: KvregError) -> None:
        """Queue a request again without reuse, at the head; fail it the second time."""
        if request.cache_policy.may_reuse:
            cold = replace(request.cache_policy, may_reuse=False)
            self._queue.put_back(replace(request, cache_policy=cold))
            self._holdings.events.append(ReuseFailed(request.request_id, error))
        else:
            self._holdings.events.append(Failed(request.request_id, error))

    def _choose(self, now_s: float) -> Request | None:
        """Return the next request: the head of the queue, or one that does not delay it."""
        head = self._queue.head
        for request in self._queue:
            try:
                if request is head:
                    if not any(not lane.is_busy for lane in self._holdings.lanes):
                        return None
                    if self._shares.fits(request, now_s):
                        return request
                elif head is not None and self._shares.may_pass(request, head, now_s):
                    return request
            except Exception as error:  # noqa: BLE001 - handled like a failed admission
                self._fail(request, error)
                return None
        return None

    def _fail(self, request: Request, error: Exception) -> None:
        self._queue.remove(request)
        self.retry_cold(request, wrap_failure("admission", error))

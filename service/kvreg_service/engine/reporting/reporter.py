"""Reports the scheduler's events: to the observers, to the totals and to the process's log.

Owns the totals since the start, by tenant. Called on the step loop's thread, or under the engine's
lock.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence

from kvreg_service.core import events
from kvreg_service.core.ids import RequestId
from kvreg_service.engine.interface.record import RequestRecord
from kvreg_service.engine.interface.snapshot import Totals
from kvreg_service.engine.reporting.observers import Observers
from kvreg_service.engine.reporting.totals import Tally

_logger = logging.getLogger(__name__)

_REGISTRY_EVENTS = (
    events.Detached,
    events.Attached,
    events.StateKept,
    events.Evicted,
    events.PinEnded,
)

_NO_RECORDS: Mapping[RequestId, RequestRecord] = {}


class EventReporter:
    """Counts, logs and passes on what happened."""

    def __init__(self, observers: Observers) -> None:
        self._observers = observers
        self._tallies: defaultdict[str | None, Tally] = defaultdict(Tally)

    def totals(self, tenant: str | None) -> Totals:
        """Return the counts of one tenant, or of all together."""
        return self._tallies[tenant].totals()

    def report_copies(self, happened: Sequence[events.Event], seconds: float) -> None:
        """Report how long copying the state of an admission took, if it resumed one."""
        for event in happened:
            if isinstance(event, events.Admitted) and event.admission.gap_s is not None:
                self._observers.state_copied(seconds)

    def report(
        self,
        happened: Sequence[events.Event],
        ended: Mapping[RequestId, RequestRecord] = _NO_RECORDS,
    ) -> None:
        """Report events in their order, with the records of the requests that ended."""
        for event in happened:
            match event:
                case events.TokenSampled() | events.Admitted():
                    continue
                case events.Failed():
                    _logger.warning(
                        "request %s failed: %s",
                        event.request_id,
                        event.error,
                        exc_info=event.error.__cause__,
                    )
                case events.ReuseFailed():
                    _logger.warning(
                        "request %s could not resume a kept state; its whole prompt is computed: "
                        "%s",
                        event.request_id,
                        event.error,
                        exc_info=event.error.__cause__,
                    )
                case events.Evicted():
                    for tally in self._tallies_of(event.tenant):
                        tally.evictions[event.reason] += 1
                    _logger.info(
                        "freed the %s state of session %d at %d tokens (%d bytes): %s",
                        event.kind, event.session_id, event.tokens, event.freed_bytes, event.reason,
                    )  # fmt: skip
                case events.UpkeepFailed():
                    _logger.error(
                        "bookkeeping failed: %s", event.error, exc_info=event.error.__cause__
                    )
                case events.PinEnded():
                    _logger.warning(
                        "unpinned session %d: its pin left too little for other requests",
                        event.session_id,
                    )
                case _:
                    _logger.debug("%s", event)
            if isinstance(event, events.Terminal):
                self._report_end(ended[event.request_id])
            elif isinstance(event, _REGISTRY_EVENTS):
                self._observers.registry_changed(event)

    def _report_end(self, record: RequestRecord) -> None:
        for tally in self._tallies_of(record.tenant):
            tally.count(record)
        self._observers.request_ended(record)

    def _tallies_of(self, tenant: str) -> tuple[Tally, Tally]:
        """Return the tally of all tenants together and that of one."""
        return self._tallies[None], self._tallies[tenant]

"""What a scheduler has to do next, as the oracles have said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from seen import SeenSession, SeenState

from kvreg_service.core import events
from kvreg_service.core.labels import EvictionReason
from kvreg_service.core.requests.request import Admission

Victim = tuple[SeenState, EvictionReason]


@dataclass
class Expectations:
    """What must happen, in its order.

    ``now_s`` is the time of the call in progress. ``failed`` are the requests that fail in it, and
    whether their lanes are unprepared.
    """

    now_s: float = 0.0
    victims: Iterator[Victim] = field(default_factory=lambda: iter(()))
    ending_pins: list[SeenSession] = field(default_factory=list)
    announcements: list[type[events.Event]] = field(default_factory=list)
    admission: Admission | None = None
    is_frontier_due: bool = False
    failed: dict[str, bool] = field(default_factory=dict)

    def expect_freed(self, victims: Iterable[Victim]) -> None:
        """Say which states are freed from now on, in their order, evaluated one by one."""
        self.finish_evictions()
        self.victims = iter(victims)

    def finish_evictions(self) -> None:
        """Check that everything that had to be freed was."""
        missing = next(self.victims, None)
        assert missing is None, f"not freed: {missing}"

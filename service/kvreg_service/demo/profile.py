"""The engine profiles that stories are played on. Owns what varies between them and their names."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvreg_service.core.labels import CurrentState
from kvreg_service.core.slots import SlotLayout
from kvreg_service.engine.options import EngineOptions


@dataclass(frozen=True)
class Profile:
    """What of an engine's options a story may depend on; one lane throughout."""

    entries: int
    keep_current: bool = True
    exchange: bool = True
    eviction: str = "cost"

    @property
    def name(self) -> str:
        """A short name that tells the profiles apart; what it leaves out is the default."""
        if self.entries == 0:
            return "R=0"
        current = CurrentState.KEEP if self.keep_current else CurrentState.DROP
        if self.exchange:
            rest = ""
        else:
            rest = ", as the source" if self.eviction == "none" else ", no exchange"
        return f"R={self.entries} {current}{rest}"

    @property
    def layout(self) -> SlotLayout:
        """The state slots of one lane and these entries."""
        return SlotLayout(1, self.entries, self.keep_current)

    def options(self, base: EngineOptions) -> EngineOptions:
        """Return ``base`` with this profile's settings."""
        return replace(
            base,
            entries=self.entries,
            keep_current=self.keep_current,
            exchange=self.exchange,
            eviction=self.eviction,
        )


def as_source(entries: int, *, keep_current: bool = True) -> Profile:
    """A profile of the source system: no exchange, and nothing is evicted or forked."""
    return Profile(entries, keep_current=keep_current, exchange=False, eviction="none")


NO_ENTRY = Profile(0)
KEEP = Profile(1)
DROP = Profile(1, keep_current=False)

KEEP_PROFILES = (KEEP, as_source(1))
MAIN_PROFILES = (NO_ENTRY, *KEEP_PROFILES, DROP, as_source(1, keep_current=False))
ALL_PROFILES = (
    *MAIN_PROFILES,
    Profile(1, exchange=False),
    Profile(1, keep_current=False, exchange=False),
)
CAPACITY_PROFILES = (
    *(as_source(entries) for entries in range(5)),
    *(Profile(entries) for entries in range(1, 5)),
)

"""The engine profiles on which stories run: their options and their names."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvreg_service.core.labels import CurrentState
from kvreg_service.core.memory.slots import SlotLayout
from kvreg_service.engine.options import EngineOptions


@dataclass(frozen=True)
class Profile:
    """The engine options that a story depends on. There is always one lane."""

    entries: int
    keep_current: bool = True
    eviction: str = "cost"

    @property
    def name(self) -> str:
        """A short unique name, which leaves out defaults."""
        if self.entries == 0:
            return "R=0"
        current = CurrentState.KEEP if self.keep_current else CurrentState.DROP
        rest = ", as the source" if self.is_as_source else ""
        return f"R={self.entries} {current}{rest}"

    @property
    def is_as_source(self) -> bool:
        """Whether nothing is freed to make room, as in the source system."""
        return self.eviction == "none"

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
            eviction=self.eviction,
        )


def as_source(entries: int, *, keep_current: bool = True) -> Profile:
    """A profile like the source system: nothing is freed to make room."""
    return Profile(entries, keep_current=keep_current, eviction="none")


NO_ENTRY = Profile(0)
KEEP = Profile(1)
DROP = Profile(1, keep_current=False)

KEEP_PROFILES = (KEEP, as_source(1))
MAIN_PROFILES = (NO_ENTRY, *KEEP_PROFILES, DROP, as_source(1, keep_current=False))
CAPACITY_PROFILES = (
    *(as_source(entries) for entries in range(5)),
    *(Profile(entries) for entries in range(1, 5)),
)

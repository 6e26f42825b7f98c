"""The profiles that the cases run with, and parametrize marks over them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest


@dataclass(frozen=True)
class Profile:
    """C lanes, R entries, and whether an entry keeps the current state."""

    lanes: int = 1
    entries: int = 1
    current_state: Literal["keep", "drop"] = "keep"

    def __str__(self) -> str:
        return f"C{self.lanes}-R{self.entries}-{self.current_state}"


PROFILES = tuple(
    Profile(lanes, entries, state)
    for lanes in (1, 2)
    for entries in (0, 1, 2)
    for state in ("keep", "drop")
    if entries > 0 or state == "keep"
)
WITH_REGISTRY = tuple(profile for profile in PROFILES if profile.entries)
WITHOUT_REGISTRY = tuple(profile for profile in PROFILES if not profile.entries)

every_profile = pytest.mark.parametrize("profile", PROFILES, ids=str)
with_registry = pytest.mark.parametrize("profile", WITH_REGISTRY, ids=str)
without_registry = pytest.mark.parametrize("profile", WITHOUT_REGISTRY, ids=str)
# Streaming does not depend on the profile, so that two profiles with it suffice.
with_registry_and_streams = pytest.mark.parametrize(
    ("profile", "stream"),
    [
        *((profile, False) for profile in WITH_REGISTRY),
        (Profile(1, 1, "keep"), True),
        (Profile(2, 2, "drop"), True),
    ],
    ids=lambda value: (
        str(value) if isinstance(value, Profile) else "streamed" if value else "whole"
    ),
)
# For slow cases: each number of lanes and entries and both states, but not every combination.
few_with_registry = pytest.mark.parametrize(
    "profile", [Profile(1, 1), Profile(1, 1, "drop"), Profile(1, 2), Profile(2, 2, "drop")], ids=str
)
# For properties that do not depend on where a sequence is kept.
some_profiles = pytest.mark.parametrize(
    "profile", [Profile(1, 0), Profile(1, 1), Profile(2, 2, "drop")], ids=str
)
whole_and_streamed = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])

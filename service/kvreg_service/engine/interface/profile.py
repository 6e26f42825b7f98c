"""The profile that an engine runs, and whether another one would fit."""

from __future__ import annotations

from dataclasses import dataclass

from kvreg_service.core.labels import CurrentState


@dataclass(frozen=True)
class EffectiveProfile:
    """The profile that this engine runs, to compare with the one that was requested.

    ``profile`` is the name of the mounted profile, and ``profile_hash`` the digest of all settings
    that decide memory and reuse.
    """

    model: str
    profile: str | None
    profile_hash: str
    lanes: int
    entries: int
    current_state: CurrentState
    eviction: str
    max_context_tokens: int
    kv_dtype: str
    device: str
    anchors: int = 0


@dataclass(frozen=True)
class FitReport:
    """Whether a profile fits the memory of this engine, by the arithmetic used at the start.

    ``short_by_bytes`` is 0 if it fits.
    """

    fits: bool
    required_bytes: int
    available_bytes: int
    short_by_bytes: int

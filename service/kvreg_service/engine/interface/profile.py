"""The profile that an engine runs, and whether another one would fit."""

from __future__ import annotations

from dataclasses import dataclass

from kvreg_service.core.labels import CurrentState


@dataclass(frozen=True)
class EffectiveProfile:
    """What this engine really runs, for whoever compares it with what was asked.

    ``profile`` is the name under which a profile was mounted, and ``profile_hash`` the digest of
    all settings that decide memory and reuse.
    """

    model: str
    profile: str | None
    profile_hash: str
    lanes: int
    entries: int
    current_state: CurrentState
    exchange: bool
    eviction: str
    max_context_tokens: int
    kv_dtype: str
    device: str
    anchors: int = 0


@dataclass(frozen=True)
class FitReport:
    """Whether a profile fits the memory of this engine, by the arithmetic that reserves at start.

    ``short_by_bytes`` is 0 when it fits.
    """

    fits: bool
    required_bytes: int
    available_bytes: int
    short_by_bytes: int

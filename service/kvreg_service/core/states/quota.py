"""What a tenant may keep, and what other tenants may not evict."""

from __future__ import annotations

from dataclasses import dataclass

from kvreg_service.core.errors import ConfigurationError


@dataclass(frozen=True)
class Quota:
    """The share of one tenant: at most this much is kept for it, and others never evict it.

    Raises:
        ConfigurationError: a number is below zero.
    """

    entries: int
    pages: int
    anchors: int = 0

    def __post_init__(self) -> None:
        for name in ("entries", "pages", "anchors"):
            value = getattr(self, name)
            if value < 0:
                raise ConfigurationError(f"{name} of a quota is {value}, and must be at least 0")

"""The eviction policies: what keeping a state is worth.

Each gives a state a value of at least 0, and may sort states into levels that come before any
value. Which states may be freed at all, and for which tenant, is the same for every policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kvreg_service.core.errors import ConfigurationError
from kvreg_service.core.states.kept_state import Session
from kvreg_service.core.states.return_rates import Visits


@dataclass(frozen=True)
class Prospect:
    """A kept state, or one that may be captured, as a policy sees it.

    ``saved_s`` are the seconds of prefill beyond the nearest kept state before it, and
    ``return_rate`` the expected returns per admission. ``rest`` is how many admissions ago it was
    used.
    """

    session: Session
    visits: Visits
    saved_s: float
    return_rate: float
    rest: int


class EvictionPolicy(Protocol):
    """Values states. Pure: the same arguments give the same result."""

    @property
    def name(self) -> str:
        """Its name in the settings."""
        ...

    @property
    def is_per_page(self) -> bool:
        """Whether, where pages are needed, values are compared per page that becomes free."""
        ...

    @property
    def keeps_only_r_sessions(self) -> bool:
        """Whether nothing is freed to make room for a displaced session or a head."""
        ...

    def level(self, prospect: Prospect) -> int:
        """Return its level. All of a lower level are freed before any of a higher one."""
        ...

    def value(self, prospect: Prospect) -> float:
        """Return the value of keeping it, at least 0. The lowest of a level is freed first."""
        ...


@dataclass(frozen=True)
class CostPolicy:
    """Seconds of prefill that a state saves, times the learned rate at which it is resumed."""

    name: str = "cost"
    is_per_page: bool = True
    keeps_only_r_sessions: bool = False

    def level(self, prospect: Prospect) -> int:  # noqa: ARG002 - there is one level
        """Return 0."""
        return 0

    def value(self, prospect: Prospect) -> float:
        """Return the expected seconds saved per admission."""
        return prospect.saved_s * prospect.return_rate


@dataclass(frozen=True)
class LRUPolicy:
    """The least recently used is freed first. A long prompt that never returns pollutes it."""

    name: str = "lru"
    is_per_page: bool = False
    keeps_only_r_sessions: bool = False

    def level(self, prospect: Prospect) -> int:  # noqa: ARG002 - there is one level
        """Return 0."""
        return 0

    def value(self, prospect: Prospect) -> float:
        """Return one over the admissions since its last use."""
        return 1 / (1 + prospect.rest)


@dataclass(frozen=True)
class PriorityPolicy(CostPolicy):
    """The lowest ``priority`` is freed first; among equals, the order is that of `CostPolicy`."""

    name: str = "priority"

    def level(self, prospect: Prospect) -> int:
        """Return the priority of its session."""
        return prospect.session.priority


@dataclass(frozen=True)
class NonePolicy(LRUPolicy):
    """The rule of the system that kvreg follows: nothing is freed to make room.

    A displaced session is kept only while fewer than R are, with its last boundary and frontier; a
    head only while fewer than A are. Page pressure still frees states, the least recently used
    first.
    """

    name: str = "none"
    keeps_only_r_sessions: bool = True


POLICIES: dict[str, EvictionPolicy] = {
    one.name: one for one in (CostPolicy(), LRUPolicy(), PriorityPolicy(), NonePolicy())
}


def find_policy(name: str) -> EvictionPolicy:
    """Return the eviction policy of that name.

    Raises:
        ConfigurationError: there is none; the message lists the known names.
    """
    policy = POLICIES.get(name)
    if policy is None:
        raise ConfigurationError(
            f"eviction is {name!r}, and must be one of {', '.join(POLICIES)}", value=name
        )
    return policy

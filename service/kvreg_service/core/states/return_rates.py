"""How often kept states are resumed, learned from the engine's own traffic.

A state that is at rest grows older with every admission, of whichever session; so nothing here
depends on the unit of time, and a pause of all traffic ages nothing. Ages fall into classes whose
widths grow with age. States are alike in their `StateClass`. For each class and age class two
numbers are counted: how many such states rested through it, and how many were resumed in it. Freed
states are watched for a while longer, because only those can show that freeing them was wrong.

Source: N. Beckmann, H. Chen and A. Cidon, "LHD: improving cache hit rate by maximizing hit
density", NSDI 2018; the ratio over the best horizon is the index of J. C. Gittins, "Bandit
processes and dynamic allocation indices", JRSS B 41(2), 1979.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from kvreg_service.core.labels import StateKind
from kvreg_service.core.requests.ledger import PrefixKey, TokenLedger

AGE_EDGES = (1, *(edge for power in range(1, 20) for edge in (2**power, 3 * 2 ** (power - 1))))
"""The smallest age of each class, in admissions: 1, 2, 3, 4, 6, 8, 12 and so on."""

_NUM_CLASSES = len(AGE_EDGES) - 1
_WIDTHS = tuple(AGE_EDGES[i + 1] - AGE_EDGES[i] for i in range(_NUM_CLASSES))

_PACE_EDGES = (3, 6)
"""Age classes that divide rests into up to 3, up to 11 and more admissions."""

_MAX_FREED = 400
_MAX_COUNT = 4096.0
"""Counts of a class are halved when so many states rested through its first age class."""

_MAX_PATIENCE = 4096

_FIRST_CHANCE = 0.02
"""The chance of a return in any age class before anything was counted."""
_FOLLOWED_SHARE = 0.05
"""The part of that chance for a state whose conversation went on beyond it."""
_SHARED_SHARE = 0.1
"""The same for a head or a branch point, which wait for another conversation."""
_FIRST_WEIGHT = 8.0
"""Observations that the first chance counts as."""
_COMMON_WEIGHT = 2.0
"""Observations that the chance over all classes counts as in each class."""


@dataclass(frozen=True, order=True)
class StateClass:
    """States that are expected to be resumed alike.

    ``is_followed`` says that a later request of the path was captured beyond it; ``pace`` is how
    long its conversation rested before it was last resumed, see `pace_of`.
    """

    kind: StateKind
    is_followed: bool
    pace: int


@dataclass(eq=False)
class Visits:
    """The rests and returns of one position, whether its state is still kept or was freed."""

    prefix: PrefixKey
    kind: StateKind
    is_followed: bool = False
    pace: int = 0
    num_returns: int = 0
    resting_since: int | None = None
    """The number of the admission after which it came to rest; None while a request uses it."""
    age_class: int = 0
    is_dropped_current: bool = False
    """Whether it was a frontier that drop mode freed with its session's lane."""
    is_watched: bool = False
    """Whether it was freed, and would be resumed if it was not."""
    version: int = 0
    """Counts its rests, so that what was due in an earlier one is ignored."""

    @property
    def can_be_followed(self) -> bool:
        """Whether it loses its use when its conversation goes on beyond it."""
        return self.kind.is_boundary or self.kind is StateKind.FRONTIER

    @property
    def state_class(self) -> StateClass:
        """The class that it is counted in now."""
        return StateClass(self.kind, self.is_followed, self.pace)


@dataclass
class RateTable:
    """The counts of one class of states, by age class."""

    rested: list[float] = field(default_factory=lambda: [0.0] * _NUM_CLASSES)
    """States that rested to the end of the age class, or were resumed in it."""
    returned: list[float] = field(default_factory=lambda: [0.0] * _NUM_CLASSES)
    """Those that were resumed in it."""
    rates: list[float] = field(default_factory=list)
    """The rate of a state in each age class, as last computed."""
    computed_at: int = -1
    """How many counts there were then, of all classes together."""

    def chance(self, age_class: int, expected: float, weight: float) -> float:
        """Return the part that was resumed in an age class, with ``weight`` expected ones."""
        return (self.returned[age_class] + expected * weight) / (self.rested[age_class] + weight)

    def count(self, age_class: int, *, is_return: bool) -> None:
        """Count one state that leaves an age class."""
        self.rested[age_class] += 1
        self.returned[age_class] += is_return
        if self.rested[age_class] > _MAX_COUNT:
            self.rested = [count / 2 for count in self.rested]
            self.returned = [count / 2 for count in self.returned]


class ReturnRates:
    """Counts returns, and estimates the rate of returns of any state.

    Deterministic: the same admissions and ends in the same order give the same rates.
    """

    def __init__(self) -> None:
        self.num_admissions = 0
        self._tables: dict[StateClass, RateTable] = {}
        self._common = RateTable()
        self._num_counts = 0
        self._due: dict[int, list[tuple[Visits, int]]] = {}
        self._freed: OrderedDict[Visits, None] = OrderedDict()

    def tables(self) -> Iterator[tuple[StateClass, RateTable]]:
        """Yield the counts of each class, for people."""
        return iter(sorted(self._tables.items()))

    # What happens to states.

    def count_admission(self) -> None:
        """Make every state at rest one admission older."""
        self.num_admissions += 1
        for visits, version in self._due.pop(self.num_admissions, ()):
            if visits.version == version:
                self._count(visits, is_return=False)
                visits.age_class += 1
                self._await_next_class(visits)

    def rest(self, visits: Visits) -> None:
        """Begin a rest: the request that computed or resumed the state has ended."""
        visits.version += 1
        visits.resting_since = self.num_admissions
        visits.age_class = 0
        self._await_next_class(visits)

    def resume(self, visits: Visits, *, is_deepest: bool = True) -> None:
        """End a rest with a return. A state that another request still uses had none.

        If a freed state lay deeper, the return is counted there: it is that state's chance which
        this one has inherited.
        """
        if is_deepest:
            self._count(visits, is_return=True)
        visits.version += 1
        visits.num_returns += 1
        visits.pace = pace_of(visits)
        visits.resting_since = None
        visits.age_class = 0

    def free(self, visits: Visits) -> None:
        """Watch a state that was freed, and stop to watch the one that was freed first."""
        visits.is_watched = True
        self._freed[visits] = None
        if len(self._freed) > _MAX_FREED:
            oldest, _ = self._freed.popitem(last=False)
            oldest.version += 1
            oldest.is_watched = False

    def find_freed(self, prompt: TokenLedger, longer_than: int) -> Visits | None:
        """Return the longest freed state that the prompt could resume, if it was kept."""
        longest: Visits | None = None
        for visits in self._freed:
            position = visits.prefix.position
            if longer_than < position < len(prompt) and visits.prefix.is_prefix_of(prompt):
                longer_than, longest = position, visits
        return longest

    def resume_freed(self, visits: Visits) -> None:
        """Count the return of a freed state, which is computed again."""
        if visits not in self._freed:
            # It was forgotten since it was found.
            return
        del self._freed[visits]
        self._count(visits, is_return=True)
        visits.version += 1
        visits.is_watched = False

    # Rates.

    def rate(self, visits: Visits, *, is_followed: bool = False) -> float:
        """Return the expected returns per admission over the best horizon from its age on.

        With ``is_followed`` as if its conversation had gone on beyond it.
        """
        state_class = visits.state_class
        if is_followed and not state_class.is_followed and visits.can_be_followed:
            state_class = replace(state_class, is_followed=True)
        table = self._tables.get(state_class)
        if table is None:
            table = self._tables[state_class] = RateTable()
        if table.computed_at < 0 or self._num_counts - table.computed_at > self._patience:
            table.rates = self._compute(state_class, table)
            table.computed_at = self._num_counts
        return table.rates[visits.age_class]

    @property
    def _patience(self) -> int:
        """How many counts may pass before rates are computed again: few at the start."""
        return min(self._num_counts, _MAX_PATIENCE) // 32

    def _compute(self, state_class: StateClass, table: RateTable) -> list[float]:
        chances = [self._chance(state_class, table, index) for index in range(_NUM_CLASSES)]
        return [_best_ratio(chances, start) for start in range(_NUM_CLASSES)]

    def _chance(self, state_class: StateClass, table: RateTable, index: int) -> float:
        chance = self._common.chance(index, _FIRST_CHANCE, _FIRST_WEIGHT)
        if state_class.is_followed:
            chance *= _FOLLOWED_SHARE
        elif state_class.kind in (StateKind.HEAD, StateKind.BRANCH_POINT):
            chance *= _SHARED_SHARE
        return table.chance(index, chance, _COMMON_WEIGHT)

    def _count(self, visits: Visits, *, is_return: bool) -> None:
        table = self._tables.get(visits.state_class)
        if table is None:
            table = self._tables[visits.state_class] = RateTable()
        self._num_counts += 1
        for one in (table, self._common):
            one.count(visits.age_class, is_return=is_return)

    def _await_next_class(self, visits: Visits) -> None:
        if visits.resting_since is None or visits.age_class >= _NUM_CLASSES - 1:
            return
        due = visits.resting_since + AGE_EDGES[visits.age_class + 1]
        self._due.setdefault(due, []).append((visits, visits.version))


def pace_of(visits: Visits) -> int:
    """Return the class of the rest that ends now: 1 for the shortest, 3 for the longest."""
    return 1 + bisect_right(_PACE_EDGES, visits.age_class)


def _best_ratio(chances: list[float], start: int) -> float:
    """Return the largest ratio of returns to admissions over all horizons from ``start`` on."""
    best = returns = admissions = 0.0
    resting = 1.0
    for index in range(start, len(chances)):
        returns += resting * chances[index]
        admissions += resting * _WIDTHS[index]
        resting *= 1 - chances[index]
        best = max(best, returns / admissions)
        if resting < 1e-3:
            break
    return best

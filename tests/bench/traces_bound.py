"""An upper bound on the prompt tokens that any choice of kept states can reuse.

Owns the linear program. Its relaxations, so that its optimum is never below the best choice:

- A *position* is where two prompts of one scope diverge, or where one of them ends; resuming
  anywhere else never reuses more. It may be kept, also fractionally, from one request whose prompt
  passes it to the next such request, and a request reuses at most one position.
- When a request starts, the positions kept for later requests use at most all state slots except
  those that it and the requests still running write.
- Their pages and those of the running prompts fit the pool. Of one scope, only the request counts
  for which most is kept, as if what is kept for the others lay on the same path; a scope that runs
  needs no more than its prompt.

Source: the relaxation of caching to a linear program over intervals between uses, as in Berger,
Beckmann and Harchol-Balter, "Practical bounds on optimal caching with variable object sizes",
POMACS 2(2), 2018.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix
from traces_replay import TraceSetup
from traces_sessions import MAX_SAMPLED_TOKENS, TraceRequest

from kvreg_service.core.ids import PAGE_TOKENS
from kvreg_service.core.requests.identity import Identity


@dataclass(frozen=True)
class Interval:
    """A position that could be kept from request ``start`` to request ``end``, by their indices."""

    start: int
    end: int
    scope: Identity
    pages: int


def most_hit_tokens(stream: Sequence[TraceRequest], setup: TraceSetup) -> int:
    """Return the most prompt tokens of the stream that can be reused."""
    intervals = find_intervals(stream)
    program = _Program(intervals)
    program.limit_gains()
    inside: list[list[int]] = [[] for _ in stream]
    for index, one in enumerate(intervals):
        for request in range(one.start + 1, one.end):
            inside[request].append(index)
    for number, kept in enumerate(inside):
        running = _running_at(stream, number)
        num_slots = setup.layout.num_slots - len(running)
        if len(kept) > num_slots:
            program.limit(kept, num_slots)
        prompts = {one.prompt.identity: len(one.prompt) // PAGE_TOKENS for one in running}
        program.limit_pages(kept, prompts.keys(), setup.num_pages - sum(prompts.values()))
    return int(program.solve())


def _running_at(stream: Sequence[TraceRequest], number: int) -> list[TraceRequest]:
    """Return a request and those that still run when it starts."""
    start_s = stream[number].start_s
    return [one for one in stream[:number] if one.end_s > start_s] + [stream[number]]


def find_intervals(stream: Sequence[TraceRequest]) -> list[Interval]:
    """Return all intervals between two requests whose prompts pass the same position."""
    by_scope: dict[Identity, list[int]] = defaultdict(list)
    for index, one in enumerate(stream):
        by_scope[one.prompt.identity].append(index)
    intervals: dict[tuple[int, int, int], Interval] = {}
    for identity, indices in by_scope.items():
        positions: set[tuple[bytes, int]] = set()
        for place, index in enumerate(indices):
            prompt = stream[index].prompt
            for other in indices[:place]:
                common = prompt.common_prefix(stream[other].prompt)
                if common:
                    positions.add((prompt.digest_before(common), common))
        last: dict[tuple[bytes, int], int] = {}
        for index in indices:
            prompt = stream[index].prompt
            for digest, tokens in positions:
                if tokens > len(prompt) or prompt.digest_before(tokens) != digest:
                    continue
                start = last.get((digest, tokens))
                if start is not None:
                    pages = tokens // PAGE_TOKENS
                    one = Interval(start, index, identity, pages)
                    intervals[start, index, pages] = one
                last[digest, tokens] = index
    return list(intervals.values())


class _Program:
    """Maximises reused tokens: one variable per interval, from 0, not kept, to 1, kept."""

    def __init__(self, intervals: Sequence[Interval]) -> None:
        self._intervals = intervals
        self._num_variables = len(intervals)
        self._rows: list[int] = []
        self._columns: list[int] = []
        self._values: list[float] = []
        self._limits: list[float] = []

    def limit_gains(self) -> None:
        """Add the constraint that each request reuses at most one position."""
        by_end: dict[int, list[int]] = defaultdict(list)
        for index, one in enumerate(self._intervals):
            by_end[one.end].append(index)
        for indices in by_end.values():
            self.limit(indices, 1.0)

    def limit(self, variables: Sequence[int], limit: float) -> None:
        """Limit the sum of some variables."""
        self._add(dict.fromkeys(variables, 1.0), limit)

    def limit_pages(
        self, kept: Sequence[int], running: Collection[Identity], num_pages: int
    ) -> None:
        """Limit the pages of kept intervals, except those of the scopes that run."""
        by_scope: dict[Identity, list[int]] = defaultdict(list)
        for index in kept:
            if self._intervals[index].scope not in running:
                by_scope[self._intervals[index].scope].append(index)
        longest = {
            scope: max(self._intervals[index].pages for index in indices)
            for scope, indices in by_scope.items()
        }
        if sum(longest.values()) <= num_pages:
            return
        paths = {scope: self._num_variables + place for place, scope in enumerate(by_scope)}
        self._num_variables += len(paths)
        self._add(dict.fromkeys(paths.values(), 1.0), max(0, num_pages))
        for scope, indices in by_scope.items():
            for end in {self._intervals[index].end for index in indices}:
                # A request reuses one position, so the positions kept for it share one path.
                row = {
                    index: float(self._intervals[index].pages)
                    for index in indices
                    if self._intervals[index].end == end
                }
                self._add({**row, paths[scope]: -1.0}, 0.0)

    def solve(self) -> float:
        """Return the largest number of reused tokens."""
        if not self._intervals:
            return 0.0
        gains = np.zeros(self._num_variables)
        for index, one in enumerate(self._intervals):
            # The next prompt may also repeat the beginning of the answer after the position.
            gains[index] = one.pages * PAGE_TOKENS + MAX_SAMPLED_TOKENS
        upper: list[float | None] = [1.0] * len(self._intervals)
        upper += [None] * (self._num_variables - len(self._intervals))
        shape = (len(self._limits), self._num_variables)
        found = linprog(
            -gains,
            A_ub=coo_matrix((self._values, (self._rows, self._columns)), shape=shape).tocsr(),
            b_ub=self._limits,
            bounds=[(0.0, limit) for limit in upper],
            method="highs",
        )
        if not found.success:
            raise RuntimeError(f"the linear program was not solved: {found.message}")
        return float(-found.fun)

    def _add(self, coefficients: dict[int, float], limit: float) -> None:
        row = len(self._limits)
        for variable, value in coefficients.items():
            self._rows.append(row)
            self._columns.append(variable)
            self._values.append(value)
        self._limits.append(limit)

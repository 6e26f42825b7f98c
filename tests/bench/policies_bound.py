"""An upper bound on what any eviction policy can reuse of a stream.

Owns what is reusable with unlimited memory, and the optimal choice of what to keep.
`docs/eviction.md` explains the assumptions and why no policy exceeds the bound.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from policies_traffic import TrafficRequest

from kvreg_service.core.anchors import aligned
from kvreg_service.core.ids import PAGE_TOKENS
from kvreg_service.core.requests.ledger import TokenLedger


@dataclass(frozen=True)
class Opportunity:
    """What one request could reuse if nothing had ever been evicted.

    Requests can reuse positions only of their own ``conversation``. ``head_tokens`` is the longest
    of its heads that an earlier request contained, in whole pages.
    """

    conversation: int
    tokens: int
    head_tokens: int


@dataclass(frozen=True)
class Interval:
    """A state that yields ``gain`` if it is kept during the events ``[start, end)``."""

    start: int
    end: int
    gain: int


def find_opportunities(stream: Sequence[TrafficRequest]) -> list[Opportunity]:
    """Return what each request of a stream could reuse, in stream order."""
    positions = _Positions()
    heads = _Positions()
    groups = list(range(len(stream)))
    found: list[tuple[int, int]] = []
    for index, request in enumerate(stream):
        prompt = request.prompt
        longest = 0
        for position, origin in positions.prefixes_of(prompt):
            longest = max(longest, position)
            groups[_root(groups, origin)] = _root(groups, index)
        head = max((position for position, _ in heads.prefixes_of(prompt)), default=0)
        found.append((longest, head))
        ledger = TokenLedger(prompt.identity, prompt.tokens + request.answer)
        for position in {request.boundary, request.frontier}:
            positions.add(ledger, position, index)
        for one in aligned(request.heads, after=0, before=len(prompt)):
            heads.add(ledger, one.num_tokens, index)
    return [
        Opportunity(_root(groups, index), tokens, head_tokens)
        for index, (tokens, head_tokens) in enumerate(found)
    ]


def most_gain(opportunities: Sequence[Opportunity], gains: Sequence[int], num_places: int) -> int:
    """Return the largest total gain when only ``num_places`` conversations can be kept at a time.

    A request gains if its conversation was kept continuously since its previous request. While any
    request runs, its own conversation and at most ``num_places - 1`` others exist.
    """
    last: dict[int, int] = {}
    intervals: list[Interval] = []
    for index, (one, gain) in enumerate(zip(opportunities, gains, strict=True)):
        if one.conversation in last:
            intervals.append(Interval(last[one.conversation] + 1, index, gain))
        last[one.conversation] = index
    return pack(intervals, num_places - 1)


def pack(intervals: Sequence[Interval], depth: int) -> int:
    """Return the largest gain of a set of intervals, at most ``depth`` of which cover any event.

    Empty intervals cover nothing. The optimum is a flow of ``depth`` units along the events, on
    which every chosen interval carries one unit past those that it covers.

    Source: Arkin and Silverberg, "Scheduling jobs with fixed start and end times", Discrete Applied
    Mathematics 18, 1987.
    """
    free_gain = sum(one.gain for one in intervals if one.start == one.end)
    covering = [one for one in intervals if one.start < one.end and one.gain > 0]
    return free_gain + _Flow(covering, depth).push_all()


class _Positions:
    """The positions at which requests left state, indexed by the digest of the preceding pages."""

    def __init__(self) -> None:
        self._by_digest: dict[bytes, list[tuple[TokenLedger, int, int]]] = defaultdict(list)

    def add(self, ledger: TokenLedger, position: int, origin: int) -> None:
        self._by_digest[ledger.digest_before(position)].append((ledger, position, origin))

    def prefixes_of(self, prompt: TokenLedger) -> list[tuple[int, int]]:
        """Return position and origin of all states from which a prompt could resume."""
        return [
            (position, origin)
            for end in range(0, len(prompt) + 1, PAGE_TOKENS)
            for ledger, position, origin in self._by_digest.get(prompt.digest_before(end), ())
            if 0 < position < len(prompt) and prompt.starts_with(ledger, position)
        ]


def _root(groups: list[int], index: int) -> int:
    while groups[index] != index:
        groups[index] = groups[groups[index]]
        index = groups[index]
    return index


class _Flow:
    """Successive shortest paths from the first event to the last; a cost is a negated gain."""

    def __init__(self, intervals: Sequence[Interval], depth: int) -> None:
        self._depth = depth
        self._num_nodes = max((one.end for one in intervals), default=0) + 1
        self._edges_from: list[list[int]] = [[] for _ in range(self._num_nodes)]
        # An edge and its reverse are neighbours: the reverse of edge e is e ^ 1.
        self._to: list[int] = []
        self._room: list[int] = []
        self._cost: list[int] = []
        for node in range(self._num_nodes - 1):
            self._add(node, node + 1, depth, 0)
        for one in intervals:
            self._add(one.start, one.end, 1, -one.gain)
        self._potential = self._first_potential()

    def push_all(self) -> int:
        gain = 0
        for _ in range(self._depth):
            path_gain = self._push()
            if path_gain <= 0:
                break
            gain += path_gain
        return gain

    def _add(self, start: int, end: int, room: int, cost: int) -> None:
        for node, to, free, price in ((start, end, room, cost), (end, start, 0, -cost)):
            self._edges_from[node].append(len(self._to))
            self._to.append(to)
            self._room.append(free)
            self._cost.append(price)

    def _first_potential(self) -> list[int]:
        """Return the cost of the cheapest path to every node. All edges with room lead forward."""
        cheapest = [0] * self._num_nodes
        for node in range(self._num_nodes):
            for edge in self._edges_from[node]:
                if self._room[edge]:
                    to = self._to[edge]
                    cheapest[to] = min(cheapest[to], cheapest[node] + self._cost[edge])
        return cheapest

    def _push(self) -> int:
        """Send one unit along the cheapest path; return its gain."""
        last = self._num_nodes - 1
        distance: list[int | None] = [None] * self._num_nodes
        came_by = [0] * self._num_nodes
        done = [False] * self._num_nodes
        distance[0] = 0
        queue = [(0, 0)]
        while queue:
            so_far, node = heapq.heappop(queue)
            if done[node]:
                continue
            done[node] = True
            for edge in self._edges_from[node]:
                to = self._to[edge]
                if not self._room[edge] or done[to]:
                    continue
                length = so_far + self._cost[edge] + self._potential[node] - self._potential[to]
                known = distance[to]
                if known is None or length < known:
                    distance[to] = length
                    came_by[to] = edge
                    heapq.heappush(queue, (length, to))
        for node, reached in enumerate(distance):
            self._potential[node] += reached or 0
        gain, node = 0, last
        while node:
            edge = came_by[node]
            gain -= self._cost[edge]
            self._room[edge] -= 1
            self._room[edge ^ 1] += 1
            node = self._to[edge ^ 1]
        return gain

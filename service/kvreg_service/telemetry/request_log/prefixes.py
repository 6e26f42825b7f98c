"""The prefixes of a ledger as hashes, in few bytes and without tokens.

Owns how the request log identifies prefixes. A prefix of whole *pages* has the hash of its last
page, which covers everything before it. A prefix that ends inside a page is a *mark*; only the
positions at which a state is or could be kept have one: the ends of a prompt and of its heads, its
boundaries, its frontier, and wherever a state was kept.
`MarkTable` finds the earlier marks that a ledger starts with, `FileContents` tracks which pages and
marks a file contains.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvreg_service.core.ids import PAGE_TOKENS
from kvreg_service.core.requests.ledger import TokenLedger
from kvreg_service.telemetry.request_log.hashes import LogHashes

MAX_MARKS = 65_536
"""Marks that can be found: those of at least the last 20,000 requests. About 20 MB."""
MAX_KNOWN_PAGES = 65_536
"""Pages tracked as contained in the file; others are written again. About 15 MB."""
MAX_RECENT = 256
MAX_RECENT_TOKENS = 4_000_000
"""Tokens of ledgers that are kept to find later marks in them. 16 MB."""

Mark = tuple[int, bytes]
"""A position inside a page, and the hash of the prefix that ends there."""


@dataclass(frozen=True)
class Examined:
    """The marks of one ledger.

    ``own`` are the marks at its own positions, ``found`` the marks of earlier ledgers that it
    starts with. ``late`` are pairs of the line number of an earlier ledger that starts with one of
    its own marks, and the position of that mark.
    """

    ledger: TokenLedger
    own: tuple[Mark, ...]
    found: tuple[Mark, ...]
    late: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class _Recent:
    number: int
    ended_at_s: float
    ledger: TokenLedger
    marks: frozenset[bytes]


class MarkTable:
    """The marks of past requests, with LRU eviction."""

    def __init__(
        self,
        hashes: LogHashes,
        *,
        max_marks: int = MAX_MARKS,
        max_recent: int = MAX_RECENT,
        max_recent_tokens: int = MAX_RECENT_TOKENS,
    ) -> None:
        self._hashes = hashes
        self._max_marks = max_marks
        self._max_recent = max_recent
        self._max_recent_tokens = max_recent_tokens
        self._places: OrderedDict[bytes, tuple[bytes, int]] = OrderedDict()
        """For each mark, the ledger digest before its page and its offset in the page."""
        self._offsets: dict[bytes, Counter[int]] = {}
        self._recent: deque[_Recent] = deque()
        self._num_recent_tokens = 0

    def examine(
        self,
        ledger: TokenLedger,
        positions: Iterable[int],
        *,
        number: int,
        arrived_at_s: float,
        ended_at_s: float,
    ) -> Examined:
        """Find the marks of a ledger, and add its own for later ledgers."""
        own = tuple(
            (position, self._mark(ledger, position))
            for position in sorted(set(positions))
            if position % PAGE_TOKENS and position <= len(ledger)
        )
        names = {name for _, name in own}
        found = tuple(mark for mark in self._find(ledger) if mark[1] not in names)
        late = tuple(self._find_late(ledger, own, arrived_at_s))
        for position, name in (*found, *own):
            self._remember(ledger, position, name)
        marks = frozenset(name for _, name in (*own, *found))
        self._keep_recent(_Recent(number, ended_at_s, ledger, marks))
        return Examined(ledger, own, found, late)

    def _mark(self, ledger: TokenLedger, position: int) -> bytes:
        start = position // PAGE_TOKENS * PAGE_TOKENS
        tail = ledger.tokens[start:position].tobytes()
        return self._hashes.mark(ledger.digest_before(position), tail)

    def _find(self, ledger: TokenLedger) -> Iterator[Mark]:
        for start in range(0, len(ledger) + 1, PAGE_TOKENS):
            for offset in sorted(self._offsets.get(ledger.digest_before(start), ())):
                position = start + offset
                if position <= len(ledger):
                    name = self._mark(ledger, position)
                    if name in self._places:
                        yield position, name

    def _find_late(
        self, ledger: TokenLedger, own: tuple[Mark, ...], arrived_at_s: float
    ) -> Iterator[tuple[int, int]]:
        """Yield the late marks, in ledgers that ended after this one had arrived.

        With other settings this one might have run first.
        """
        for recent in self._recent:
            if recent.ended_at_s < arrived_at_s:
                continue
            for position, name in own:
                if name not in recent.marks and recent.ledger.agrees_up_to(ledger, position):
                    yield recent.number, position

    def _remember(self, ledger: TokenLedger, position: int, name: bytes) -> None:
        if name in self._places:
            self._places.move_to_end(name)
            return
        digest, offset = ledger.digest_before(position), position % PAGE_TOKENS
        self._places[name] = digest, offset
        self._offsets.setdefault(digest, Counter())[offset] += 1
        if len(self._places) > self._max_marks:
            _, (digest, offset) = self._places.popitem(last=False)
            offsets = self._offsets[digest]
            offsets[offset] -= 1
            if not offsets[offset]:
                del offsets[offset]
            if not offsets:
                del self._offsets[digest]

    def _keep_recent(self, recent: _Recent) -> None:
        self._recent.append(recent)
        self._num_recent_tokens += len(recent.ledger)
        while self._recent and (
            len(self._recent) > self._max_recent
            or self._num_recent_tokens > self._max_recent_tokens
        ):
            self._num_recent_tokens -= len(self._recent.popleft().ledger)


@dataclass(frozen=True)
class NewPrefixes:
    """The prefixes of a ledger that its file does not contain yet.

    The file contains the first ``num_known_pages`` pages; ``known_page`` is the hash of the last of
    them. ``pages`` are the hashes of the following ones, up to the last whole page.
    """

    num_known_pages: int
    known_page: bytes | None
    pages: tuple[bytes, ...]
    marks: tuple[Mark, ...]


class FileContents:
    """The pages that one file contains with all of their ancestors, and the marks inside them."""

    def __init__(self, hashes: LogHashes, *, max_pages: int = MAX_KNOWN_PAGES) -> None:
        self._hashes = hashes
        self._max_pages = max_pages
        self._pages: OrderedDict[bytes, frozenset[bytes]] = OrderedDict()

    def clear(self) -> None:
        """Start over for a new file."""
        self._pages.clear()

    def missing(self, examined: Examined) -> NewPrefixes:
        """Return the prefixes that the file does not contain yet. Pure."""
        ledger, num_pages = examined.ledger, len(examined.ledger) // PAGE_TOKENS
        num_known = num_pages
        while num_known and _page_digest(ledger, num_known - 1) not in self._pages:
            num_known -= 1
        name = self._hashes.page
        return NewPrefixes(
            num_known_pages=num_known,
            known_page=name(_page_digest(ledger, num_known - 1)) if num_known else None,
            pages=tuple(name(_page_digest(ledger, i)) for i in range(num_known, num_pages)),
            marks=tuple(sorted((*examined.own, *self._missing_marks(examined)))),
        )

    def add(self, examined: Examined, new: NewPrefixes) -> None:
        """Record that a line with these prefixes was written."""
        ledger, num_pages = examined.ledger, len(examined.ledger) // PAGE_TOKENS
        for page in range(max(0, new.num_known_pages - 1), num_pages):
            self._note(_page_digest(ledger, page))
        for position, name in new.marks:
            if position // PAGE_TOKENS < num_pages:
                self._note(_page_digest(ledger, position // PAGE_TOKENS), name)
        while len(self._pages) > self._max_pages:
            self._pages.popitem(last=False)

    def _missing_marks(self, examined: Examined) -> Iterator[Mark]:
        """Yield the marks found, except those that a line has written for the same whole page."""
        num_pages = len(examined.ledger) // PAGE_TOKENS
        for position, name in examined.found:
            page = position // PAGE_TOKENS
            if page < num_pages:
                digest = _page_digest(examined.ledger, page)
                if name in self._pages.get(digest, frozenset()):
                    continue
            yield position, name

    def _note(self, digest: bytes, *names: bytes) -> None:
        known = self._pages.pop(digest, frozenset())
        self._pages[digest] = known.union(names) if names else known


def _page_digest(ledger: TokenLedger, page: int) -> bytes:
    return ledger.digest_before((page + 1) * PAGE_TOKENS)

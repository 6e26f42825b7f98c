"""The API server's audit log: what operators asked, and what they were refused without a reason.

Owns how the log is read and when a refusal needs no reason: while somebody takes the operator's
rights away, as an uninstallation does before the pod has ended.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

_DELETIONS = frozenset({"delete", "deletecollection"})
WRITES = _DELETIONS | {"create", "update", "patch"}
# Rights reach the authorizer through watches: what was just granted, and all after a start.
GRANTING_S = 2
STARTING_S = 15

_RIGHTS = frozenset({"roles", "rolebindings"})

Entry = dict[str, Any]
Span = tuple[float, float]


def read_entries(log: Path) -> Iterator[Entry]:
    """Yield what anybody asked of the API server, by when it was answered."""
    with log.open() as lines:
        for line in lines:
            yield json.loads(line)


def _is_of_operator(entry: Entry) -> bool:
    name: str = entry["user"].get("username", "")
    return name.endswith("-operator")


def asked_at_s(entry: Entry) -> float:
    """Return when it was asked, in seconds since the epoch."""
    return datetime.fromisoformat(entry["requestReceivedTimestamp"]).timestamp()


def _find_lapses(entries: Iterable[Entry]) -> dict[str, list[Span]]:
    """Return, by namespace, from when to when the rights in it were not there, or only in part.

    A namespace that goes refuses whatever is new at once, and takes its Roles with it later.
    """
    closed: defaultdict[str, list[Span]] = defaultdict(list)
    since_s: dict[str, float] = {}
    for entry in sorted(filter(_is_done_write, entries), key=asked_at_s):
        what, verb, moment_s = entry.get("objectRef", {}), entry["verb"], asked_at_s(entry)
        if what.get("resource") == "namespaces" and verb == "delete":
            since_s.setdefault(what["name"], moment_s)
        elif what.get("resource") in _RIGHTS and verb in _DELETIONS:
            since_s.setdefault(what["namespace"], moment_s)
        elif what.get("resource") in _RIGHTS and what["namespace"] in since_s:
            begin_s = since_s.pop(what["namespace"])
            closed[what["namespace"]].append((begin_s, moment_s + GRANTING_S))
    for namespace, begin_s in since_s.items():
        closed[namespace].append((begin_s, float("inf")))
    return closed


def _is_done_write(entry: Entry) -> bool:
    return entry["verb"] in WRITES and 200 <= entry["responseStatus"]["code"] < 300


def find_refused(entries: Iterable[Entry], started_s: float) -> list[tuple[str, str]]:
    """Return verb and path of what operators were refused while they should have had the right.

    ``started_s`` is when the API server last started: one that has just done so does not know the
    Roles yet, and refuses everybody.
    """
    log = list(entries)
    lapses = _find_lapses(log)
    starting = (started_s - 1, started_s + STARTING_S)

    def is_excused(entry: Entry) -> bool:
        moment_s = asked_at_s(entry)
        spans = lapses.get(entry.get("objectRef", {}).get("namespace", ""), [])
        return any(begin_s <= moment_s <= end_s for begin_s, end_s in [starting, *spans])

    return [
        (entry["verb"], entry["requestURI"])
        for entry in log
        if _is_of_operator(entry)
        and entry["responseStatus"]["code"] in (401, 403)
        and not is_excused(entry)
    ]

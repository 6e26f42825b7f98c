"""The API server's audit log: requests of operators, and those that were denied unexpectedly.

Owns the reading of the log, and when a denied request is expected: while the operator's permissions
are deleted, as by an uninstall before the pod has terminated.
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
# The authorizer learns of Roles through watches, with a delay after a grant and after a start.
GRANTING_S = 2
STARTING_S = 15

_PERMISSION_KINDS = frozenset({"roles", "rolebindings"})

Entry = dict[str, Any]
Span = tuple[float, float]


def read_entries(log: Path) -> Iterator[Entry]:
    """Yield the entries of the audit log, ordered by the end of the request."""
    with log.open() as lines:
        for line in lines:
            yield json.loads(line)


def _is_of_operator(entry: Entry) -> bool:
    name: str = entry["user"].get("username", "")
    return name.endswith("-operator")


def received_at_s(entry: Entry) -> float:
    """Return when the request was received, in seconds since the epoch."""
    return datetime.fromisoformat(entry["requestReceivedTimestamp"]).timestamp()


def _find_permission_gaps(entries: Iterable[Entry]) -> dict[str, list[Span]]:
    """Return the time spans, by namespace, in which permissions in it were missing or incomplete.

    A terminating namespace denies the creation of objects at once and deletes its Roles later.
    """
    closed: defaultdict[str, list[Span]] = defaultdict(list)
    since_s: dict[str, float] = {}
    for entry in sorted(filter(_is_successful_write, entries), key=received_at_s):
        what, verb, moment_s = entry.get("objectRef", {}), entry["verb"], received_at_s(entry)
        if what.get("resource") == "namespaces" and verb == "delete":
            since_s.setdefault(what["name"], moment_s)
        elif what.get("resource") in _PERMISSION_KINDS and verb in _DELETIONS:
            since_s.setdefault(what["namespace"], moment_s)
        elif what.get("resource") in _PERMISSION_KINDS and what["namespace"] in since_s:
            begin_s = since_s.pop(what["namespace"])
            closed[what["namespace"]].append((begin_s, moment_s + GRANTING_S))
    for namespace, begin_s in since_s.items():
        closed[namespace].append((begin_s, float("inf")))
    return closed


def _is_successful_write(entry: Entry) -> bool:
    return entry["verb"] in WRITES and 200 <= entry["responseStatus"]["code"] < 300


def find_denied_requests(entries: Iterable[Entry], started_s: float) -> list[tuple[str, str]]:
    """Return verb and path of requests that were denied although the operator had permissions.

    ``started_s`` is when the API server last started: it denies all requests until it has loaded
    the Roles.
    """
    log = list(entries)
    gaps = _find_permission_gaps(log)
    starting = (started_s - 1, started_s + STARTING_S)

    def is_excused(entry: Entry) -> bool:
        moment_s = received_at_s(entry)
        spans = gaps.get(entry.get("objectRef", {}).get("namespace", ""), [])
        return any(begin_s <= moment_s <= end_s for begin_s, end_s in [starting, *spans])

    return [
        (entry["verb"], entry["requestURI"])
        for entry in log
        if _is_of_operator(entry)
        and entry["responseStatus"]["code"] in (401, 403)
        and not is_excused(entry)
    ]

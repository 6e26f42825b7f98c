"""The scenarios in which faults are injected: kept prompts, new requests and expected events.

Checks and fault points are defined elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvreg_service.core.events import (
    Admitted,
    AnchorCaptured,
    Attached,
    Detached,
    Evicted,
    Forked,
)
from kvreg_service.core.labels import Attach, EvictionReason
from kvreg_service.core.states.quota import Quota
from kvreg_service.core.requests.request import Head


def _text(number: int, length: int = 150) -> list[int]:
    return list(range(1000 * number, 1000 * number + length))


def _turn(tokens: list[int], **options: Any) -> dict[str, Any]:
    """Return a request whose checkpoint is captured before the last prompt token."""
    return {"prompt": tokens, "boundary": len(tokens) - 1, "max_tokens": 3, **options}


@dataclass(frozen=True)
class Scenario:
    """The ``kept`` requests are served one by one; the ``submitted`` ones then arrive together.

    ``leads_to`` are the events that the scenario must produce to match its name.
    """

    options: dict[str, Any]
    kept: tuple[dict[str, Any], ...]
    submitted: tuple[dict[str, Any], ...]
    leads_to: tuple[Callable[[Any], bool], ...] = ()


def _is(kind: type, **fields: object) -> Callable[[Any], bool]:
    def matches(event: Any) -> bool:
        return isinstance(event, kind) and all(
            getattr(event, name) == value for name, value in fields.items()
        )

    return matches


def _from_anchor(event: Any) -> bool:
    return isinstance(event, Admitted) and event.admission.attach is Attach.ANCHOR


A, B, C = (_turn(_text(number)) for number in (1, 2, 3))
SHORT, LONG = _turn(_text(4, 70)), _turn(_text(5, 450))
NEXT_A, NEXT_B = (_turn([*first["prompt"][:-1], *_text(8, 30)]) for first in (A, B))
SIDE_ON_A = _turn([*A["prompt"][:-1], 7, 7, 7, 7])
RUNNING = _turn(_text(6, 90), max_tokens=9)
BORROWS_A = _turn([*A["prompt"][:-1], 6, 6, 6], retain=False)
HEAD = (Head(128),)
WITH_HEAD, SAME_HEAD = (
    _turn([*_text(7, 140), *_text(number, 20)], heads=HEAD) for number in (10, 11)
)
OTHER_HEAD = _turn(_text(12, 160), heads=(Head(128, is_marked=True),))
SMALL = {"num_pages": 8, "max_context_tokens": 512}

SCENARIOS = {
    "cold": Scenario({"entries": 1}, (), (A,)),
    "cold in chunks": Scenario({"entries": 1, "chunk_tokens": 64}, (), (LONG,)),
    "append": Scenario({}, (A,), (_turn([*A["prompt"], *_text(8, 30)]),)),
    "restore": Scenario({}, (A,), (NEXT_A,)),
    "detach": Scenario({"entries": 1}, (A,), (B,), (_is(Detached),)),
    "detach that drops current": Scenario(
        {"entries": 1, "keep_current": False}, (A,), (B,), (_is(Detached),)
    ),
    "detach with eviction": Scenario(
        {"entries": 1},
        (SHORT, A),
        (B,),
        (_is(Detached), _is(Evicted, reason=EvictionReason.ENTRY_NEEDED)),
    ),
    "displaced without a free entry": Scenario(
        {}, (A,), (B,), (_is(Evicted, reason=EvictionReason.DISPLACED),)
    ),
    "attach": Scenario(
        {"entries": 2, "exchange": False}, (A, B), (NEXT_A,), (_is(Attached, is_exchange=False),)
    ),
    "exchange": Scenario({"entries": 1}, (A, B), (NEXT_A,), (_is(Attached, is_exchange=True),)),
    "exchange that drops current": Scenario(
        {"entries": 1, "keep_current": False},
        (A, B),
        (NEXT_A,),
        (_is(Attached, is_exchange=True),),
    ),
    "fork": Scenario({"entries": 1}, (A,), (SIDE_ON_A,), (_is(Forked),)),
    "fork into the remaining entry": Scenario(
        {"entries": 2, "exchange": False}, (A, B), (SIDE_ON_A,), (_is(Forked), _is(Attached))
    ),
    "fork that replaces an older one": Scenario(
        {"entries": 1},
        (A, NEXT_A),
        (_turn([*NEXT_A["prompt"][:-1], *_text(9, 20)]),),
        (_is(Forked), _is(Evicted, reason=EvictionReason.ENTRY_NEEDED)),
    ),
    "borrow": Scenario({"entries": 1}, (A,), (BORROWS_A,), (_is(Forked),)),
    "borrow without an entry for a copy": Scenario({}, (A,), (BORROWS_A,)),
    "shared tail page": Scenario(
        {"entries": 1}, (A, SIDE_ON_A), (_turn([*A["prompt"][:-1], 5, 5, 5]),), (_is(Attached),)
    ),
    "pages under pressure": Scenario(
        {"entries": 2, **SMALL},
        (A, B),
        (LONG,),
        (_is(Evicted, reason=EvictionReason.PAGES_NEEDED),),
    ),
    "first occurrence of a head": Scenario(
        {"anchors": 1}, (), (WITH_HEAD,), (_is(AnchorCaptured),)
    ),
    "anchor": Scenario(
        {"entries": 1, "anchors": 1},
        (WITH_HEAD,),
        (SAME_HEAD,),
        (_from_anchor,),
    ),
    "anchor that replaces an older one": Scenario(
        {"entries": 1, "anchors": 1},
        (WITH_HEAD,),
        (OTHER_HEAD,),
        (_is(AnchorCaptured), _is(Evicted, reason=EvictionReason.ANCHOR_NEEDED)),
    ),
    "expired time to live": Scenario(
        {"entries": 1},
        (B, _turn(_text(1), ttl_s=0.5)),
        (NEXT_A,),
        (_is(Evicted, reason=EvictionReason.EXPIRED),),
    ),
    "quota": Scenario(
        {"entries": 2, "num_pages": 40, "quota": Quota(entries=1, pages=4)},
        (A, B),
        (C,),
        (_is(Evicted, reason=EvictionReason.QUOTA),),
    ),
    "beside a running request": Scenario({"lanes": 2, "entries": 1}, (A,), (RUNNING, NEXT_A, B)),
    "beside a running request that drops current": Scenario(
        {"lanes": 2, "entries": 2, "keep_current": False, "chunk_tokens": 64},
        (A, B, C),
        (RUNNING, NEXT_A, NEXT_B),
        (_is(Attached),),
    ),
    "two requests under page pressure": Scenario(
        {"lanes": 2, "entries": 2, "num_pages": 12, "max_context_tokens": 512},
        (A, B),
        (RUNNING, LONG),
        (_is(Evicted, reason=EvictionReason.PAGES_NEEDED),),
    ),
}

"""The scenarios in which faults are injected: kept prompts, new requests and expected events.

Checks and fault points are defined elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvreg_service.core.events import Admitted, Attached, Detached, Evicted, StateKept
from kvreg_service.core.labels import EvictionReason, ReusePath, StateKind
from kvreg_service.core.states.quota import Quota


def _text(number: int, length: int = 150) -> list[int]:
    return list(range(1000 * number, 1000 * number + length))


def _turn(tokens: list[int], **options: Any) -> dict[str, Any]:
    """Return a request whose boundary lies before the last prompt token."""
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


def _is(event_type: type, **fields: object) -> Callable[[Any], bool]:
    def matches(event: Any) -> bool:
        return isinstance(event, event_type) and all(
            getattr(event, name) == value for name, value in fields.items()
        )

    return matches


def _resumes(path: ReusePath) -> Callable[[Any], bool]:
    def matches(event: Any) -> bool:
        return isinstance(event, Admitted) and event.admission.reuse_path is path

    return matches


A, B, C = (_turn(_text(number)) for number in (1, 2, 3))
SHORT, LONG = _turn(_text(4, 70)), _turn(_text(5, 450))
NEXT_A, NEXT_B = (_turn([*first["prompt"][:-1], *_text(8, 30)]) for first in (A, B))
SIDE_ON_A = _turn([*A["prompt"][:-1], 7, 7, 7, 7])
RUNNING = _turn(_text(6, 90), max_tokens=9)
LOOKS_AT_A = _turn([*A["prompt"][:-1], 6, 6, 6], retain=False)
WITH_HEAD, SAME_HEAD = (
    _turn([*_text(7, 140), *_text(number, 20)], heads=(128,)) for number in (10, 11)
)
OTHER_HEAD = _turn(_text(12, 160), heads=(128,), marks_heads=True)
LEAVES_A = _turn([*_text(1, 100), *_text(13, 60)])
SMALL = {"num_pages": 8, "max_context_tokens": 512}

_FOR_SLOT = _is(Evicted, reason=EvictionReason.SLOT_NEEDED)
_FOR_PAGES = _is(Evicted, reason=EvictionReason.PAGES_NEEDED)
_DISPLACED = _is(Evicted, reason=EvictionReason.DISPLACED)
_RESTORES = _resumes(ReusePath.RESTORE_TURN_CHECKPOINT)

SCENARIOS = {
    "cold": Scenario({"entries": 1}, (), (A,)),
    "cold in chunks": Scenario({"entries": 1, "chunk_tokens": 64}, (), (LONG,)),
    "append": Scenario(
        {},
        (_turn(_text(1), max_tokens=1),),
        (_turn([*_text(1), *_text(8, 30)]),),
        (_resumes(ReusePath.APPEND_FRONTIER),),
    ),
    "restore": Scenario({"entries": 1}, (A,), (NEXT_A,), (_RESTORES,)),
    "restore in the slot of the state itself": Scenario(
        {"entries": 1, "policy": "lru"}, (SHORT, A, B), (NEXT_A,), (_RESTORES, _FOR_SLOT)
    ),
    "detach": Scenario({"entries": 1}, (A,), (B,), (_is(Detached),)),
    "detach that drops current": Scenario(
        {"entries": 1, "keep_current": False}, (A,), (B,), (_is(Detached), _DISPLACED)
    ),
    "slots under pressure": Scenario({"entries": 1}, (SHORT, A, B), (C,), (_FOR_SLOT,)),
    "displaced without an entry": Scenario({}, (A,), (B,), (_DISPLACED,)),
    "displaced without room under policy none": Scenario(
        {"entries": 1, "policy": "none"}, (A, B), (C,), (_DISPLACED,)
    ),
    "superseded under policy none": Scenario(
        {"entries": 1, "policy": "none"},
        (A,),
        (NEXT_A,),
        (_is(Evicted, reason=EvictionReason.SUPERSEDED),),
    ),
    "attach": Scenario({"entries": 2}, (A, B), (NEXT_A,), (_is(Attached), _is(Detached))),
    "attach that drops current": Scenario(
        {"entries": 1, "keep_current": False}, (A, B), (NEXT_A,), (_is(Attached), _DISPLACED)
    ),
    "side request on a history": Scenario({"entries": 1}, (A,), (SIDE_ON_A,), (_RESTORES,)),
    "request that is not retained": Scenario({"entries": 1}, (A,), (LOOKS_AT_A,), (_RESTORES,)),
    "request that is not retained, without entries": Scenario({}, (A,), (LOOKS_AT_A,)),
    "pages under pressure": Scenario({"entries": 2, **SMALL}, (A, B), (LONG,), (_FOR_PAGES,)),
    "copy of a partial page under pressure": Scenario(
        {"entries": 2, "num_pages": 8, "max_context_tokens": 512},
        (A, _turn(_text(5, 300))),
        (NEXT_A,),
        (_RESTORES, _FOR_PAGES),
    ),
    "first occurrence of a head": Scenario(
        {"anchors": 1}, (), (WITH_HEAD,), (_is(StateKept, kind=StateKind.HEAD),)
    ),
    "head": Scenario(
        {"entries": 1, "anchors": 1},
        (WITH_HEAD,),
        (SAME_HEAD,),
        (_resumes(ReusePath.RESTORE_ANCHOR),),
    ),
    "marked head that replaces another state": Scenario(
        {"entries": 1, "anchors": 1},
        (A, B, WITH_HEAD),
        (OTHER_HEAD,),
        (_is(StateKept, kind=StateKind.HEAD), _FOR_SLOT),
    ),
    "branch point": Scenario(
        {"entries": 1, "anchors": 1},
        (A,),
        (LEAVES_A,),
        (_is(StateKept, kind=StateKind.BRANCH_POINT),),
    ),
    "freed state that returns": Scenario({}, (A, B), (NEXT_A,)),
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
    "two requests on one state": Scenario(
        {"lanes": 2, "entries": 1}, (A,), (NEXT_A, SIDE_ON_A), (_RESTORES,)
    ),
    "two requests under page pressure": Scenario(
        {"lanes": 2, "entries": 2, "num_pages": 12, "max_context_tokens": 512},
        (A, B),
        (RUNNING, LONG),
        (_FOR_PAGES,),
    ),
}

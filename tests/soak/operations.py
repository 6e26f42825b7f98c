"""The operations of a soak, drawn from one seed before the run.

Owns kinds, options and order; ``client`` runs them. When an operation runs, ``pick`` chooses among
the conversations or kept sessions that exist at that time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from random import Random
from typing import Literal

from kvreg_service.core.requests.request import CachePolicy

TENANTS = ("blue", "green")
LIMITED = TENANTS[1]
"""The tenant that has a quota at times; the other never has one."""


class Kind(Enum):
    """What a client or an administrator does."""

    NEW = "new conversation with a canary"
    TURN = "next turn"
    RECALL = "turn that asks for the canary"
    SIDE = "side request"
    POSTFIX_SIDE = "side request appended to the history"
    EDIT = "last user message edited"
    REGENERATE = "last answer regenerated"
    CONTINUE = "answer continued"
    TOOL_RESULT = "tool result"
    CROWD = "same new prompt three times at once"
    ABORT_QUEUED = "client disconnects while queued"
    ABORT_PREFILL = "client disconnects during prefill"
    ABORT_DECODE = "client disconnects during decode"
    COUNT_TOKENS = "tokens counted"
    SNAPSHOT = "registry snapshot"
    PIN = "kept session pinned"
    UNPIN = "kept session unpinned"
    DROP = "kept session dropped"
    QUOTA = "quota of a tenant changed"


Stage = Literal["queued", "prefill", "decode"]
ABORTS: dict[Kind, Stage] = {
    Kind.ABORT_QUEUED: "queued",
    Kind.ABORT_PREFILL: "prefill",
    Kind.ABORT_DECODE: "decode",
}

_WEIGHTS = {
    Kind.NEW: 4,
    Kind.TURN: 22,
    Kind.RECALL: 14,
    Kind.SIDE: 9,
    Kind.POSTFIX_SIDE: 6,
    Kind.EDIT: 5,
    Kind.REGENERATE: 5,
    Kind.CONTINUE: 3,
    Kind.TOOL_RESULT: 3,
    Kind.CROWD: 1,
    Kind.ABORT_QUEUED: 4,
    Kind.ABORT_PREFILL: 4,
    Kind.ABORT_DECODE: 4,
    Kind.COUNT_TOKENS: 2,
    Kind.SNAPSHOT: 5,
    Kind.PIN: 3,
    Kind.UNPIN: 1,
    Kind.DROP: 2,
    Kind.QUOTA: 1,
}


@dataclass(frozen=True)
class Options:
    """The options of one request. ``seed`` None is greedy."""

    max_tokens: int = 32
    seed: int | None = None
    stop: tuple[str, ...] = ()
    cache_policy: CachePolicy = field(default_factory=CachePolicy)
    is_controlled: bool = False
    """The answer is compared with a cold run at the end."""


@dataclass(frozen=True)
class Operation:
    """One operation of one client."""

    number: int
    client: int
    kind: Kind
    pick: int
    seconds: float
    options: Options


def draw_operations(seed: int, count: int, num_clients: int) -> tuple[Operation, ...]:
    """Return ``count`` operations; the same arguments give the same ones."""
    rng = Random(seed)
    operations = []
    for number in range(count):
        # The first operation of each client begins a conversation.
        is_first = number < num_clients
        kind = Kind.NEW if is_first else rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        operations.append(
            Operation(
                number=number,
                client=number if is_first else rng.randrange(num_clients),
                kind=kind,
                pick=rng.randrange(1 << 30),
                seconds=rng.choice((0.02, 0.2, 2.0)),
                options=_draw_options(rng, kind),
            )
        )
    return tuple(operations)


def _draw_options(rng: Random, kind: Kind) -> Options:
    options = Options(
        max_tokens=rng.choice((1, 4, 12, 32, 32, 32, 32, 2000)),
        seed=rng.choice((None, None, None, rng.randrange(1000))),
        stop=rng.choice(((), (), (), (".",), ("the", " is"))),
        cache_policy=CachePolicy(
            retain=rng.random() < 0.9,
            may_reuse=rng.random() < 0.95,
            ttl_s=rng.choice((None, None, None, None, 0.05, 1.0, 60.0)),
            priority=rng.choice((0, 0, 0, 1, -1)),
        ),
        is_controlled=rng.random() < 0.25,
    )
    if kind in ABORTS:
        return replace(options, max_tokens=400, stop=())
    if kind in (Kind.NEW, Kind.RECALL):
        # The answer is checked for the canary, so it must not be sampled or cut.
        return replace(options, max_tokens=32, stop=(), seed=None)
    return options


def of_client(operations: Sequence[Operation], client: int) -> list[Operation]:
    """Return the operations of one client, in order."""
    return [operation for operation in operations if operation.client == client]

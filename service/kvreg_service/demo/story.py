"""A story: requests in order, and what each of them promises to reuse. Data, no engine.

Owns the shape of stories and the rules of what is promised. The stories themselves are in
``stories``, and what really happened in ``player``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from kvreg_service.core.labels import Attach, ReusePath
from kvreg_service.demo.profile import Profile


@dataclass(frozen=True)
class Line:
    """A message that is known beforehand."""

    role: Literal["system", "user"]
    text: str


@dataclass(frozen=True)
class AnswerTo:
    """The assistant message that the engine gave to the step of that name, sent back as it was."""

    step: str


Message = Line | AnswerTo


@dataclass(frozen=True)
class Expected:
    """Where the computation of a prompt starts. ``of`` is the step whose state it goes on from."""

    path: ReusePath
    attach: Attach = Attach.NONE
    of: str | None = None


COLD = Expected(ReusePath.FULL_RESET)

Rule = Callable[[Profile], Expected]
"""What a profile promises for one step."""


@dataclass(frozen=True)
class Step:
    """One request. Names are unique within a story."""

    name: str
    messages: tuple[Message, ...]
    rule: Rule


@dataclass(frozen=True)
class Story:
    """Requests that are sent one after the other to an engine that holds nothing before."""

    name: str
    title: str
    steps: tuple[Step, ...]
    profiles: tuple[Profile, ...]

    def expectations(self, profile: Profile) -> tuple[Expected, ...]:
        """Return what the profile promises, step by step."""
        return tuple(step.rule(profile) for step in self.steps)


# Rules: what has happened to the sequence of an earlier step, and what the prompt repeats of it.


def is_new(profile: Profile) -> Expected:
    """Nothing kept begins like this prompt."""
    del profile
    return COLD


def goes_on(step: str) -> Rule:
    """The session's next turn, and its sequence still rests on the lane."""
    return lambda _: Expected(ReusePath.RESTORE_TURN_CHECKPOINT, of=step)


def appends(step: str) -> Rule:
    """The prompt repeats the answer as its tail, and the sequence still rests on the lane."""
    return lambda _: Expected(ReusePath.APPEND_FRONTIER, of=step)


def returns(step: str, *, entries: int = 1) -> Rule:
    """The session's next turn after a side request, given that many entries at least."""

    def rule(profile: Profile) -> Expected:
        if profile.entries < entries:
            return COLD
        return Expected(ReusePath.RESTORE_TURN_CHECKPOINT, Attach.REGISTRY, of=step)

    return rule


def returns_to_append(step: str) -> Rule:
    """The prompt repeats the answer as its tail after a side request."""

    def rule(profile: Profile) -> Expected:
        if profile.entries == 0:
            return COLD
        if profile.keep_current:
            return Expected(ReusePath.APPEND_FRONTIER, Attach.REGISTRY, of=step)
        return Expected(ReusePath.RESTORE_TURN_CHECKPOINT, Attach.REGISTRY, of=step)

    return rule


def returns_to_fork(step: str) -> Rule:
    """The next turn after a request that went on from the session's own checkpoint."""

    def rule(profile: Profile) -> Expected:
        if profile.eviction == "none":
            return COLD
        return returns(step)(profile)

    return rule


def returns_by_exchange(step: str, *, otherwise_entries: int | None = None) -> Rule:
    """A displaced side request again, after the session took its lane back.

    Without exchange it takes ``otherwise_entries`` entries; None means that it is always lost.
    """

    def rule(profile: Profile) -> Expected:
        if profile.exchange:
            return returns(step)(profile)
        if otherwise_entries is None:
            return COLD
        return returns(step, entries=otherwise_entries)(profile)

    return rule

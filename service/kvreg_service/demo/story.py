"""A story: requests in order, and what each of them is expected to reuse. Data only.

Owns the data types of stories and the rules for expected reuse. ``stories`` has the stories, and
``player`` runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from kvreg_service.core.labels import Attach, ReusePath
from kvreg_service.demo.profile import Profile


@dataclass(frozen=True)
class Line:
    """A message with a fixed text."""

    role: Literal["system", "user"]
    text: str


@dataclass(frozen=True)
class AnswerTo:
    """The answer of the engine to the step of this name, echoed unchanged."""

    step: str


Message = Line | AnswerTo


@dataclass(frozen=True)
class Expected:
    """Where prefill starts. ``of`` is the step whose state is reused."""

    path: ReusePath
    attach: Attach = Attach.NONE
    of: str | None = None


COLD = Expected(ReusePath.FULL_RESET)

Rule = Callable[[Profile], Expected]
"""Returns the expected reuse of one step on a profile."""


@dataclass(frozen=True)
class Step:
    """One request. Names are unique within a story."""

    name: str
    messages: tuple[Message, ...]
    rule: Rule


@dataclass(frozen=True)
class Story:
    """Requests that are sent one after the other to an empty engine."""

    name: str
    title: str
    steps: tuple[Step, ...]
    profiles: tuple[Profile, ...]

    def expectations(self, profile: Profile) -> tuple[Expected, ...]:
        """Return the expected reuse of each step on a profile."""
        return tuple(step.rule(profile) for step in self.steps)


# Rules: the state of an earlier step, and how much of it the prompt repeats.


def is_new(profile: Profile) -> Expected:
    """No kept state is a prefix of this prompt."""
    del profile
    return COLD


def goes_on(step: str) -> Rule:
    """The next turn of the session that was last on the lane."""
    return lambda _: Expected(ReusePath.RESTORE_TURN_CHECKPOINT, of=step)


def appends(step: str) -> Rule:
    """The prompt ends with the answer, and the session was last on the lane."""
    return lambda _: Expected(ReusePath.APPEND_FRONTIER, of=step)


def returns(step: str, *, entries: int = 1) -> Rule:
    """The next turn of a session after a side request, with at least that many entries."""

    def rule(profile: Profile) -> Expected:
        if profile.entries < entries:
            return COLD
        return Expected(ReusePath.RESTORE_TURN_CHECKPOINT, Attach.REGISTRY, of=step)

    return rule


def returns_to_append(step: str) -> Rule:
    """The prompt ends with the answer, after a side request."""

    def rule(profile: Profile) -> Expected:
        if profile.entries == 0:
            return COLD
        if profile.keep_current:
            return Expected(ReusePath.APPEND_FRONTIER, Attach.REGISTRY, of=step)
        return Expected(ReusePath.RESTORE_TURN_CHECKPOINT, Attach.REGISTRY, of=step)

    return rule


def goes_on_beside(step: str) -> Rule:
    """The next turn after another request has continued the same boundary of the session."""

    def rule(profile: Profile) -> Expected:
        is_lost = profile.is_as_source or profile.entries == 0
        return COLD if is_lost else goes_on(step)(profile)

    return rule


def returns_itself(step: str, *, entries_as_source: int | None = None) -> Rule:
    """A side request again, after the session has displaced it.

    By the rule of the source it needs ``entries_as_source`` entries; with None it is always lost.
    """

    def rule(profile: Profile) -> Expected:
        if not profile.is_as_source:
            return returns(step)(profile)
        if entries_as_source is None:
            return COLD
        return returns(step, entries=entries_as_source)(profile)

    return rule

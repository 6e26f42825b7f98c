"""The stories: the tables of the documentation as reproducible sequences of requests.

Owns the order of the requests. The name of a step is A (a session), B or S (side requests) with the
number of the turn; ``[u1,a1]`` is a prompt that ends with the assistant message.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from kvreg_service.demo import story, texts
from kvreg_service.demo.profile import (
    CAPACITY_PROFILES,
    KEEP_PROFILES,
    MAIN_PROFILES,
    Profile,
)
from kvreg_service.demo.story import AnswerTo, Line, Message, Rule, Step, Story

StoryMaker = Callable[[Random], tuple[Step, ...]]


def build_stories(seed: int) -> tuple[Story, ...]:
    """Return all stories, each with its own texts, which depend on the seed."""
    return tuple(
        Story(name, title, make(Random(f"{seed}/{name}")), profiles)
        for name, title, make, profiles in _STORIES
    )


class _Session:
    """One session with new texts. Each method returns one of its requests."""

    def __init__(self, rng: Random) -> None:
        text = self._text = texts.draw_session(rng)
        self._first: tuple[Message, ...] = (Line("system", text.notes), Line("user", text.told))
        self._history = (*self._first, AnswerTo("A1"))

    def turn_1(self, rule: Rule = story.is_new, *, name: str = "A1") -> Step:
        return Step(name, self._first, rule)

    def turn_2(self, rule: Rule) -> Step:
        return Step("A2", (*self._history, Line("user", self._text.asked)), rule)

    def other_turn_2(self, rule: Rule) -> Step:
        return Step("A1+a1+more", (*self._history, Line("user", self._text.asked_next)), rule)

    def assistant_tail(self, rule: Rule) -> Step:
        return Step("[u1,a1]", self._history, rule)

    def title(self) -> Step:
        return Step("title", (Line("user", self._text.title_request),), story.is_new)

    def postfix_title(self, rule: Rule) -> Step:
        request = Line("user", self._text.title_request)
        return Step("postfix title", (*self._history, request), rule)


def _side(text: str, rule: Rule = story.is_new, *, name: str = "B") -> Step:
    return Step(name, (Line("user", text),), rule)


def _control(rng: Random) -> tuple[Step, ...]:
    a = _Session(rng)
    return a.turn_1(), a.turn_2(story.goes_on("A1"))


def _repeat(rng: Random) -> tuple[Step, ...]:
    a = _Session(rng)
    return a.turn_1(), a.turn_1(story.goes_on("A1"), name="A1 again")


def _typical_title(rng: Random) -> tuple[Step, ...]:
    a = _Session(rng)
    return a.turn_1(), a.title(), a.turn_2(story.returns("A1"))


def _postfix_title(rng: Random) -> tuple[Step, ...]:
    a = _Session(rng)
    return (
        a.turn_1(),
        a.postfix_title(story.goes_on("A1")),
        a.turn_2(story.goes_on_beside("A1")),
    )


def _abab(rng: Random) -> tuple[Step, ...]:
    a, review = _Session(rng), texts.draw_review(rng)
    return (
        a.turn_1(),
        _side(review),
        a.turn_2(story.returns("A1")),
        _side(review, story.returns_itself("B"), name="B again"),
    )


def _user_tail(rng: Random) -> tuple[Step, ...]:
    a = _Session(rng)
    return a.turn_1(), _side(texts.draw_review(rng)), a.turn_2(story.returns("A1"))


def _assistant_tail(rng: Random) -> tuple[Step, ...]:
    a = _Session(rng)
    side = _side(texts.draw_review(rng))
    return a.turn_1(), side, a.assistant_tail(story.returns_to_append("A1"))


def _own_append(rng: Random) -> tuple[Step, ...]:
    a = _Session(rng)
    return a.turn_1(), a.assistant_tail(story.appends("A1"))


def _continue(rng: Random) -> tuple[Step, ...]:
    a = _Session(rng)
    return a.turn_1(), a.other_turn_2(story.goes_on("A1"))


def _capacity(rng: Random) -> tuple[Step, ...]:
    a, notes, review = _Session(rng), texts.draw_review_notes(rng), texts.draw_review(rng)
    long_side = (Line("system", notes), Line("user", review))
    again = story.returns_itself("S2", entries_as_source=3)
    return (
        a.turn_1(),
        Step("S1", a.title().messages, story.is_new),
        Step("S2", long_side, story.is_new),
        a.turn_2(story.returns("A1")),
        Step("S2 again", long_side, again),
    )


_STORIES: tuple[tuple[str, str, StoryMaker, tuple[Profile, ...]], ...] = (
    ("control", "two turns, nothing in between", _control, MAIN_PROFILES),
    ("repeat", "the same request twice", _repeat, MAIN_PROFILES),
    ("title", "a title request between two turns", _typical_title, MAIN_PROFILES),
    ("postfix", "a title request that begins with the session", _postfix_title, MAIN_PROFILES),
    ("ABAB", "a session and a side request in turns", _abab, MAIN_PROFILES),
    ("G1", "a side request, then a user tail", _user_tail, MAIN_PROFILES),
    ("G2", "a side request, then an assistant tail", _assistant_tail, MAIN_PROFILES),
    ("G3", "as G2, other text", _assistant_tail, MAIN_PROFILES),
    ("G4", "an assistant tail, nothing in between", _own_append, MAIN_PROFILES),
    ("D1", "an assistant tail, nothing in between", _own_append, KEEP_PROFILES),
    ("D2", "a side request, then an assistant tail", _assistant_tail, KEEP_PROFILES),
    ("D2'", "as D2, other text", _assistant_tail, KEEP_PROFILES),
    ("T1", "a side request, then a user tail", _user_tail, KEEP_PROFILES),
    ("T5", "a user tail, nothing in between", _continue, KEEP_PROFILES),
    ("capacity", "how many entries a session and its side requests need", _capacity,
     CAPACITY_PROFILES),
)  # fmt: skip

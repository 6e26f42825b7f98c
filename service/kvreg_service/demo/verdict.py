"""Compares the results of stories with the expected reuse. Pure; no problems is an empty list."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvreg_service.demo.player import Row
from kvreg_service.demo.profile import Profile
from kvreg_service.demo.story import Expected, Story

CLOSED_THINK_TOKENS = 4
"""With thinking off, the template renders an empty think block in the prompt, but not in history:
the turn boundary lies before these tokens."""


@dataclass(frozen=True)
class Play:
    """One story on one profile, and its results."""

    story: Story
    profile: Profile
    rows: tuple[Row, ...]

    @property
    def problems(self) -> list[str]:
        """The differences from what is expected."""
        expectations = self.story.expectations(self.profile)
        by_step = {row.step: row for row in self.rows}
        return [
            f"{self.story.name} on {self.profile.name}: {row.step}: {problem}"
            for row, expected in zip(self.rows, expectations, strict=True)
            for problem in _differences(row, expected, by_step)
        ]


def text_problems(plays: Iterable[Play]) -> list[str]:
    """Return the steps whose answer differs between profiles."""
    digests: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for play in plays:
        for row in play.rows:
            digests[play.story.name, row.step][row.sha256].append(play.profile.name)
    return [
        f"{story}: {step}: the answer differs between {_groups(by_digest.values())}"
        for (story, step), by_digest in digests.items()
        if len(by_digest) > 1
    ]


def cached_tokens(expected: Expected, by_step: dict[str, Row]) -> int:
    """Return the number of cached tokens of an expectation."""
    if expected.of is None:
        return 0
    origin = by_step[expected.of]
    if expected.path == "append_frontier":
        # The last sampled token was never computed.
        return origin.prompt_tokens + origin.completion_tokens - 1
    return origin.prompt_tokens - CLOSED_THINK_TOKENS


def _differences(row: Row, expected: Expected, by_step: dict[str, Row]) -> list[str]:
    cached = cached_tokens(expected, by_step)
    pairs: Sequence[tuple[str, object, object]] = (
        ("path", row.path, expected.path),
        ("attach", row.attach, expected.attach),
        ("cached", row.cached_tokens, cached),
        ("computed", row.computed_tokens, row.prompt_tokens - cached),
    )
    return [f"{name} is {got}, expected {want}" for name, got, want in pairs if got != want]


def _groups(groups: Iterable[list[str]]) -> str:
    return " and ".join(f"[{', '.join(group)}]" for group in groups)

"""How many entries a session and its side requests need: A1, S1, S2, A2, S2 again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvreg_service.demo.profile import Profile, as_source
from kvreg_service.demo.verdict import Play

PlayStory = Callable[[str, Profile], Play]


def _hits(play: Play) -> tuple[bool, bool]:
    """Return whether the session hits when it returns, and whether the side request does."""
    *_, session, side = play.rows
    return session.cached_tokens > 0, side.cached_tokens > 0


@pytest.mark.parametrize(
    ("entries", "session_hits", "side_hits"),
    [(0, False, False), (1, True, False), (2, True, False), (3, True, True), (4, True, True)],
)
def test_source_system_keeps_the_session_with_one_entry_and_the_side_request_with_three(
    played: PlayStory, entries: int, session_hits: bool, side_hits: bool
) -> None:
    assert _hits(played("capacity", as_source(entries))) == (session_hits, side_hits)


@pytest.mark.parametrize("entries", [1, 2, 3, 4])
def test_defaults_keep_the_session_and_the_side_request_with_one_entry(
    played: PlayStory, entries: int
) -> None:
    assert _hits(played("capacity", Profile(entries))) == (True, True)


def test_hits_end_at_the_turn_boundaries(played: PlayStory) -> None:
    a1, _, s2, a2, s2_again = played("capacity", as_source(3)).rows

    assert a2.cached_tokens == a1.prompt_tokens - 4
    assert s2_again.cached_tokens == s2.prompt_tokens - 4


@pytest.mark.parametrize(("entries", "slots"), [(0, 2), (1, 4), (2, 6), (3, 8), (4, 10)])
def test_state_slots_are_two_per_lane_and_two_per_entry(entries: int, slots: int) -> None:
    assert as_source(entries).layout.num_slots == slots


@pytest.mark.parametrize(("entries", "slots"), [(1, 3), (2, 4), (3, 5), (4, 6)])
def test_state_slots_are_one_per_entry_with_drop(entries: int, slots: int) -> None:
    assert as_source(entries, keep_current=False).layout.num_slots == slots

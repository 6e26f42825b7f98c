"""A session and a side request that alternate, with one lane and one entry (A B A B)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvreg_service.demo.profile import DROP, KEEP, NO_ENTRY, Profile, as_source
from kvreg_service.demo.verdict import Play

PlayStory = Callable[[str, Profile], Play]

_SOURCE = [as_source(1), as_source(1, keep_current=False)]
_DEFAULT = [KEEP, DROP]


def _name(profile: Profile) -> str:
    return profile.name


def test_without_an_entry_every_request_is_prefilled_in_full(played: PlayStory) -> None:
    assert [row.cached_tokens for row in played("ABAB", NO_ENTRY).rows] == [0, 0, 0, 0]


@pytest.mark.parametrize("profile", [*_SOURCE, *_DEFAULT], ids=_name)
def test_session_is_attached_from_the_registry_at_its_turn_boundary(
    played: PlayStory, profile: Profile
) -> None:
    a1, _, a2, _ = played("ABAB", profile).rows

    assert (a2.attach, a2.path) == ("registry", "restore_turn_checkpoint")
    assert a2.cached_tokens == a1.prompt_tokens - 4


@pytest.mark.parametrize("profile", _SOURCE, ids=_name)
def test_in_the_source_system_the_side_request_misses_after_the_session_returns(
    played: PlayStory, profile: Profile
) -> None:
    *_, b_again = played("ABAB", profile).rows

    assert (b_again.cached_tokens, b_again.path) == (0, "full_reset")


@pytest.mark.parametrize("profile", _DEFAULT, ids=_name)
def test_by_default_the_side_request_hits_too(played: PlayStory, profile: Profile) -> None:
    _, b, _, b_again = played("ABAB", profile).rows

    assert (b_again.attach, b_again.cached_tokens) == ("registry", b.prompt_tokens - 4)

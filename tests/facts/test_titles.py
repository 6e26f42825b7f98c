"""Title requests between two turns: none, a typical one, and one appended to the session."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvreg_service.demo.profile import DROP, KEEP, NO_ENTRY, Profile, as_source
from kvreg_service.demo.verdict import Play

PlayStory = Callable[[str, Profile], Play]

_SOURCE = [NO_ENTRY, as_source(1), as_source(1, keep_current=False)]
_DEFAULT = [KEEP, DROP, Profile(2)]


def _name(profile: Profile) -> str:
    return profile.name


@pytest.mark.parametrize("profile", [*_SOURCE, KEEP, DROP], ids=_name)
def test_second_turn_without_a_title_restores_the_turn_checkpoint_on_its_lane(
    played: PlayStory, profile: Profile
) -> None:
    a1, a2 = played("control", profile).rows

    assert (a2.path, a2.attach) == ("restore_turn_checkpoint", "none")
    assert a2.cached_tokens == a1.prompt_tokens - 4


@pytest.mark.parametrize("profile", [*_SOURCE, KEEP, DROP], ids=_name)
def test_typical_title_is_a_full_reset(played: PlayStory, profile: Profile) -> None:
    _, title, _ = played("title", profile).rows

    assert (title.path, title.cached_tokens) == ("full_reset", 0)


def test_session_misses_after_a_typical_title_without_a_registry(played: PlayStory) -> None:
    *_, a2 = played("title", NO_ENTRY).rows

    assert (a2.path, a2.cached_tokens) == ("full_reset", 0)


@pytest.mark.parametrize("profile", [*_SOURCE[1:], KEEP, DROP], ids=_name)
def test_session_hits_after_a_typical_title_with_one_entry(
    played: PlayStory, profile: Profile
) -> None:
    a1, _, a2 = played("title", profile).rows

    assert (a2.path, a2.attach) == ("restore_turn_checkpoint", "registry")
    assert a2.cached_tokens == a1.prompt_tokens - 4


@pytest.mark.parametrize("profile", [*_SOURCE, *_DEFAULT], ids=_name)
def test_postfix_title_reuses_the_session(played: PlayStory, profile: Profile) -> None:
    a1, title, _ = played("postfix", profile).rows

    assert (title.path, title.attach) == ("restore_turn_checkpoint", "none")
    assert title.cached_tokens == a1.prompt_tokens - 4


@pytest.mark.parametrize("profile", _SOURCE, ids=_name)
def test_session_misses_after_a_postfix_title_in_the_source_system(
    played: PlayStory, profile: Profile
) -> None:
    *_, a2 = played("postfix", profile).rows

    assert (a2.path, a2.cached_tokens) == ("full_reset", 0)


@pytest.mark.parametrize("profile", _DEFAULT, ids=_name)
def test_session_hits_after_a_postfix_title_by_default(
    played: PlayStory, profile: Profile
) -> None:
    a1, _, a2 = played("postfix", profile).rows

    assert (a2.path, a2.attach) == ("restore_turn_checkpoint", "none")
    assert a2.cached_tokens == a1.prompt_tokens - 4

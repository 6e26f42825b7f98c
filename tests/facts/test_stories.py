"""Every story reuses what it expects on every profile, and no profile changes a text."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvreg_service.demo.profile import MAIN_PROFILES, Profile
from kvreg_service.demo.stories import build_stories
from kvreg_service.demo.verdict import Play, text_problems

PlayStory = Callable[[str, Profile], Play]

_PLAYS = [(story.name, profile) for story in build_stories(0) for profile in story.profiles]
_NAMES = [story.name for story in build_stories(0)]


@pytest.mark.parametrize(
    ("name", "profile"), _PLAYS, ids=[f"{name}-{profile.name}" for name, profile in _PLAYS]
)
def test_each_request_reuses_what_its_story_expects(
    played: PlayStory, name: str, profile: Profile
) -> None:
    assert played(name, profile).problems == []


@pytest.mark.parametrize("name", _NAMES)
def test_texts_are_the_same_on_every_profile(played: PlayStory, name: str) -> None:
    profiles = [profile for known, profile in _PLAYS if known == name]

    assert text_problems(played(name, profile) for profile in profiles) == []


@pytest.mark.parametrize("name", _NAMES)
def test_sessions_have_about_a_thousand_tokens(played: PlayStory, name: str) -> None:
    profile = next(profile for known, profile in _PLAYS if known == name)

    assert 850 <= played(name, profile).rows[0].prompt_tokens <= 1200


@pytest.mark.parametrize("profile", MAIN_PROFILES, ids=lambda profile: profile.name)
def test_repeated_request_prefills_only_the_empty_think_block(
    played: PlayStory, profile: Profile
) -> None:
    first, again = played("repeat", profile).rows

    assert (again.cached_tokens, again.computed_tokens) == (first.prompt_tokens - 4, 4)

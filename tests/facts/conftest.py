"""The bundled model, loaded once, and the stories of `kvreg demo`, each run once per profile."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from kvreg_service.demo.profile import Profile
from kvreg_service.demo.run import BASE_OPTIONS, play_on
from kvreg_service.demo.stories import build_stories
from kvreg_service.demo.story import Story
from kvreg_service.demo.verdict import Play
from kvreg_service.engine.build import LoadedModel, load_model

SEED = 1

PlayStory = Callable[[str, Profile], Play]


@pytest.fixture(scope="session")
def loaded() -> LoadedModel:
    return load_model(BASE_OPTIONS)


@pytest.fixture(scope="session")
def stories() -> dict[str, Story]:
    return {story.name: story for story in build_stories(SEED)}


@pytest.fixture(scope="session")
def played(stories: dict[str, Story], loaded: LoadedModel) -> PlayStory:
    """Runs a story on a profile, once per session. The engine uses one thread."""

    @cache
    def play(name: str, profile: Profile) -> Play:
        return play_on(stories[name], profile, loaded)

    return play

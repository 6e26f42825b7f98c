"""Servers with the bundled model behind one loopback socket, stopped at the end of each test."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI

from kvreg_service.api.app import create_app
from kvreg_service.engine.build import LoadedModel, build_engine, load_model
from kvreg_service.engine_options import engine_options
from kvreg_service.model.generation_config import read_sampling_defaults
from kvreg_service.settings import load_settings
from kvreg_service.testing.http_server import running_server

pytest.register_assert_rewrite("tests.cases.server", "tests.cases.session")

from tests.cases.clock import Clock  # noqa: E402 - must follow the line above
from tests.cases.profiles import Profile  # noqa: E402
from tests.cases.server import (  # noqa: E402
    CONTEXT_TOKENS,
    Clients,
    Serve,
    Server,
)
from tests.cases.switchboard import Switchboard  # noqa: E402

_TIMEOUT_S = 60.0


@pytest.fixture(scope="session")
def loaded_model() -> LoadedModel:
    return load_model(engine_options(load_settings({})))


@pytest.fixture(scope="session")
def clients() -> Iterator[Clients]:
    with (
        openai.OpenAI(api_key="none", max_retries=0, timeout=_TIMEOUT_S) as official,
        httpx.Client(timeout=_TIMEOUT_S) as http,
    ):
        yield Clients(official, http)


@pytest.fixture(scope="session")
def switchboard() -> Iterator[Switchboard]:
    switchboard = Switchboard()
    with running_server(switchboard) as switchboard.url:
        yield switchboard


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of every engine in this test."""
    clock = Clock()
    for module in ("engine", "loop.step_loop", "output.processor", "output.stream"):
        monkeypatch.setattr(f"kvreg_service.engine.{module}.time", clock)
    return clock


@pytest.fixture
def serve(loaded_model: LoadedModel, clients: Clients, switchboard: Switchboard) -> Iterator[Serve]:
    """Start servers. At the end of the test each is checked to be CLEAN and stopped."""
    with ExitStack() as stack:

        def start(
            profile: Profile | None = None, *, key: str | None = None, **settings: Any
        ) -> Server:
            profile = profile or Profile()
            app, end_tokens = stack.enter_context(_application(loaded_model, profile, settings))
            url = stack.enter_context(switchboard.mounted(app))
            server = Server(url, clients, profile, end_tokens, key)
            stack.callback(server.assert_clean)
            return server

        yield start


@contextmanager
def _application(
    loaded: LoadedModel, profile: Profile, given: dict[str, Any]
) -> Iterator[tuple[FastAPI, Iterable[int]]]:
    """An application with its own engine, and the end-of-sequence tokens."""
    settings = load_settings(
        {
            **asdict(profile),
            # Anchors would turn the miss of an evicted session into a hit; tests of anchors enable
            # them.
            "anchors": 0,
            "max_context": CONTEXT_TOKENS,
            # Pages for every lane and entry at full context. Tests of page pressure set fewer.
            "kv_pages": (profile.lanes + profile.entries) * CONTEXT_TOKENS // 64,
            **given,
        }
    )
    engine, prompt_builder = build_engine(engine_options(settings), loaded)
    try:
        app = create_app(
            engine,
            prompt_builder,
            settings,
            sampling_defaults=read_sampling_defaults(settings.model),
            vocab_size=loaded.config.vocab_size,
        )
        yield app, loaded.tokenizer.eos_token_ids
    finally:
        engine.close()

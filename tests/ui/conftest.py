"""A browser, and servers with the bundled model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import httpx
import pytest
from tests.system_parts import require_part
from tests.ui.browser import Page, running_browser

from kvreg_service.api.app import create_app
from kvreg_service.engine.build import LoadedModel, build_engine, load_model
from kvreg_service.engine_options import engine_options
from kvreg_service.settings import load_settings
from kvreg_service.telemetry.ui.recent_requests import RecentRequests
from kvreg_service.testing.http_server import running_server


@dataclass
class Served:
    """A running server and an HTTP client."""

    url: str
    http: httpx.Client

    def ask(self, messages: list[dict[str, str]], *, key: str | None = None, **options: Any) -> str:
        """Send a chat completion; return the text of the answer."""
        response = self.http.post(
            f"{self.url}/v1/chat/completions",
            json={
                "model": self.http.get(f"{self.url}/v1/models", headers=_headers(key)).json()[
                    "data"
                ][0]["id"],
                "messages": messages,
                "max_tokens": 16,
                "temperature": 0,
                **options,
            },
            headers=_headers(key),
        )
        return str(response.raise_for_status().json()["choices"][0]["message"]["content"])

    def mix(self, *, key: str | None = None, num_sessions: int = 4, num_turns: int = 3) -> None:
        """Play sessions with a shared head that displace each other, and title requests."""
        head = {"role": "system", "content": "Please keep answers short and polite. " * 12}
        sessions: list[list[dict[str, str]]] = [[head] for _ in range(num_sessions)]
        for turn in range(num_turns):
            for i, session in enumerate(sessions):
                code = f"{i}92{turn}"
                session.append({"role": "user", "content": f"My locker code is {code}."})
                answer = self.ask(session, key=key, cache_ttl_s=3000 if i == 1 else None)
                session.append({"role": "assistant", "content": answer})
                self.ask([{"role": "user", "content": f"Write a title: {code}"}], key=key)
        # Continues its own last answer, so that the tail is `assistant`.
        self.ask(sessions[-2], key=key, continue_final_message=True)

    def pin_one(self) -> None:
        """Pin the sequence of the first entry."""
        self.http.put(
            f"{self.url}/v1/registry/entries/0/pin", json={"ttl_s": 600}
        ).raise_for_status()


class Serve(Protocol):
    """Runs a server with these settings inside a block.

    With ``is_left_first`` the browser leaves the page before the server stops, so that it sends no
    request to a stopped server.
    """

    def __call__(self, *, is_left_first: bool = True, **settings: Any) -> Any:
        """Return the context manager of a server."""
        ...


def _headers(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}


@pytest.fixture(scope="session")
def loaded_model() -> LoadedModel:
    return load_model(engine_options(load_settings({})))


@pytest.fixture(scope="session")
def serve(loaded_model: LoadedModel, browser: Page) -> Serve:
    @contextmanager
    def start(*, is_left_first: bool = True, **given: Any) -> Iterator[Served]:
        settings = load_settings({"lanes": 2, "entries": 3, "memory_gib": 0.2, **given})
        recent = RecentRequests()
        engine, prompt_builder = build_engine(
            engine_options(settings), loaded_model, observers=(recent,)
        )
        try:
            app = create_app(engine, prompt_builder, settings, recent=recent)
            with running_server(app) as url, httpx.Client(timeout=60) as http:
                yield Served(url, http)
                if is_left_first:
                    browser.leave()
        finally:
            engine.close()

    return start


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    program = require_part("chromium")
    with running_browser(program, tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture
def page(browser: Page) -> Iterator[Page]:
    """A blank page on a wide screen."""
    browser.leave()
    browser.set_screen(1200, 900)
    browser.console_errors.clear()
    yield browser
    browser.leave()

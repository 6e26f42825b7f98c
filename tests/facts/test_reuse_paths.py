"""Conversations that reach each reuse path other than restore_anchor."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from kvreg_service.chat.conversation import Conversation
from kvreg_service.chat.prompt.builder import PromptBuilder
from kvreg_service.core.requests.request import Admission
from kvreg_service.demo.profile import KEEP, NO_ENTRY
from kvreg_service.demo.run import BASE_OPTIONS
from kvreg_service.engine.build import LoadedModel, build_engine
from kvreg_service.engine.engine import Engine
from kvreg_service.engine.interface.generation import GenerationRequest, Started, TextDelta

_OPENING = [
    ("system", "You are a helpful assistant."),
    ("user", "My locker code is 4921. Can you keep that in mind?"),
]
_BEGUN_ANSWER = ("assistant", "Yes, I will keep in")


class Server:
    """Sends conversations to one engine; returns the admission and the text of each answer."""

    def __init__(self, engine: Engine, builder: PromptBuilder) -> None:
        self._engine = engine
        self._builder = builder

    def ask(
        self, messages: Sequence[tuple[str, str]], *, is_continued: bool = False
    ) -> tuple[Admission, str]:
        sent = [{"role": role, "content": text} for role, text in messages]
        prompt = self._builder.build(Conversation(sent, continue_final_message=is_continued))

        async def answer() -> tuple[Admission, str]:
            events = [e async for e in self._engine.generate(GenerationRequest("r", prompt, 32))]
            text = "".join(event.text for event in events if isinstance(event, TextDelta))
            assert isinstance(events[0], Started)
            return events[0].admission, text

        return asyncio.run(answer())


@pytest.fixture(params=[NO_ENTRY, KEEP], ids=lambda profile: profile.name)
def server(request: pytest.FixtureRequest, loaded: LoadedModel) -> Iterator[Server]:
    engine, builder = build_engine(request.param.options(BASE_OPTIONS), loaded)
    yield Server(engine, builder)
    engine.close()


def test_first_request_is_a_full_reset(server: Server) -> None:
    admission, _ = server.ask(_OPENING)

    assert (admission.reuse_path, admission.cached_tokens) == ("full_reset", 0)


def test_next_turn_restores_the_turn_checkpoint(server: Server) -> None:
    _, text = server.ask(_OPENING)
    next_turn = [*_OPENING, ("assistant", text), ("user", "What is my locker code?")]
    admission, _ = server.ask(next_turn)

    assert admission.reuse_path == "restore_turn_checkpoint"


def test_assistant_tail_appends_to_the_frontier(server: Server) -> None:
    _, text = server.ask(_OPENING)
    admission, _ = server.ask([*_OPENING, ("assistant", text)])

    assert admission.reuse_path == "append_frontier"


def test_repeated_continuation_restores_the_response_checkpoint(
    server: Server,
) -> None:
    first, text = server.ask([*_OPENING, _BEGUN_ANSWER], is_continued=True)
    again, same_text = server.ask([*_OPENING, _BEGUN_ANSWER], is_continued=True)

    assert again.reuse_path == "restore_response_checkpoint"
    assert again.cached_tokens > first.cached_tokens
    assert same_text == text

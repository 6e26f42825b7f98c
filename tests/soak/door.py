"""How a client reaches an engine: what it asks, what it gets, and the way through the process.

Owns the order in which events of one answer must come. Over HTTP see ``http_door``.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from tests.soak.conversation import Message
from tests.soak.operations import Options, Stage

from kvreg_service.chat.conversation import Conversation
from kvreg_service.chat.prompt.builder import ChatPrompt, PromptBuilder
from kvreg_service.core.errors import KvregError
from kvreg_service.core.request import Admission
from kvreg_service.core.sampling_params import SamplingParams
from kvreg_service.engine.interface.generation import (
    Finished,
    GenerationRequest,
    Started,
    TextDelta,
    TokenReport,
)
from kvreg_service.engine.interface.protocol import EngineProtocol

NUM_LOGPROBS = 3


@dataclass(frozen=True)
class Ask:
    """One request as a client means it."""

    name: str
    tenant: str
    messages: list[Message]
    options: Options
    tools: list[dict[str, Any]] | None = None
    is_continuation: bool = False
    is_marked: bool = False
    """The client asks for an anchor behind the first message."""


@dataclass(frozen=True)
class Reply:
    """One whole answer. ``prompt`` is known inside the process only."""

    text: str
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    completion_tokens: int
    path: str
    prompt: ChatPrompt | None = None
    reports: tuple[TokenReport, ...] = ()


@dataclass(frozen=True)
class Refusal:
    """An error instead of an answer, by its stable code. ``was_accepted`` is false when the
    request never reached the queue."""

    code: str
    message: str
    was_accepted: bool


class BrokenStream(AssertionError):
    """The events of an answer came in an order that nobody may see."""


Left = Literal["queued", "prefill", "decode", "finished"]


class Door(Protocol):
    """The way to an engine."""

    async def ask(self, ask: Ask, prompt: ChatPrompt | None = None) -> Reply | Refusal:
        """Send a request and read its answer to the end."""
        ...

    async def abort(self, ask: Ask, stage: Stage) -> Left | Refusal:
        """Send a request and leave when it is in a stage; return the stage it was really in."""
        ...

    async def count_tokens(self, ask: Ask) -> int:
        """Return the length of a prompt without asking for an answer."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


class EngineDoor:
    """The way through the process."""

    def __init__(self, engine: EngineProtocol, builder: PromptBuilder) -> None:
        self._engine = engine
        self._builder = builder

    async def ask(self, ask: Ask, prompt: ChatPrompt | None = None) -> Reply | Refusal:
        """Send a request, of ``prompt`` if it is given, and read its answer to the end."""
        admission: Admission | None = None
        try:
            request = self._request(ask, prompt or self._prompt(ask))
            text, num_tokens, reports = "", 0, []
            finished: Finished | None = None
            async for event in self._engine.generate(request):
                if finished is not None or isinstance(event, Started) is (admission is not None):
                    raise BrokenStream(f"{ask.name}: {event} out of order")
                match event:
                    case Started():
                        admission = event.admission
                    case TextDelta():
                        text += event.text
                        num_tokens += event.num_tokens
                        reports += event.reports
                    case Finished():
                        finished = event
        except KvregError as error:
            return Refusal(error.code, error.message, _was_accepted(error))
        if admission is None or finished is None:
            raise BrokenStream(f"{ask.name} ended without its first or last event")
        if num_tokens != finished.completion_tokens:
            raise BrokenStream(f"{ask.name}: {num_tokens} tokens came, {finished} says otherwise")
        return Reply(
            text=text,
            prompt_tokens=admission.prompt_tokens,
            cached_tokens=admission.cached_tokens,
            computed_tokens=admission.computed_tokens,
            completion_tokens=finished.completion_tokens,
            path=admission.reuse_path,
            prompt=request.prompt,
            reports=tuple(reports),
        )

    async def abort(self, ask: Ask, stage: Stage) -> Left | Refusal:
        """Send a request and leave when it is in a stage."""
        task = asyncio.create_task(self.ask(ask))
        while not task.done() and not self._has_reached(ask.name, stage):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        left: Left = self._stage(ask.name) or "queued"
        task.cancel()
        try:
            outcome = await task
        except asyncio.CancelledError:
            return left
        return outcome if isinstance(outcome, Refusal) else "finished"

    async def count_tokens(self, ask: Ask) -> int:
        """Return the length of the prompt."""
        return self._builder.count(self._conversation(ask))

    async def close(self) -> None:
        """Nothing to let go of."""

    def _has_reached(self, name: str, stage: Stage) -> bool:
        now = self._stage(name)
        if stage == "queued":
            # With a free lane nobody waits in the queue.
            return now is not None or self._engine.snapshot().queued > 0
        return now == "decode" or now == stage

    def _stage(self, name: str) -> Literal["prefill", "decode"] | None:
        """Where a request runs; None before and after."""
        for lane in self._engine.snapshot().lanes:
            if lane.request_id == name:
                return "decode" if lane.state == "decode" else "prefill"
        return None

    def _conversation(self, ask: Ask) -> Conversation:
        return Conversation(
            ask.messages,
            ask.tools,
            continue_final_message=ask.is_continuation,
            marked_messages=frozenset({0}) if ask.is_marked else frozenset(),
        )

    def _prompt(self, ask: Ask) -> ChatPrompt:
        return self._builder.build(self._conversation(ask))

    def _request(self, ask: Ask, prompt: ChatPrompt) -> GenerationRequest:
        options = ask.options
        return GenerationRequest(
            request_id=ask.name,
            prompt=prompt,
            max_tokens=options.max_tokens,
            sampling=SamplingParams(
                temperature=0.0 if options.seed is None else 0.8,
                seed=options.seed,
                num_logprobs=NUM_LOGPROBS if options.is_controlled else None,
            ),
            stop=options.stop,
            tenant=ask.tenant,
            cache_policy=options.cache_policy,
        )


NEVER_QUEUED = frozenset(
    {"server_overloaded", "context_length_exceeded", "invalid_request", "draining", "conflict"}
)
"""Codes with which a request is refused before it is taken."""


def _was_accepted(error: KvregError) -> bool:
    return error.code not in NEVER_QUEUED

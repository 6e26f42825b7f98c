"""The interface between clients and engine (a door), and its implementation within the process.

Checks the order of the events of each answer. ``http_door`` has the implementation over HTTP.
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
from kvreg_service.core.requests.request import Admission
from kvreg_service.core.requests.sampling_params import SamplingParams
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
class RequestSpec:
    """One request, independent of the door."""

    name: str
    tenant: str
    messages: list[Message]
    options: Options
    tools: list[dict[str, Any]] | None = None
    is_continuation: bool = False
    is_marked: bool = False
    """The client marks the first message as an anchor."""


@dataclass(frozen=True)
class Reply:
    """One complete answer. ``prompt`` is None over HTTP."""

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
    """An error, with its stable code. ``was_accepted`` is false if the request was rejected before
    it entered the queue."""

    code: str
    message: str
    was_accepted: bool


class BrokenStream(AssertionError):
    """The events of an answer arrived in an invalid order."""


AbortedAt = Literal["queued", "prefill", "decode", "finished"]


class Door(Protocol):
    """Sends requests to an engine."""

    async def send(self, spec: RequestSpec, prompt: ChatPrompt | None = None) -> Reply | Refusal:
        """Send a request and read its answer to the end."""
        ...

    async def abort(self, spec: RequestSpec, stage: Stage) -> AbortedAt | Refusal:
        """Send a request and disconnect at a stage; return the actual stage at that time."""
        ...

    async def count_tokens(self, spec: RequestSpec) -> int:
        """Return the number of prompt tokens without generating an answer."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class EngineDoor:
    """Calls the engine within the process."""

    def __init__(self, engine: EngineProtocol, builder: PromptBuilder) -> None:
        self._engine = engine
        self._builder = builder

    async def send(self, spec: RequestSpec, prompt: ChatPrompt | None = None) -> Reply | Refusal:
        """Send a request, with ``prompt`` if it is given, and read its answer to the end."""
        admission: Admission | None = None
        try:
            request = self._request(spec, prompt or self._prompt(spec))
            text, num_tokens, reports = "", 0, []
            finished: Finished | None = None
            async for event in self._engine.generate(request):
                if finished is not None or isinstance(event, Started) is (admission is not None):
                    raise BrokenStream(f"{spec.name}: {event} out of order")
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
            raise BrokenStream(f"{spec.name} ended without a Started or Finished event")
        if num_tokens != finished.completion_tokens:
            raise BrokenStream(f"{spec.name}: {num_tokens} tokens received, but {finished}")
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

    async def abort(self, spec: RequestSpec, stage: Stage) -> AbortedAt | Refusal:
        """Send a request and cancel it at a stage."""
        task = asyncio.create_task(self.send(spec))
        while not task.done() and not self._has_reached(spec.name, stage):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        left: AbortedAt = self._stage(spec.name) or "queued"
        task.cancel()
        try:
            outcome = await task
        except asyncio.CancelledError:
            return left
        return outcome if isinstance(outcome, Refusal) else "finished"

    async def count_tokens(self, spec: RequestSpec) -> int:
        """Return the number of prompt tokens."""
        return self._builder.count(self._conversation(spec))

    async def close(self) -> None:
        """Do nothing: there are no connections."""

    def _has_reached(self, name: str, stage: Stage) -> bool:
        now = self._stage(name)
        if stage == "queued":
            # With a free lane the request never waits in the queue.
            return now is not None or self._engine.snapshot().queued > 0
        return now == "decode" or now == stage

    def _stage(self, name: str) -> Literal["prefill", "decode"] | None:
        """Return the stage of a running request; None before and after it runs."""
        for lane in self._engine.snapshot().lanes:
            if lane.request_id == name:
                return "decode" if lane.state == "decode" else "prefill"
        return None

    def _conversation(self, spec: RequestSpec) -> Conversation:
        return Conversation(
            spec.messages,
            spec.tools,
            continue_final_message=spec.is_continuation,
            marked_messages=frozenset({0}) if spec.is_marked else frozenset(),
        )

    def _prompt(self, spec: RequestSpec) -> ChatPrompt:
        return self._builder.build(self._conversation(spec))

    def _request(self, spec: RequestSpec, prompt: ChatPrompt) -> GenerationRequest:
        options = spec.options
        return GenerationRequest(
            request_id=spec.name,
            prompt=prompt,
            max_tokens=options.max_tokens,
            sampling=SamplingParams(
                temperature=0.0 if options.seed is None else 0.8,
                seed=options.seed,
                num_logprobs=NUM_LOGPROBS if options.is_controlled else None,
            ),
            stop=options.stop,
            tenant=spec.tenant,
            cache_policy=options.cache_policy,
        )


NEVER_QUEUED = frozenset(
    {"server_overloaded", "context_length_exceeded", "invalid_request", "draining", "conflict"}
)
"""Error codes of requests that are rejected before they enter the queue."""


def _was_accepted(error: KvregError) -> bool:
    return error.code not in NEVER_QUEUED

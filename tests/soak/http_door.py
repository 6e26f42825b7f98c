"""The door over HTTP: one server in a thread and one client.

Owns the conversion of requests into bodies and of responses into replies. Without API keys all
conversations share one tenant.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
from tests.soak.door import (
    NEVER_QUEUED,
    NUM_LOGPROBS,
    AbortedAt,
    BrokenStream,
    Refusal,
    Reply,
    RequestSpec,
)
from tests.soak.operations import Stage

from kvreg_service.api.app import create_app
from kvreg_service.chat.prompt.builder import ChatPrompt, PromptBuilder
from kvreg_service.engine.engine import Engine
from kvreg_service.engine.interface.generation import SpelledToken, TokenReport
from kvreg_service.settings import load_settings
from kvreg_service.testing.http_server import running_server

TIMEOUT_S = 300.0


@contextmanager
def open_http_door(engine: Engine, builder: PromptBuilder) -> Iterator[HttpDoor]:
    """Serve the engine on a free port inside the block."""
    settings = load_settings({"served_model_name": "reference"})
    with running_server(create_app(engine, builder, settings)) as url:
        yield HttpDoor(engine, url)


class HttpDoor:
    """Sends requests over HTTP; about half of them are streamed."""

    def __init__(self, engine: Engine, url: str) -> None:
        self._engine = engine
        self._url = f"{url}/v1/chat/completions"
        self._count_url = f"{url}/v1/messages/count_tokens"
        self._client = httpx.AsyncClient(timeout=TIMEOUT_S)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def send(self, spec: RequestSpec, prompt: ChatPrompt | None = None) -> Reply | Refusal:  # noqa: ARG002
        """Send a request and read its answer to the end; ``prompt`` is ignored."""
        if len(spec.messages) % 4 < 2:
            return await self._send_streamed(spec)
        response = await self._client.post(self._url, json=_body(spec))
        body = response.json()
        if "error" in body:
            return _refusal(body["error"])
        (choice,) = body["choices"]
        return _reply(choice["message"]["content"] or "", body, _reports(choice))

    async def abort(self, spec: RequestSpec, stage: Stage) -> AbortedAt | Refusal:
        """Send a streamed request and close the connection.

        The client cannot see which lane its request has. Before the first text it disconnects as
        soon as any request runs.
        """
        if stage != "decode":
            task = asyncio.create_task(self._send_streamed(spec))
            while not task.done() and not self._engine.snapshot().running:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            task.cancel()
            try:
                outcome = await task
            except asyncio.CancelledError:
                return stage
            return outcome if isinstance(outcome, Refusal) else "finished"
        async with self._client.stream(
            "POST", self._url, json=_body(spec, stream=True)
        ) as response:
            async for event in _events(response):
                if "error" in event:
                    return _refusal(event["error"])
                if any(choice["delta"].get("content") for choice in event["choices"]):
                    return "decode"
        return "finished"

    async def count_tokens(self, spec: RequestSpec) -> int:
        """Return the number of prompt tokens of the last message, through the Messages API."""
        body = {"model": "reference", "messages": spec.messages[-1:]}
        response = await self._client.post(self._count_url, json=body)
        return int(response.raise_for_status().json()["input_tokens"])

    async def _send_streamed(self, spec: RequestSpec) -> Reply | Refusal:
        text, usage = "", None
        reports: list[TokenReport] = []
        body = _body(spec, stream=True)
        async with self._client.stream("POST", self._url, json=body) as response:
            async for event in _events(response):
                if "error" in event:
                    return _refusal(event["error"])
                if usage is not None:
                    raise BrokenStream(f"{spec.name}: {event} after the usage chunk")
                for choice in event["choices"]:
                    text += choice["delta"].get("content") or ""
                    reports += _reports(choice)
                usage = event if event.get("usage") else None
        if usage is None:
            raise BrokenStream(f"{spec.name} ended without a usage chunk")
        return _reply(text, usage, reports)


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    if response.status_code != 200:
        yield json.loads(await response.aread())
        return
    async for line in response.aiter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def _body(spec: RequestSpec, *, stream: bool = False) -> dict[str, Any]:
    options, policy = spec.options, spec.options.cache_policy
    first, *others = spec.messages
    if spec.is_marked:
        first = {**first, "cache_anchor": True}
    body: dict[str, Any] = {
        "model": "reference",
        "messages": [first, *others],
        "max_tokens": options.max_tokens,
        "temperature": 0.0 if options.seed is None else 0.8,
        "seed": options.seed,
        "stop": list(options.stop) or None,
        "retain_prefix": policy.retain,
        "cache_prompt": policy.may_reuse,
        "cache_ttl_s": policy.ttl_s,
        "priority": policy.priority,
        "logprobs": options.is_controlled or None,
        "top_logprobs": NUM_LOGPROBS if options.is_controlled else None,
        "tools": spec.tools,
        "continue_final_message": spec.is_continuation or None,
        "stream": stream or None,
        "stream_options": {"include_usage": True} if stream else None,
    }
    return {name: value for name, value in body.items() if value is not None}


def _refusal(error: dict[str, Any]) -> Refusal:
    code = str(error["code"])
    return Refusal(code, str(error["message"]), code not in NEVER_QUEUED)


def _reports(choice: dict[str, Any]) -> list[TokenReport]:
    content = (choice.get("logprobs") or {}).get("content") or []
    return [TokenReport(_token(one), tuple(map(_token, one["top_logprobs"]))) for one in content]


def _token(entry: dict[str, Any]) -> SpelledToken:
    return SpelledToken(bytes(entry["bytes"]), entry["logprob"])


def _reply(text: str, body: dict[str, Any], reports: Sequence[TokenReport]) -> Reply:
    usage = body["usage"]
    return Reply(
        text=text,
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
        computed_tokens=usage["kvreg"]["computed_tokens"],
        completion_tokens=usage["completion_tokens"],
        path=usage["kvreg"]["reuse_path"],
        reports=tuple(reports),
    )

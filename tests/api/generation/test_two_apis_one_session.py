"""One session through both APIs on a real engine: the same prompt, the same kept sequence."""

from __future__ import annotations

from typing import Any, Literal

import httpx
import pytest
from tests.api.taught_engine import Taught

pytestmark = pytest.mark.anyio

Api = Literal["chat", "messages"]
SCHEMA = {
    "type": "object",
    "properties": {"at": {"type": "string"}, "days": {"type": "integer"}},
}
SYSTEM = "Ticket {}. " + "The notes are updated once a week. " * 20
SPELLING = '<tool_call>{"arguments":{"days":3,"at":"sky"},"name":"look"}</tool_call>'


class Talker:
    """A client that keeps its conversation in both formats and may switch the API at each turn."""

    def __init__(self, client: httpx.AsyncClient, nonce: str, *, has_tools: bool = False) -> None:
        self._client = client
        self._system = SYSTEM.format(nonce)
        self._has_tools = has_tools
        self.chat: list[dict[str, Any]] = [{"role": "system", "content": self._system}]
        self.messages: list[dict[str, Any]] = []

    def hear(self, text: str) -> None:
        """Add a user message."""
        self.chat.append({"role": "user", "content": text})
        self.messages.append({"role": "user", "content": text})

    def hear_result(self, text: str) -> None:
        """Add the result of the last tool call."""
        self.chat.append({"role": "tool", "tool_call_id": "t", "content": text})
        block = {"type": "tool_result", "tool_use_id": "t", "content": text}
        self.messages.append({"role": "user", "content": [block]})

    def body(self, api: Api) -> dict[str, Any]:
        """The body of the next request, without token limits."""
        body: dict[str, Any] = {"model": "fake-model"}
        if api == "chat":
            body["messages"] = self.chat
            function = {"name": "look", "description": "Looks.", "parameters": SCHEMA}
            tools = [{"type": "function", "function": function}]
        else:
            body |= {"messages": self.messages, "system": self._system}
            tools = [{"name": "look", "description": "Looks.", "input_schema": SCHEMA}]
        return body | ({"tools": tools} if self._has_tools else {})

    async def ask(self, api: Api) -> tuple[int, int]:
        """Send the next request and add its answer; return its prompt and cached tokens."""
        path = "/v1/chat/completions" if api == "chat" else "/v1/messages"
        body = self.body(api) | {"max_tokens": 40, "temperature": 0}
        response = await self._client.post(path, json=body)
        assert response.status_code == 200, response.text
        answer = response.json()
        usage = answer["usage"]
        if api == "chat":
            self._take_chat(answer["choices"][0]["message"])
            return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
        self._take_message(answer["content"])
        cached = usage["cache_read_input_tokens"]
        return usage["input_tokens"] + cached, cached

    async def count(self) -> int:
        """The number of tokens of the next prompt."""
        body = self.body("messages")
        response = await self._client.post("/v1/messages/count_tokens", json=body)
        return int(response.json()["input_tokens"])

    def _take_chat(self, message: dict[str, Any]) -> None:
        self.chat.append(message)
        blocks = [{"type": "text", "text": message["content"]}] if message["content"] else []
        for _ in message.get("tool_calls", ()):
            arguments = {"at": "sky", "days": 3}
            blocks.append({"type": "tool_use", "id": "t", "name": "look", "input": arguments})
        self.messages.append({"role": "assistant", "content": blocks})

    def _take_message(self, blocks: list[dict[str, Any]]) -> None:
        self.messages.append({"role": "assistant", "content": blocks})
        message: dict[str, Any] = {"role": "assistant", "content": None}
        for block in blocks:
            if block["type"] == "text":
                message["content"] = block["text"]
            else:
                function = {"name": "look", "arguments": '{"at": "sky", "days": 3}'}
                message["tool_calls"] = [{"id": "t", "type": "function", "function": function}]
        self.chat.append(message)


@pytest.mark.parametrize("order", [["chat", "messages"], ["messages", "chat"]], ids="-".join)
async def test_case_36_session_continues_through_the_other_api(
    taught_client: httpx.AsyncClient, order: list[Api]
) -> None:
    talker = Talker(taught_client, "1")
    before = 0
    for turn in range(4):
        talker.hear(f"What is {turn + 2} plus 5?")
        prompt, cached = await talker.ask(order[turn % 2])
        assert cached >= before - 64
        before = prompt


async def test_case_36_both_apis_count_the_same_prompt(taught_client: httpx.AsyncClient) -> None:
    apis: tuple[Api, ...] = ("chat", "messages")
    seen = set()
    for api in apis:
        talker = Talker(taught_client, "2", has_tools=True)
        talker.hear("Hello!")
        seen.add(await talker.count())
        seen.add((await talker.ask(api))[0])
    assert len(seen) == 1


@pytest.mark.parametrize("order", [["chat", "messages"], ["messages", "chat"]], ids="-".join)
async def test_case_36_tool_loop_continues_through_the_other_api(
    taught: Taught, taught_client: httpx.AsyncClient, order: list[Api]
) -> None:
    talker = Talker(taught_client, "3", has_tools=True)
    talker.hear("What is it like outside?")
    previous = 0
    for turn in range(4):
        taught.teacher.answers = [SPELLING]
        prompt, cached = await talker.ask(order[turn % 2])
        assert cached >= previous
        previous = prompt
        talker.hear_result("blue")


async def test_case_73_counting_keeps_nothing_and_evicts_nothing(
    taught: Taught, taught_client: httpx.AsyncClient
) -> None:
    talker = Talker(taught_client, "4")
    talker.hear("What is 4 plus 5?")
    first, _ = await talker.ask("messages")
    before = (taught.engine.snapshot().entries, taught.engine.snapshot().pools)
    talker.hear("What is 2 plus 3?")
    counted = await talker.count()
    assert [view.state for view in taught.engine.snapshot().entries] == [
        view.state for view in before[0]
    ]
    assert taught.engine.snapshot().pools == before[1]
    prompt, cached = await talker.ask("messages")
    assert counted == prompt
    assert cached >= first - 64

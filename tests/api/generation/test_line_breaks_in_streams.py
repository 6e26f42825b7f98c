"""Line separators of Unicode within a text do not split events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from kvreg_service.testing.fake_engine import FakeEngine, Script

MODEL = "fake-model"
# Every line separator of str.splitlines.
TEXT = "a".join("\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029") + "\r\n\n\U0001f600\u00e4"
MESSAGES: Any = [{"role": "user", "content": "Hi"}]


@pytest.fixture(autouse=True)
def _script(engine: FakeEngine) -> None:
    engine.scripts = [Script(steps=[f"<{TEXT}>"])]


def test_openai_client_reads_them(openai_client: openai.OpenAI) -> None:
    stream = openai_client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    content = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert content == f"<{TEXT}>"


def test_anthropic_client_reads_them(anthropic_client: anthropic.Anthropic) -> None:
    with anthropic_client.messages.stream(model=MODEL, max_tokens=5, messages=MESSAGES) as stream:
        assert stream.get_final_text() == f"<{TEXT}>"


@pytest.mark.parametrize("url", ["/v1/chat/completions", "/v1/messages"])
def test_reader_that_splits_lines_as_python_does_reads_them(base_url: str, url: str) -> None:
    body = {"model": MODEL, "messages": MESSAGES, "stream": True, "max_tokens": 5}
    with httpx.stream("POST", base_url + url, json=body) as response:
        lines = response.read().decode().splitlines()
    events = [json.loads(x.removeprefix("data: ")) for x in lines if x.startswith("data: {")]
    assert f"<{TEXT}>" in {text for event in events for text in texts_in(event)}


def texts_in(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict | list):
        for child in node.values() if isinstance(node, dict) else node:
            yield from texts_in(child)

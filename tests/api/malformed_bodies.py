"""One table of bodies that are malformed (422) or have an unsupported value (400).

A row has the fields that replace those of the smallest valid body, the field that the error names
and, for a refused value, a part of the message. Rows of ``BOTH`` hold for either API.
"""

from __future__ import annotations

from typing import Any

from tests.api.served_api import ANTHROPIC, APIS, MESSAGE, OPENAI, ServedApi

Fields = dict[str, Any]
BOTH = "both"

TOOL = {"name": "look", "input_schema": {"type": "object"}}
IMAGE = {"type": "image", "source": {"type": "url", "url": "x"}}


def message(**fields: Any) -> Fields:
    return {"messages": [MESSAGE | fields]}


def block(**fields: Any) -> Fields:
    return message(content=[fields])


def answer(*blocks: Any) -> Fields:
    return {"messages": [MESSAGE, {"role": "assistant", "content": list(blocks)}, MESSAGE]}


_MALFORMED: dict[str, list[tuple[Fields, str]]] = {
    BOTH: [
        ({"model": 5}, "model"),
        ({"model": None}, "model"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": ["Hi"]}, "messages.0"),
        (message(content=5), "messages.0.content"),
        (message(content={"text": "Hi"}), "messages.0.content"),
        (message(content={"type": "text", "text": "Hi"}), "messages.0.content"),
        (message(content=["Hi"]), "messages.0.content.0"),
        (message(content=[None]), "messages.0.content.0"),
        (block(text="Hi"), "messages.0.content.0.type"),
        (block(type=5, text="Hi"), "messages.0.content.0.type"),
        (block(type=["text"], text="Hi"), "messages.0.content.0.type"),
        (block(type="text", text=5), "messages.0.content.0.text"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 5.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_k": 1.5}, "top_k"),
        ({"seed": 1.5}, "seed"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logit_bias": {"5": "much"}}, "logit_bias.5"),
        ({"stream": "yes"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"tools": TOOL}, "tools"),
        ({"tools": {"type": "function"}}, "tools"),
        ({"tools": ["look"]}, "tools.0"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
        ({"retain_prefix": "no"}, "retain_prefix"),
    ],
    OPENAI.name: [
        (message(role=None), "messages.0.role"),
        (message(tool_calls="look"), "messages.0.tool_calls"),
        (message(tool_calls=[{"function": {}}]), "messages.0.tool_calls.0.function.name"),
        ({"stream_options": True}, "stream_options"),
        ({"stop": 5}, "stop"),
        ({"stop": [5]}, "stop.0"),
        ({"n": "1"}, "n"),
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": "3"}, "top_logprobs"),
    ],
    ANTHROPIC.name: [
        (message(content=None), "messages.0.content"),
        (block(type="text"), "messages.0.content.0.text"),
        (block(type="text", text=None), "messages.0.content.0.text"),
        (block(type="tool_result"), "messages.0.content.0.tool_use_id"),
        (block(type="tool_result", tool_use_id=1), "messages.0.content.0.tool_use_id"),
        (block(type="tool_result", tool_use_id="t", content=5), "messages.0.content.0.content"),
        (block(type="tool_result", tool_use_id="t", content=[5]), "messages.0.content.0.content.0"),
        (answer({"type": "tool_use", "id": "t", "name": "f"}), "messages.1.content.0.input"),
        (
            answer({"type": "tool_use", "id": "t", "name": "f", "input": "{}"}),
            "messages.1.content.0.input",
        ),
        (answer({"type": "tool_use", "name": "f", "input": {}}), "messages.1.content.0.id"),
        (answer({"type": "thinking"}), "messages.1.content.0.thinking"),
        ({"system": 5}, "system"),
        ({"system": {"type": "text", "text": "x"}}, "system"),
        ({"system": ["x"]}, "system.0"),
        ({"max_tokens": None}, "max_tokens"),
        ({"stop_sequences": "END"}, "stop_sequences"),
        ({"stop_sequences": [5]}, "stop_sequences.0"),
        ({"tools": [{"input_schema": {}}]}, "tools.0.name"),
        ({"tools": [{"name": 5, "input_schema": {}}]}, "tools.0.name"),
        ({"tools": [{"name": "f", "input_schema": []}]}, "tools.0.input_schema"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": {}}, "tool_choice.type"),
        ({"thinking": True}, "thinking"),
        ({"thinking": {}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": "many"}}, "thinking.budget_tokens"),
        ({"output_config": "low"}, "output_config"),
        ({"mcp_servers": {}}, "mcp_servers"),
    ],
}

_REFUSED: dict[str, list[tuple[Fields, str, str]]] = {
    BOTH: [
        ({"messages": []}, "messages", "at least 1"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"max_tokens": -1}, "max_tokens", "-1"),
        ({"temperature": -0.1}, "temperature", "-0.1"),
        ({"temperature": 2.5}, "temperature", "2"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"top_p": 1.5}, "top_p", "1.5"),
        ({"top_k": -2}, "top_k", "-2"),
        ({"min_p": 2}, "min_p", "2"),
        ({"presence_penalty": 3}, "presence_penalty", "3"),
        ({"frequency_penalty": -3}, "frequency_penalty", "-3"),
        ({"repetition_penalty": 0}, "repetition_penalty", "0"),
        ({"seed": 2**63}, "seed", str(2**63)),
        ({"logit_bias": {"5": 101}}, "logit_bias.5", "101"),
        ({"logit_bias": {"word": 1}}, "logit_bias", "word"),
        ({"logit_bias": {"256": 1}}, "logit_bias", "256"),
        (
            {"chat_template_kwargs": {"enable_thinking": "x"}},
            "chat_template_kwargs",
            "enable_thinking",
        ),
        ({"retain_prefix": True, "prompt_cache_read_only": True}, "", "contradict"),
        ({"cache_ttl_s": 0}, "cache_ttl_s", "0"),
        ({"priority": 1001}, "priority", "1001"),
    ],
    OPENAI.name: [
        (message(role="oracle"), "messages[0].role", "oracle"),
        (message(content=None), "messages[0].content", "content"),
        (
            message(content=[{"type": "image_url", "image_url": {"url": "x"}}]),
            "messages[0].content[0].type",
            "image_url",
        ),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "got 0"),
        ({"stop": ""}, "stop", "at least 1"),
        ({"stop": ["a"] * 17}, "stop", "16"),
        ({"n": 2}, "n", "one choice"),
        ({"n": 0}, "n", "got 0"),
        ({"top_logprobs": 3}, "", "logprobs"),
        ({"top_logprobs": 1, "logprobs": False}, "", "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs", "-1"),
        ({"response_format": {"type": "json_object"}}, "response_format", "json_object"),
        ({"modalities": ["text", "audio"]}, "modalities", "text"),
        ({"audio": {"voice": "x"}}, "audio", "not supported"),
        ({"web_search_options": {}}, "web_search_options", "not supported"),
        ({"functions": []}, "functions", "tools"),
        ({"function_call": "auto"}, "function_call", "tool_choice"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools", "custom"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools", "name"),
        ({"tool_choice": "required"}, "tool_choice", "required"),
        ({"tool_choice": {"type": "function"}}, "tool_choice", "auto"),
        ({"tool_choice": 5}, "tool_choice", "auto"),
    ],
    ANTHROPIC.name: [
        (message(role="oracle"), "messages.0.role", "user"),
        (message(role="tool"), "messages.0.role", "user"),
        (message(content=[IMAGE]), "messages[0].content[0].type", "image"),
        (block(type="document", source={}), "messages[0].content[0].type", "document"),
        (
            block(type="tool_use", id="t", name="f", input={}),
            "messages[0].content[0].type",
            "tool_use",
        ),
        (block(type="thinking", thinking="x"), "messages[0].content[0].type", "thinking"),
        (
            block(type="tool_result", tool_use_id="t", content=[IMAGE]),
            "messages[0].content[0].content[0].type",
            "image",
        ),
        (answer({"type": "text", "text": "a"}, IMAGE), "messages[1].content[1].type", "image"),
        (
            answer({"type": "tool_result", "tool_use_id": "t"}),
            "messages[1].content[0].type",
            "result",
        ),
        (answer({"type": "server_tool_use", "id": "t"}), "messages[1].content[0].type", "server"),
        (
            answer({"type": "tool_use", "id": "t", "name": "", "input": {}}),
            "messages.1.content.0.name",
            "at least 1",
        ),
        ({"system": [IMAGE]}, "system[0].type", "image"),
        ({"stop_sequences": [""]}, "stop_sequences.0", "at least 1"),
        ({"stop_sequences": ["a"] * 17}, "stop_sequences", "16"),
        ({"tools": [{"name": "web_search", "type": "web_search_20250305"}]}, "tools", "web_search"),
        ({"tools": [{"name": "bash", "type": "bash_20250124"}]}, "tools", "bash"),
        ({"tools": [{"name": "look"}]}, "tools", "input_schema"),
        ({"tools": [{"name": "", "input_schema": {}}]}, "tools.0.name", "at least 1"),
        ({"tool_choice": {"type": "any"}}, "tool_choice", "any"),
        ({"tool_choice": {"type": "tool", "name": "look"}}, "tool_choice", "tool"),
        ({"thinking": {"type": "sometimes"}}, "thinking", "sometimes"),
        ({"thinking": {"type": "between_tools"}}, "thinking", "between_tools"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config", "format"),
        ({"output_format": {"type": "json_schema"}}, "output_format", "not supported"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers", "not supported"),
    ],
}

MALFORMED: list[tuple[ServedApi, Fields, str]] = [
    (api, *row) for api in APIS for row in _MALFORMED[BOTH] + _MALFORMED[api.name]
]
REFUSED: list[tuple[ServedApi, Fields, str, str]] = [
    (api, *row) for api in APIS for row in _REFUSED[BOTH] + _REFUSED[api.name]
]

# Bodies that are no JSON object at all.
NO_JSON_OBJECT = (
    b"",
    b"{",
    b"null",
    b"[]",
    b'"text"',
    b"\xff\xfe",
    b'{"model": "\\ud800"}',
    b"[" * 5000,
)

"""Bodies that either API refuses: the status, the field that the error names, and the reason."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from tests.api.malformed_bodies import IMAGE, MALFORMED, NO_JSON_OBJECT, REFUSED, Fields, message
from tests.api.served_api import ANTHROPIC, APIS, CONVERSATION_ROUTES, MESSAGE, OPENAI, ServedApi

from kvreg_service.api.anthropic.request import IGNORED_FIELDS as IGNORED_BY_ANTHROPIC
from kvreg_service.api.anthropic.request import MessagesRequest
from kvreg_service.api.openai.request import IGNORED_FIELDS as IGNORED_BY_OPENAI
from kvreg_service.api.openai.request import ChatRequest
from kvreg_service.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio
JSON = {"content-type": "application/json"}
REQUEST_MODELS = {OPENAI: ChatRequest, ANTHROPIC: MessagesRequest}
EVERY_API = pytest.mark.parametrize("api", APIS, ids=str)


def short(value: object) -> str:
    return str(value)[:40]


@pytest.mark.parametrize(("api", "fields", "param"), MALFORMED, ids=short)
async def test_wrong_type_is_unprocessable_and_names_the_field(
    client: httpx.AsyncClient, api: ServedApi, fields: Fields, param: str
) -> None:
    error = api.read_error(await client.post(api.url, json=api.body(**fields)))
    assert (error.status, error.code, error.param) == (422, "unprocessable_body", param)
    assert param in error.message


@pytest.mark.parametrize(("api", "fields", "param", "reason"), REFUSED, ids=short)
async def test_unsupported_value_is_refused_with_field_and_reason(
    client: httpx.AsyncClient, api: ServedApi, fields: Fields, param: str, reason: str
) -> None:
    error = api.read_error(await client.post(api.url, json=api.body(**fields)))
    assert (error.status, error.code, error.param) == (400, "invalid_request", param or None)
    assert reason in error.message


@pytest.mark.parametrize(("api", "url"), CONVERSATION_ROUTES, ids=str)
@pytest.mark.parametrize("raw", NO_JSON_OBJECT, ids=lambda raw: repr(raw[:20]))
async def test_body_that_is_not_a_json_object_is_unprocessable(
    client: httpx.AsyncClient, api: ServedApi, url: str, raw: bytes
) -> None:
    error = api.read_error(await client.post(url, content=raw, headers=JSON))
    assert (error.status, error.code) == (422, "unprocessable_body")


@EVERY_API
@pytest.mark.parametrize(("field", "status"), [("seed", 422), ("temperature", 400)])
async def test_nan_is_not_a_number(
    client: httpx.AsyncClient, api: ServedApi, field: str, status: int
) -> None:
    raw = json.dumps(api.body(**{field: float("nan")}))
    response = await client.post(api.url, content=raw, headers=JSON)
    assert api.read_error(response).status == status


@EVERY_API
async def test_missing_fields_are_unprocessable(client: httpx.AsyncClient, api: ServedApi) -> None:
    error = api.read_error(await client.post(api.url, json={}))
    assert error.status == 422
    for name in ("model", "messages", *api.required):
        assert name in error.message


@EVERY_API
async def test_form_is_not_a_body(client: httpx.AsyncClient, api: ServedApi) -> None:
    error = api.read_error(await client.post(api.url, data={"model": "x"}))
    assert error.status == 422
    assert "application/json" in error.message


@pytest.mark.parametrize(
    ("api", "fields"),
    [
        (OPENAI, message(content=[{"type": "text", "text": 5}, "secret"])),
        (ANTHROPIC, message(content=["secret"])),
        (ANTHROPIC, {"system": ["secret"]}),
    ],
    ids=short,
)
async def test_text_of_a_conversation_is_not_repeated_in_an_error(
    client: httpx.AsyncClient, api: ServedApi, fields: Fields
) -> None:
    response = await client.post(api.url, json=api.body(**fields))
    assert response.status_code == 422
    assert "secret" not in response.text


@pytest.mark.parametrize(
    ("api", "fields"), [(OPENAI, {"n": 2}), (ANTHROPIC, message(content=[IMAGE]))], ids=short
)
async def test_refused_request_never_reaches_the_engine(
    client: httpx.AsyncClient, engine: FakeEngine, api: ServedApi, fields: Fields
) -> None:
    await client.post(api.url, json=api.body(**fields))
    assert engine.requests == []


@EVERY_API
async def test_long_list_of_problems_is_cut(client: httpx.AsyncClient, api: ServedApi) -> None:
    response = await client.post(api.url, json=api.body(messages=[5] * 1000))
    assert "995 more" in api.read_error(response).message


@pytest.mark.parametrize(
    ("api", "field"),
    [
        *((OPENAI, field) for field in (*IGNORED_BY_OPENAI, "some_field_of_tomorrow")),
        *((ANTHROPIC, field) for field in (*IGNORED_BY_ANTHROPIC, "some_field_of_tomorrow")),
    ],
    ids=str,
)
async def test_fields_without_effect_are_accepted_with_any_value(
    client: httpx.AsyncClient, api: ServedApi, field: str
) -> None:
    response = await client.post(api.url, json=api.body(**{field: {"any": ["thing"]}}))
    assert response.status_code == 200


@EVERY_API
async def test_null_counts_as_missing(client: httpx.AsyncClient, api: ServedApi) -> None:
    names = set(REQUEST_MODELS[api].model_fields) - {"model", "messages", *api.required}
    response = await client.post(api.url, json=api.body(**dict.fromkeys(names)))
    assert response.status_code == 200


UNUSUAL: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": ""}],
    [{"role": "user", "content": []}],
    [{"role": "user", "content": [{"type": "text", "text": ""}]}],
    [{"role": "user", "content": "  \n"}],
    [MESSAGE, MESSAGE],
    [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    [{"role": "assistant", "content": "Hello."}],
    [{"role": "assistant", "content": []}, MESSAGE],
    [{"role": "system", "content": "Be kind."}],
]
UNUSUAL_OPENAI: list[list[dict[str, Any]]] = [
    [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "done"},
    ],
    [{"role": "developer", "content": "a"}, {"role": "user", "content": "b"}],
]
UNUSUAL_ANTHROPIC: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}],
]


@pytest.mark.parametrize(
    ("api", "messages"),
    [
        *((OPENAI, messages) for messages in UNUSUAL + UNUSUAL_OPENAI),
        *((ANTHROPIC, messages) for messages in UNUSUAL + UNUSUAL_ANTHROPIC),
    ],
    ids=short,
)
async def test_unusual_conversations_are_answered(
    client: httpx.AsyncClient, api: ServedApi, messages: list[dict[str, Any]]
) -> None:
    response = await client.post(api.url, json=api.body(messages=messages))
    assert response.status_code == 200

"""The two APIs as tests call them: the smallest valid body, and how each encodes an error."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import httpx

MESSAGE = {"role": "user", "content": "Hi"}


@dataclass(frozen=True)
class ErrorResponse:
    """An error of either API. ``type`` is that API's name for the status."""

    status: int
    type: str
    code: str
    param: str | None
    message: str


@dataclass(frozen=True)
class ServedApi:
    """One API: where it is served, what its smallest body adds, and its error types by status."""

    name: str
    url: str
    required: dict[str, Any] = field(hash=False)
    error_types: dict[int, str] = field(hash=False)

    def __str__(self) -> str:
        return self.name

    def body(self, **fields: Any) -> dict[str, Any]:
        return {"model": "fake-model", "messages": [MESSAGE], **self.required, **fields}

    def read_error(self, response: httpx.Response) -> ErrorResponse:
        """Check that the body has the API's error format, and the type that fits the status."""
        body = response.json()
        error = body["error"]
        if self is OPENAI:
            assert set(body) == {"error"}
            assert set(error) == {"message", "type", "param", "code"}
            code, param = error["code"], error["param"]
        else:
            assert (set(body), body["type"]) == ({"type", "error"}, "error")
            assert set(error) == {"type", "message", "details"}
            assert set(error["details"]) == {"error_code", "param"}
            code, param = error["details"]["error_code"], error["details"]["param"]
        status = response.status_code
        assert error["type"] == self.error_types.get(status, "invalid_request_error")
        return ErrorResponse(status, error["type"], code, param, error["message"])


OPENAI = ServedApi(
    name="openai",
    url="/v1/chat/completions",
    required={},
    error_types={429: "rate_limit_error", 500: "server_error", 503: "service_unavailable_error"},
)
ANTHROPIC = ServedApi(
    name="anthropic",
    url="/v1/messages",
    required={"max_tokens": 100},
    error_types={
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        500: "api_error",
        503: "overloaded_error",
    },
)
APIS = (OPENAI, ANTHROPIC)
COUNT_URL = "/v1/messages/count_tokens"
# Every route that reads a conversation, with the API whose errors it has.
CONVERSATION_ROUTES = ((OPENAI, OPENAI.url), (ANTHROPIC, ANTHROPIC.url), (ANTHROPIC, COUNT_URL))

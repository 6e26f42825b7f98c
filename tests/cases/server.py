"""A client of a running server: requests, answers with their token counts, and the check CLEAN.

Uses HTTP only. Sessions, and the checks of what a turn reuses, are in `session`.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx
import openai
from tests.cases.profiles import Profile

MODEL = "kvreg-reference"
# Large enough that an endless stream does not reach it during a test.
CONTEXT_TOKENS = 16384
_SETTLE_TIMEOUT_S = 20.0

Message = dict[str, Any]
Serve = Callable[..., "Server"]


@dataclass(frozen=True)
class Reply:
    """One answer and its token counts."""

    text: str
    reasoning: str
    finish_reason: str
    prompt_tokens: int
    cached: int
    computed: int
    completion_tokens: int
    path: str
    attach: str
    queue_s: float

    @property
    def echo(self) -> Message:
        """The answer as a client that keeps no reasoning sends it back."""
        return {"role": "assistant", "content": self.text}

    @property
    def echo_with_reasoning(self) -> Message:
        """The answer as a client that keeps everything sends it back."""
        return {**self.echo, "reasoning_content": self.reasoning}


class OpenStream:
    """A stream that the client is still reading."""

    def __init__(self, chunks: openai.Stream[Any]) -> None:
        self._chunks = chunks
        self.text = ""

    def read(self, num_characters: int = 1) -> str:
        """Read at least this many more characters; return the whole text so far."""
        length = len(self.text) + num_characters
        while len(self.text) < length:
            chunk = next(self._chunks, None)
            assert chunk is not None, f"the stream has ended: {self.text!r}"
            self.text += "".join(choice.delta.content or "" for choice in chunk.choices)
        return self.text


@dataclass(frozen=True)
class Clients:
    """The HTTP clients of a whole run. Creating one takes longer than starting a server."""

    openai: openai.OpenAI
    http: httpx.Client


class Server:
    """A client of a running server, with the registry snapshot from before the first request.

    With API keys, ``key`` is that of an administrator, because CLEAN checks all tenants.
    """

    def __init__(
        self,
        url: str,
        clients: Clients,
        profile: Profile,
        end_tokens: Iterable[int],
        key: str | None = None,
    ) -> None:
        self.profile = profile
        self.canaries: set[str] = set()
        self.client = clients.openai.copy(base_url=f"{url}/v1", api_key=key)
        self._url = url
        self._http = clients.http
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        # Without end-of-sequence tokens an answer ends only at its limit.
        self.endless = {"logit_bias": {str(token): -100 for token in end_tokens}}
        self._num_background_streams = 0
        self._before = self._state()

    def with_key(self, key: str) -> Server:
        """Return a client of the same server with another API key."""
        other = copy(self)
        other.client = self.client.copy(api_key=key)
        other._headers = {"Authorization": f"Bearer {key}"}
        return other

    def send(self, method: str, path: str, body: Any = None) -> httpx.Response:
        """Send any request to any route; return the response, whatever its status."""
        return self._http.request(method, f"{self._url}{path}", json=body, headers=self._headers)

    def ask(self, messages: Sequence[Message], *, stream: bool = False, **options: Any) -> Reply:
        """Send one request and check the token counts. An option of None is omitted."""
        body = {"temperature": 0, "max_tokens": 48, **options}
        body = {name: value for name, value in body.items() if value is not None}
        request = {"model": MODEL, "messages": messages, "extra_body": body}
        if stream:
            body["stream_options"] = {"include_usage": True}
            chunks = self.client.chat.completions.create(stream=True, **request)
            reply = _fold(chunks)
        else:
            reply = _read(self.client.chat.completions.create(**request))
        assert reply.cached + reply.computed == reply.prompt_tokens, reply
        assert reply.completion_tokens <= body.get("max_tokens", CONTEXT_TOKENS), reply
        return reply

    def post_raw(self, content: bytes | str) -> httpx.Response:
        """Send arbitrary bytes as the body of a chat completion."""
        return self._http.post(
            f"{self._url}/v1/chat/completions",
            content=content,
            headers={"Content-Type": "application/json"},
        )

    @contextmanager
    def unread(self, messages: Sequence[Message], **options: Any) -> Iterator[None]:
        """A request for an endless answer whose client reads nothing, and disconnects on exit."""
        body = json.dumps({"model": MODEL, "messages": messages, **self.endless, **options})
        address = urlsplit(self._url)
        head = (
            f"POST {address.path}/v1/chat/completions HTTP/1.1\r\nHost: kvreg\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body.encode())}\r\n\r\n"
        )
        with socket.create_connection((address.hostname or "", address.port or 0)) as connection:
            connection.sendall((head + body).encode())
            yield

    @contextmanager
    def streaming(self, messages: Sequence[Message], **options: Any) -> Iterator[OpenStream]:
        """An endless stream whose first text has arrived; closed on exit."""
        body = {"temperature": 0, **self.endless, **options}
        chunks = self.client.chat.completions.create(
            model=MODEL, messages=messages, stream=True, extra_body=body
        )
        with chunks:
            answer = OpenStream(chunks)
            answer.read()
            yield answer

    def ask_side(self, number: int = 1, *, max_tokens: int = 16, **options: Any) -> Reply:
        """Send a side request of about 50 tokens, whose answer has about 10."""
        text = (
            f"Side request {number}. Write a title of 3 to 6 words for this conversation:\n\n"
            "User: The billing service is slow today. Can you find out why?"
        )
        return self.ask([{"role": "user", "content": text}], max_tokens=max_tokens, **options)

    @contextmanager
    def one_lane_left(self) -> Iterator[None]:
        """All lanes but one are busy with unretained streams.

        Requests can then use only the free lane, so that a side request displaces a session in the
        same way with any number of lanes.
        """
        num_streams = self.profile.lanes - 1
        with ExitStack() as stack:
            for _ in range(num_streams):
                stack.enter_context(self._background_stream())
            yield
            assert self.registry()["running"] == num_streams, (
                "a background stream has ended too early"
            )
        self.settle()

    def registry(self) -> dict[str, Any]:
        """Return the registry snapshot of the server."""
        return dict(self.send("GET", "/v1/registry").raise_for_status().json())

    def kept(self) -> list[dict[str, Any]]:
        """Return the sessions that are kept without a lane."""
        return [
            one
            for one in self.registry()["sessions"]
            if one["lane"] is None and not one["is_shared"]
        ]

    def occupied(self) -> list[dict[str, Any]]:
        """Return all sessions that are kept or run, also shared heads and branch points."""
        return list(self.registry()["sessions"])

    def wait_until(self, gauge: Literal["running", "queued"], value: int) -> dict[str, Any]:
        """Wait until a gauge of the registry snapshot has this value; return the snapshot."""
        deadline_s = time.monotonic() + _SETTLE_TIMEOUT_S
        while True:
            registry = self.registry()
            if registry[gauge] == value:
                return registry
            assert time.monotonic() < deadline_s, f"{gauge} has not become {value}: {registry}"

    def settle(self) -> dict[str, Any]:
        """Wait until no request is queued or running; return the registry snapshot."""
        self.wait_until("queued", 0)
        return self.wait_until("running", 0)

    def assert_clean(self) -> None:
        """CLEAN: once everything kept is dropped, the snapshot equals that before any request."""
        self.settle()
        for session in self.occupied():
            path = f"/v1/registry/sessions/{session['session_id']}"
            self.send("DELETE", path).raise_for_status()
        assert self._state() == self._before

    def _state(self) -> dict[str, Any]:
        # Counters only grow.
        registry = self.registry()
        return {one: registry[one] for one in registry.keys() - {"totals", "return_rates"}}

    @contextmanager
    def _background_stream(self, **options: Any) -> Iterator[None]:
        self._num_background_streams += 1
        text = (
            f"Stranger {self._num_background_streams}: tell me a short story about Nora in Lisbon."
        )
        with self.streaming([{"role": "user", "content": text}], retain_prefix=False, **options):
            yield


def _read(answer: Any) -> Reply:
    body = answer.to_dict()
    (choice,) = body["choices"]
    message = choice["message"]
    return _reply(
        message["content"], message.get("reasoning_content"), choice["finish_reason"], body
    )


def _fold(chunks: openai.Stream[Any]) -> Reply:
    texts = {"content": "", "reasoning_content": ""}
    finish_reason = ""
    for chunk in chunks:
        body = chunk.to_dict()
        for choice in body["choices"]:
            for name in texts:
                texts[name] += choice["delta"].get(name) or ""
            finish_reason = choice["finish_reason"] or finish_reason
    return _reply(texts["content"], texts["reasoning_content"], finish_reason, body)


def _reply(text: str, reasoning: str | None, finish_reason: str, body: dict[str, Any]) -> Reply:
    usage = body["usage"]
    return Reply(
        text=text,
        reasoning=reasoning or "",
        finish_reason=finish_reason,
        prompt_tokens=usage["prompt_tokens"],
        cached=usage["prompt_tokens_details"]["cached_tokens"],
        computed=usage["kvreg"]["computed_tokens"],
        completion_tokens=usage["completion_tokens"],
        path=usage["kvreg"]["reuse_path"],
        attach=usage["kvreg"]["attach"],
        queue_s=body["timings"]["queue_s"],
    )

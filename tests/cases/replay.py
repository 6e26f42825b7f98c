"""The words of the replay cases: profiles, servers, sessions, and what a turn may reuse.

Owns the conversations and the checks HIT, MISS, FALLBACK, CANARY and CLEAN. Everything is seen
through HTTP, as a client sees it. What a case replays is in its test.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import httpx
import openai
import pytest

MODEL = "kvreg-reference"
CONTEXT_TOKENS = 4096
SLACK_TOKENS = 64
# The bundled template ends a prompt with an empty think block that history does not have. The
# checkpoint sits before it, right behind the assistant's opener.
BOUNDARY_TOKENS = 4
_SETTLE_TIMEOUT_S = 20.0
_NOTES = (
    "Please keep answers short and polite.",
    "The notes are updated once a week.",
    "Keep the tone friendly.",
    "Backups are made every night.",
    "All times are local times.",
    "Every change needs a second pair of eyes.",
    "If something is unclear, say so.",
    "Support requests are answered within two days.",
)

Message = dict[str, Any]
Serve = Callable[..., "Server"]


@dataclass(frozen=True)
class Profile:
    """C lanes, R entries, and what an entry keeps."""

    lanes: int = 1
    entries: int = 1
    current_state: Literal["keep", "drop"] = "keep"

    def __str__(self) -> str:
        return f"C{self.lanes}-R{self.entries}-{self.current_state}"


PROFILES = tuple(
    Profile(lanes, entries, state)
    for lanes in (1, 2)
    for entries in (0, 1, 2)
    for state in ("keep", "drop")
    if entries > 0 or state == "keep"
)
WITH_REGISTRY = tuple(profile for profile in PROFILES if profile.entries)
WITHOUT_REGISTRY = tuple(profile for profile in PROFILES if not profile.entries)

every_profile = pytest.mark.parametrize("profile", PROFILES, ids=str)
with_registry = pytest.mark.parametrize("profile", WITH_REGISTRY, ids=str)
without_registry = pytest.mark.parametrize("profile", WITHOUT_REGISTRY, ids=str)
# Lanes, entries and states meet every case; streaming does not depend on them.
with_registry_and_streams = pytest.mark.parametrize(
    ("profile", "stream"),
    [
        *((profile, False) for profile in WITH_REGISTRY),
        (Profile(1, 1, "keep"), True),
        (Profile(2, 2, "drop"), True),
    ],
    ids=lambda value: (
        str(value) if isinstance(value, Profile) else "streamed" if value else "whole"
    ),
)
some_profiles = pytest.mark.parametrize(
    "profile", [Profile(1, 0), Profile(1, 1), Profile(2, 2, "drop")], ids=str
)
whole_and_streamed = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@dataclass(frozen=True)
class Reply:
    """One answer and its numbers."""

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
    """An answer whose client is still reading."""

    def __init__(self, chunks: openai.Stream[Any]) -> None:
        self._chunks = chunks
        self.text = ""

    def read(self, num_texts: int = 1) -> str:
        """Wait for that many more pieces of text; return all text so far."""
        while num_texts:
            for choice in next(self._chunks).choices:
                if choice.delta.content:
                    self.text += choice.delta.content
                    num_texts -= 1
        return self.text

    def close(self) -> None:
        """Leave. Idempotent."""
        self._chunks.close()


@dataclass(frozen=True)
class Clients:
    """The connections of a whole run: making one costs more than starting a server."""

    openai: openai.OpenAI
    http: httpx.Client


class Server:
    """A running server as its clients see it, and how it looked before anybody had asked."""

    def __init__(
        self, url: str, clients: Clients, profile: Profile, end_tokens: Iterable[int]
    ) -> None:
        self.profile = profile
        self.client = clients.openai.copy(base_url=f"{url}/v1")
        self._url = url
        self._http = clients.http
        # An answer that cannot say its end mark does not end.
        self.endless = {"logit_bias": {str(token): -100 for token in end_tokens}}
        self._num_strangers = 0
        self._before = self.registry()

    def ask(self, messages: Sequence[Message], *, stream: bool = False, **options: Any) -> Reply:
        """Send one request and check what holds for every answer. An option of None is left out."""
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
        """Send any bytes as the body of a chat completion."""
        return self._http.post(
            f"{self._url}/v1/chat/completions",
            content=content,
            headers={"Content-Type": "application/json"},
        )

    @contextmanager
    def streaming(self, messages: Sequence[Message], **options: Any) -> Iterator[OpenStream]:
        """An answer that has begun and does not end before it is closed."""
        body = {"temperature": 0, **self.endless, **options}
        chunks = self.client.chat.completions.create(
            model=MODEL, messages=messages, stream=True, extra_body=body
        )
        with chunks:
            answer = OpenStream(chunks)
            answer.read()
            yield answer

    def ask_side(self, number: int = 1, *, max_tokens: int = 16, **options: Any) -> Reply:
        """Send a side request: about 50 tokens, whose answer has about 10."""
        text = (
            f"Side request {number}. Write a title of 3 to 6 words for this conversation:\n\n"
            "User: The billing service is slow today. Can you find out why?"
        )
        return self.ask([{"role": "user", "content": text}], max_tokens=max_tokens, **options)

    @contextmanager
    def one_lane_left(self) -> Iterator[None]:
        """All lanes but one are busy with streams that nobody keeps.

        What the free lane is needed for cannot go elsewhere: with this, one lane or many make no
        difference to a session that is interrupted.
        """
        with ExitStack() as stack:
            for _ in range(self.profile.lanes - 1):
                stack.enter_context(self._stranger())
            yield
        self.settle()

    def registry(self) -> dict[str, Any]:
        """What the server shows of itself."""
        return dict(self._http.get(f"{self._url}/v1/registry").raise_for_status().json())

    def kept(self) -> list[dict[str, Any]]:
        """The entries that hold a sequence."""
        return [entry for entry in self.registry()["entries"] if entry["state"] == "kept"]

    def settle(self) -> dict[str, Any]:
        """Wait until nothing runs or waits, and return the registry."""
        deadline_s = time.monotonic() + _SETTLE_TIMEOUT_S
        while True:
            registry = self.registry()
            if registry["running"] == registry["queued"] == 0:
                return registry
            assert time.monotonic() < deadline_s, f"still not idle: {registry}"

    def assert_clean(self) -> None:
        """CLEAN: with everything kept given up, all is as it was before the first request."""
        self.settle()
        self._empty_lanes()
        for entry in self.kept():
            path = f"/v1/registry/entries/{entry['entry_id']}"
            self._http.delete(f"{self._url}{path}").raise_for_status()
        assert self.registry() == self._before

    def _empty_lanes(self) -> None:
        # A lane has no route to empty it; a request that retains nothing leaves it empty. All at
        # once, or the second would run on the lane that the first has emptied.
        with ExitStack() as stack:
            for _ in range(self.profile.lanes):
                stack.enter_context(self._stranger(max_tokens=256))
        self.settle()

    @contextmanager
    def _stranger(self, **options: Any) -> Iterator[None]:
        self._num_strangers += 1
        text = f"Stranger {self._num_strangers}: tell me a short story about Nora in Lisbon."
        with self.streaming([{"role": "user", "content": text}], retain_prefix=False, **options):
            yield


class Session:
    """A conversation with a nonce and a canary of its own, which echoes every answer."""

    def __init__(self, server: Server, number: int, *, num_notes: int = 24, **options: Any) -> None:
        self.server = server
        self._options = options
        self.canary = str(1000 + number * 1237 % 9000)
        notes = " ".join(_NOTES[i % len(_NOTES)] for i in range(num_notes))
        system = f"Ticket {number}. You are a helpful assistant. {notes}".rstrip()
        self.messages: list[Message] = [{"role": "system", "content": system}]
        self.opening = f"My locker code is {self.canary}."

    def begin(self, **options: Any) -> Reply:
        """The first turn, which plants the canary."""
        return self.say(self.opening, **options)

    def say(self, text: str, *, keeps_reasoning: bool = False, **options: Any) -> Reply:
        """One more turn; the conversation goes on from its answer."""
        reply = self.peek(text, **options)
        echo = reply.echo_with_reasoning if keeps_reasoning else reply.echo
        self.messages = [*self.messages_with(text), echo]
        return reply

    def peek(self, text: str, **options: Any) -> Reply:
        """Ask for an answer that the conversation does not go on from."""
        return self.server.ask(self.messages_with(text), **{**self._options, **options})

    def messages_with(self, text: str) -> list[Message]:
        """The conversation and one more user message."""
        return [*self.messages, {"role": "user", "content": text}]

    def recall(self, **options: Any) -> Reply:
        """CANARY: a turn that asks for what the first one planted, and must get it."""
        reply = self.say("Please remind me: what is my locker code?", **options)
        assert self.canary in reply.text, f"{self.canary} was planted: {reply}"
        return reply


def assert_hit(reply: Reply, previous: Reply) -> None:
    """HIT: everything up to the previous prompt's end, but for one page at most, was reused."""
    least = previous.prompt_tokens - SLACK_TOKENS
    assert least > 0, "a prompt this short tells no hit from a miss"
    assert reply.cached >= least, f"expected a hit of {least}: {reply}"


def assert_miss(reply: Reply) -> None:
    """MISS: nothing was reused."""
    assert (reply.cached, reply.path) == (0, "full_reset"), f"expected a miss: {reply}"


def assert_fallback(reply: Reply, earlier: Reply, newer: Reply) -> None:
    """FALLBACK: reused up to an earlier turn's checkpoint, and not up to the newer one's."""
    assert_hit(reply, earlier)
    assert reply.cached <= earlier.prompt_tokens < newer.prompt_tokens - SLACK_TOKENS, reply


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

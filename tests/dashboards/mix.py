"""A scripted mix of requests over HTTP: all reuse paths, both tails, evictions, and rejections.

Owns the requests, and checks the reuse path of each answer. It assumes an engine with one lane, one
entry, seven state slots, one place in the queue, and a short queue timeout.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx

from kvreg_service.reference_model import REFERENCE_MODEL_PATH

OPTIONS = (
    *("--lanes", "1", "--entries", "1", "--anchors", "3"),
    *("--queue-limit", "1", "--queue-timeout-s", "1", "--profile", "scripted"),
)
"""The options with which the engine must be started."""

# Long enough to be worth a state slot.
_HEAD = "You are a helpful assistant. " + "Please keep answers short and polite. " * 12
_BEGUN_ANSWER = {"role": "assistant", "content": "Yes, I will keep in"}
_TIMEOUT_S = 60.0

Message = dict[str, str]


def play_mix(url: str) -> None:
    """Send all requests, sequentially except where one must wait in the queue.

    Raises:
        AssertionError: An answer has another reuse path than expected.
    """
    with httpx.Client(base_url=url, timeout=_TIMEOUT_S) as http:
        client = _Client(http)
        client.use_every_reuse_path()
        client.be_rejected()


class _Client:
    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self._num_sides = 0

    def use_every_reuse_path(self) -> None:
        """Two sessions with one head, a continued answer, and side requests that displace them."""
        first, second = _opening("4921"), _opening("1234")
        text = self._ask(first, "full_reset", "none")
        self._ask_side()
        self._ask([*first, _assistant(text)], "append_frontier", "registry")
        other_text = self._ask(second, "restore_anchor", "anchor")
        self._ask([*second, _assistant(other_text)], "append_frontier", "none")
        turn = [*first, _assistant(text), _user("What is my locker code?")]
        self._ask(turn, "restore_turn_checkpoint", "registry")
        begun = [*_opening("5678"), _BEGUN_ANSWER]
        self._ask(begun, continue_final_message=True)
        self._ask(begun, "restore_response_checkpoint", "none", continue_final_message=True)
        # The slots cannot keep all of them, so that evictions happen.
        for _ in range(3):
            self._ask_side()

    def be_rejected(self) -> None:
        """One request runs endlessly, one times out in the queue, and one finds the queue full."""
        with self._running(), ThreadPoolExecutor(1) as pool:
            codes: set[str] = set()
            while codes != {"request_queue_timeout", "server_overloaded"}:
                waiting = pool.submit(self._post, [_user("I wait.")])
                while not waiting.done() and self._registry()["queued"] == 0:
                    pass
                # The waiting request may time out just before this one arrives and takes its place.
                for answer in (self._post([_user("I find no room.")]), waiting.result()):
                    codes.add(answer.json()["error"]["code"])

    def _ask_side(self) -> None:
        self._num_sides += 1
        text = f"Side request {self._num_sides}. Write a title of 3 to 6 words for this ticket."
        self._ask([_user(text)], "full_reset", "none")

    def _ask(
        self,
        messages: Sequence[Message],
        path: str | None = None,
        attach: str | None = None,
        **more: Any,
    ) -> str:
        answer = self._post(messages, **more)
        assert answer.is_success, answer.text
        body = answer.json()
        reuse = body["usage"]["kvreg"]
        assert path is None or reuse["reuse_path"] == path, (messages, body)
        assert attach is None or reuse["attach"] == attach, (messages, body)
        return str(body["choices"][0]["message"]["content"])

    def _post(self, messages: Sequence[Message], **more: Any) -> httpx.Response:
        return self._http.post("/v1/chat/completions", json=_body(messages, max_tokens=24, **more))

    def _registry(self) -> dict[str, Any]:
        return dict(self._http.get("/v1/registry").raise_for_status().json())

    @contextmanager
    def _running(self) -> Iterator[None]:
        """A streamed answer without an end token; the client disconnects on exit."""
        config = json.loads((REFERENCE_MODEL_PATH / "generation_config.json").read_text())
        endless = {str(token): -100 for token in config["eos_token_id"]}
        body = _body([_user("Tell me a long story.")], stream=True, logit_bias=endless)
        with self._http.stream("POST", "/v1/chat/completions", json=body) as answer:
            # Keep the iterator: when it is collected, the connection closes.
            lines = answer.iter_lines()
            next(lines)
            yield


def _body(messages: Sequence[Message], **more: Any) -> dict[str, Any]:
    return {"model": "kvreg-reference", "messages": messages, "temperature": 0, **more}


def _opening(code: str) -> list[Message]:
    return [{"role": "system", "content": _HEAD}, _user(f"My locker code is {code}.")]


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}

"""Clients of an engine: one long stream, constant load, or occasional short requests.

Owns the client threads and the results of their requests.
"""

from __future__ import annotations

import json
import threading
from types import TracebackType
from typing import Any

import openai
from tests.cluster.harness.release import MODEL

from kvreg_service.reference_model import REFERENCE_MODEL_PATH

_JOIN_TIMEOUT_S = 120.0
QUESTION = [{"role": "user", "content": "My locker code is 4921. Can you keep that in mind?"}]


def fixed_length_request(max_tokens: int) -> dict[str, Any]:
    """Return a request whose response has exactly ``max_tokens`` tokens."""
    config = json.loads((REFERENCE_MODEL_PATH / "generation_config.json").read_text())
    ends = config["eos_token_id"]
    banned = {str(token): -100 for token in (ends if isinstance(ends, list) else [ends])}
    return {
        "model": MODEL,
        "messages": QUESTION,
        "max_tokens": max_tokens,
        "logit_bias": banned,
        "temperature": 0,
    }


class Stream:
    """One streamed response, read in its own thread."""

    def __init__(self, client: openai.OpenAI, max_tokens: int) -> None:
        self._client = client
        self._request = fixed_length_request(max_tokens)
        self._has_begun = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self.finish_reason: str | None = None
        self.error: Exception | None = None

    def start(self) -> Stream:
        """Send the request and wait for the first chunk of the response."""
        self._thread.start()
        assert self._has_begun.wait(_JOIN_TIMEOUT_S), "no response started"
        assert self.error is None, self.error
        return self

    @property
    def is_over(self) -> bool:
        """Whether the response has ended or failed."""
        return not self._thread.is_alive()

    def finish(self) -> str | None:
        """Wait for the end and return the finish reason.

        Raises:
            Exception: The error that ended the stream.
        """
        self._thread.join(_JOIN_TIMEOUT_S)
        assert self.is_over, "the response does not end"
        if self.error is not None:
            raise self.error
        return self.finish_reason

    def _read(self) -> None:
        try:
            for chunk in self._client.chat.completions.create(stream=True, **self._request):
                if chunk.choices and chunk.choices[0].delta.content:
                    self._has_begun.set()
                if chunk.choices and chunk.choices[0].finish_reason:
                    self.finish_reason = chunk.choices[0].finish_reason
        except Exception as err:  # noqa: BLE001 - raised by finish()
            self.error = err
        finally:
            self._has_begun.set()


class Clients:
    """Clients that send requests in a loop, each in its own thread, while the block runs."""

    def __init__(
        self, client: openai.OpenAI, *, num_clients: int, max_tokens: int, pause_s: float
    ) -> None:
        self._client = client
        self._request = fixed_length_request(max_tokens)
        self._pause_s = pause_s
        self._is_ending = threading.Event()
        self._threads = [
            threading.Thread(target=self._send_requests, daemon=True) for _ in range(num_clients)
        ]
        self.num_answers = 0
        self.errors: list[Exception] = []

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Send no more requests and wait for the running ones."""
        self._is_ending.set()
        for thread in self._threads:
            thread.join(_JOIN_TIMEOUT_S)

    def _send_requests(self) -> None:
        while not self._is_ending.is_set():
            try:
                self._client.chat.completions.create(**self._request)
                self.num_answers += 1
            except openai.OpenAIError as err:
                self.errors.append(err)
                # Do not retry in a tight loop while the engine is unavailable.
                self._is_ending.wait(0.2)
            self._is_ending.wait(self._pause_s)


def constant_load(client: openai.OpenAI) -> Clients:
    """Send requests without a pause, so that an engine with one lane is never idle."""
    return Clients(client, num_clients=3, max_tokens=300, pause_s=0)


def occasional_requests(client: openai.OpenAI) -> Clients:
    """Send short requests with pauses, so that engines are idle most of the time."""
    return Clients(client, num_clients=2, max_tokens=4, pause_s=0.3)

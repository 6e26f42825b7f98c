"""Any OpenAI-compatible server, with streamed responses.

Server-side timings are read in two formats: ``timings`` of llama.cpp (``prompt_n``,
``prompt_per_second``, ``predicted_per_second``) and those of kvreg. Without either, the client's
clock is used.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
from answer import Answer, Messages, decode_rate
from bench_run import BenchFailed
from prompts import unrelated

_TIMEOUT_S = 120.0


class OverHttp:
    """One server; each request opens a new connection.

    Other backends run between two requests, long enough for a server to close an idle keep-alive
    connection.

    Raises:
        BenchFailed: no OpenAI-compatible server responds at the address.
    """

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        limits = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.Client(base_url=url, timeout=_TIMEOUT_S, limits=limits)
        try:
            models = self._client.get("/v1/models").raise_for_status().json()
        except httpx.HTTPError as error:
            raise BenchFailed(f"no OpenAI-compatible server responds at {url}: {error}") from error
        self._model = models["data"][0]["id"]

    def close(self) -> None:
        """Close the client."""
        self._client.close()

    def complete(self, messages: Messages, max_tokens: int) -> Answer:
        """Generate greedily and without thinking."""
        texts: list[str] = []
        times_s: list[float] = []
        usage: dict[str, Any] = {}
        timings: dict[str, Any] = {}
        start_s = time.perf_counter()
        with self._client.stream(
            "POST", "/v1/chat/completions", json=self._body(messages, max_tokens)
        ) as response:
            response.raise_for_status()
            for event in _events(response):
                usage = event.get("usage") or usage
                timings = event.get("timings") or timings
                for choice in event["choices"]:
                    text = choice["delta"].get("content")
                    if text:
                        texts.append(text)
                    if text or choice.get("finish_reason"):
                        times_s.append(time.perf_counter())
        num_tokens = usage.get("completion_tokens", len(texts))
        computed = _computed_tokens(usage, timings)
        ttft_s = times_s[0] - start_s
        client_rate = decode_rate(num_tokens, times_s[-1] - times_s[0])
        return Answer(
            text="".join(texts),
            prompt_tokens=usage.get("prompt_tokens"),
            computed_tokens=computed,
            completion_tokens=num_tokens,
            ttft_s=ttft_s,
            prefill_tokens_per_s=_prefill_rate(timings, computed, ttft_s),
            decode_tokens_per_s=_decode_rate(timings, num_tokens) or client_rate,
            client_decode_tokens_per_s=client_rate,
        )

    def reset_cache(self) -> None:
        """Do nothing: OpenAI's API has no request for it."""

    def _body(self, messages: Messages, max_tokens: int) -> dict[str, Any]:
        return {
            "model": self._model,
            "messages": messages,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "chat_template_kwargs": {"enable_thinking": False},
        }


class KvregOverHttp(OverHttp):
    """A kvreg server, whose kept sequences can be dropped."""

    def reset_cache(self) -> None:
        """Displace the lane's session with an unrelated request, then drop all kept entries."""
        body = self._body(unrelated(), max_tokens=1) | {"retain_prefix": False}
        self._client.post("/v1/chat/completions", json=body).raise_for_status()
        for entry in self._client.get("/v1/registry").raise_for_status().json()["entries"]:
            if entry["state"] == "kept":
                path = f"/v1/registry/entries/{entry['entry_id']}"
                self._client.delete(path).raise_for_status()


def _events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        data = line.removeprefix("data: ")
        if data != line and data != "[DONE]":
            yield json.loads(data)


def _computed_tokens(usage: dict[str, Any], timings: dict[str, Any]) -> int | None:
    if "prompt_n" in timings:
        return int(timings["prompt_n"])
    details = usage.get("prompt_tokens_details") or {}
    if "prompt_tokens" not in usage or details.get("cached_tokens") is None:
        return None
    return int(usage["prompt_tokens"]) - int(details["cached_tokens"])


def _prefill_rate(timings: dict[str, Any], computed: int | None, ttft_s: float) -> float | None:
    if "prompt_per_second" in timings:
        return float(timings["prompt_per_second"])
    if computed is None:
        return None
    return computed / float(timings.get("prefill_s", ttft_s))


def _decode_rate(timings: dict[str, Any], num_tokens: int) -> float | None:
    if "predicted_per_second" in timings:
        return float(timings["predicted_per_second"])
    if "decode_s" in timings:
        return decode_rate(num_tokens, float(timings["decode_s"]))
    return None

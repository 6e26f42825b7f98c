"""One engine over HTTP: what it serves, whether it is busy, whether a profile would fit.

Owns paths, bodies, timeouts and how a failure is classed. It never retries: the next reconcile
does.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from kvreg_operator.clients.errors import (
    OperatorError,
    PermanentError,
    TemporaryError,
    class_of,
)

# For a whole request, however slowly the body arrives. A healthy engine answers these without
# waiting for a step.
TIMEOUT_S = 5.0
# The answer about a registry with the most entries has some 2 MB.
MAX_ANSWER_BYTES = 4 << 20
RETRY_DELAY_S = 10.0
# Several periods of the readiness probe, and the time until every node has the new endpoints.
DRAIN_GRACE_S = 30
# What a header can carry and the file of API keys can hold.
_KEY = re.compile(r"[!-~]+")

_Answer = TypeVar("_Answer")


class FitAnswer(BaseModel):
    """The answer of ``/admin/fit``."""

    fits: bool
    required_bytes: int
    available_bytes: int
    short_by_bytes: int


class EffectiveProfile(BaseModel):
    """The profile in the answer of ``/v1/registry``."""

    model: str
    lanes: int
    entries: int
    current_state: Literal["keep", "drop"]
    anchors: int
    max_context_tokens: int


class Registry(BaseModel):
    """The answer of ``/v1/registry``."""

    profile: EffectiveProfile
    running: int
    queued: int
    is_draining: bool


@dataclass(frozen=True)
class EngineReport:
    """What one engine serves, and whether other settings would fit."""

    registry: Registry
    fit: FitAnswer


class NoAddress(TemporaryError):
    """The pod has no address yet, or the container of the engine has no port."""


class KeyUnreadable(PermanentError):
    """The file of the API key cannot be read, or does not hold a key."""


_REGISTRY = TypeAdapter(Registry)
_FIT = TypeAdapter(FitAnswer)


@dataclass(frozen=True)
class EngineClient:
    """Sends requests through one ``httpx.AsyncClient``, which its owner closes.

    ``api_key`` is an administrator's, if the engine has keys: other keys see only their own
    requests, so that a busy engine looks idle. ``timeout_s`` is for one request.
    """

    http: httpx.AsyncClient
    api_key: str | None = None
    timeout_s: float = TIMEOUT_S

    async def report(self, base_url: str, settings: Mapping[str, object]) -> EngineReport:
        """Return what an engine serves, and whether ``settings`` would fit.

        Raises:
            TemporaryError: It does not answer, or is overloaded.
            PermanentError: It refuses, as without an administrator's key, or it is not kvreg.
        """
        # First: it rejects a key that would not see all requests in the second answer.
        fit = await self._request("POST", f"{base_url}/admin/fit", _FIT, settings)
        registry = await self._request("GET", f"{base_url}/v1/registry", _REGISTRY)
        return EngineReport(registry, fit)

    async def try_report(self, base_url: str, settings: Mapping[str, object]) -> EngineReport | str:
        """Return the report, or why there is none."""
        try:
            return await self.report(base_url, settings)
        except OperatorError as err:
            return str(err)

    async def drain(self, base_url: str) -> None:
        """Make the engine not ready at once, and reject new requests after a grace. Idempotent.

        Raises:
            TemporaryError: It does not answer, or is overloaded.
            PermanentError: It refuses.
        """
        await self._send("POST", f"{base_url}/admin/drain?grace_s={DRAIN_GRACE_S}", None)

    async def _request(
        self,
        method: Literal["GET", "POST"],
        url: str,
        shape: TypeAdapter[_Answer],
        body: Mapping[str, object] | None = None,
    ) -> _Answer:
        content = await self._send(method, url, body)
        try:
            return shape.validate_json(content)
        except ValidationError as err:
            raise PermanentError(f"{method} {url}: not the answer of an engine: {err}") from err

    async def _send(
        self, method: Literal["GET", "POST"], url: str, body: Mapping[str, object] | None
    ) -> bytes:
        headers = {"accept-encoding": "identity"}
        if self.api_key is not None:
            headers["authorization"] = f"Bearer {self.api_key}"
        try:
            async with (
                asyncio.timeout(self.timeout_s),
                self.http.stream(
                    method, url, json=body, headers=headers, timeout=self.timeout_s
                ) as stream,
            ):
                content = await _read(stream)
        except httpx.LocalProtocolError:
            # The message of the exception contains the headers, and with them the key.
            raise PermanentError(f"{method} {url}: the request cannot be sent") from None
        except (httpx.TransportError, TimeoutError) as err:
            message = f"{method} {url}: {type(err).__name__}: {err}"
            raise TemporaryError(message, delay_s=RETRY_DELAY_S) from err
        if content is None:
            message = f"{method} {url}: compressed, or over {MAX_ANSWER_BYTES} bytes"
            raise PermanentError(message)
        if stream.is_success:
            return content
        code = _code_of(content)
        message = f"{method} {url}: {stream.status_code} {code or stream.reason_phrase}"
        if class_of(code, stream.status_code) == "permanent":
            raise PermanentError(message)
        raise TemporaryError(message, delay_s=_retry_after_s(stream))


async def _read(stream: httpx.Response) -> bytes | None:
    """Return the content, or None if it is too long, or compressed and of unknown length."""
    content = bytearray()
    if stream.headers.get("content-encoding", "identity") != "identity":
        return None
    async for part in stream.aiter_bytes():
        content += part
        if len(content) > MAX_ANSWER_BYTES:
            return None
    return bytes(content)


def _code_of(content: bytes) -> str | None:
    try:
        code = json.loads(content)["error"]["code"]
    except (ValueError, KeyError, TypeError):
        return None
    return code if isinstance(code, str) else None


def _retry_after_s(response: httpx.Response) -> float:
    text = response.headers.get("retry-after", "")
    return float(text) if text.isdecimal() else RETRY_DELAY_S


def read_key(path: Path) -> str | None:
    """Return the key in a file, or None if the file is empty.

    Raises:
        KeyUnreadable: It cannot be read, or is not a key. The message does not contain it.
    """
    try:
        text = path.read_bytes().decode("ascii").strip()
    except OSError as err:
        raise KeyUnreadable(f"the API key cannot be read: {path}: {err.strerror}") from None
    except UnicodeDecodeError:
        text = " "
    if text and _KEY.fullmatch(text) is None:
        shape = "one line of printable ASCII without spaces"
        raise KeyUnreadable(f"the API key cannot be read: {path} has to hold {shape}")
    return text or None

"""One engine, asked over HTTP: what it serves, whether it is busy, whether a profile would fit.

Owns paths, bodies, timeouts and how a failure is classed. It decides nothing from the answers, and
never asks twice by itself: the next look at the profile does.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Literal, TypeVar

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from kvreg_operator.clients.errors import PermanentError, TemporaryError, class_of
from kvreg_operator.crd.profile import CurrentState, EffectiveSettings, ProfileSpec
from kvreg_operator.plan.observation import EngineState, Fit

# For a request as a whole, however its answer drips: the engine answers these without waiting for
# a step, and whoever is slower is not well.
TIMEOUT_S = 5.0
# A registry of the most entries has some 2 MB.
MAX_ANSWER_BYTES = 4 << 20
RETRY_DELAY_S = 10.0
# Several looks of a readiness probe, and what it takes until every node knows its outcome.
DRAIN_GRACE_S = 30

_FROM_ENGINE: dict[Literal["keep", "drop"], CurrentState] = {"keep": "Keep", "drop": "Drop"}
_Answer = TypeVar("_Answer")


class _Profile(BaseModel):
    model: str
    lanes: int
    entries: int
    current_state: Literal["keep", "drop"]
    anchors: int
    max_context_tokens: int


class _Registry(BaseModel):
    profile: _Profile
    running: int
    queued: int
    is_draining: bool


_REGISTRY = TypeAdapter(_Registry)
_FIT = TypeAdapter(Fit)


@dataclass(frozen=True)
class EngineClient:
    """Asks engines through one ``httpx.AsyncClient``, which its owner closes.

    ``api_key`` is that of an administrator, where the engine has keys: anybody else is shown only
    requests of its own, and would take a busy engine for idle. ``timeout_s`` is for one request.
    """

    http: httpx.AsyncClient
    api_key: str | None = None
    timeout_s: float = TIMEOUT_S

    async def look(self, base_url: str, spec: ProfileSpec) -> EngineState:
        """Read what an engine says of itself, and of the profile ``spec``.

        Raises:
            TemporaryError: It does not answer, or not now.
            PermanentError: It refuses, as for want of an administrator's key, or it is no kvreg.
        """
        # First, because it also shows whether the key is good enough for the second answer.
        fit = await self.fit(base_url, spec)
        registry = await self._ask("GET", f"{base_url}/v1/registry", _REGISTRY)
        said = registry.profile
        return EngineState(
            effective=EffectiveSettings(
                lanes=said.lanes,
                registry_entries=said.entries,
                current_state=_FROM_ENGINE[said.current_state],
                anchors=said.anchors,
                max_context_tokens=said.max_context_tokens,
                model=said.model,
            ),
            running=registry.running,
            queued=registry.queued,
            is_draining=registry.is_draining,
            fit=fit,
        )

    async def fit(self, base_url: str, spec: ProfileSpec) -> Fit:
        """Ask whether the profile would fit the memory of the engine.

        Raises:
            TemporaryError: It does not answer, or not now.
            PermanentError: It refuses the question.
        """
        question: dict[str, object] = {
            "lanes": spec.lanes,
            "entries": spec.registry_entries,
            "current_state": spec.current_state.lower(),
        }
        if spec.anchors is not None:
            question["anchors"] = spec.anchors
        return await self._ask("POST", f"{base_url}/admin/fit", _FIT, question)

    async def drain(self, base_url: str) -> None:
        """Let the engine not be ready at once, and take nothing new after a grace. Idempotent.

        Raises:
            TemporaryError: It does not answer, or not now.
            PermanentError: It refuses.
        """
        await self._send("POST", f"{base_url}/admin/drain?grace_s={DRAIN_GRACE_S}", None)

    async def _ask(
        self,
        method: Literal["GET", "POST"],
        url: str,
        shape: TypeAdapter[_Answer],
        body: dict[str, object] | None = None,
    ) -> _Answer:
        content = await self._send(method, url, body)
        try:
            return shape.validate_json(content)
        except ValidationError as err:
            raise PermanentError(f"{method} {url}: not the answer of an engine: {err}") from err

    async def _send(
        self, method: Literal["GET", "POST"], url: str, body: dict[str, object] | None
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
            # Its text shows the headers, and with them the key.
            raise PermanentError(f"{method} {url}: the request cannot be sent") from None
        except (httpx.TransportError, TimeoutError) as err:
            message = f"{method} {url}: {type(err).__name__}: {err}"
            raise TemporaryError(message, delay_s=RETRY_DELAY_S) from err
        if content is None:
            message = f"{method} {url}: packed, or over {MAX_ANSWER_BYTES} bytes"
            raise PermanentError(message)
        if stream.is_success:
            return content
        code = _code_of(content)
        message = f"{method} {url}: {stream.status_code} {code or stream.reason_phrase}"
        if class_of(code, stream.status_code) == "permanent":
            raise PermanentError(message)
        raise TemporaryError(message, delay_s=_retry_after_s(stream))


async def _read(stream: httpx.Response) -> bytes | None:
    """Return the whole content, or None where it is too long, or packed and may be any size."""
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

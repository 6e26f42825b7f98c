"""A request for one answer, and the events that stream it.

Owns the shapes, all frozen: no behaviour, no tensors and no HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvreg_service.core.identity import DEFAULT_TENANT
from kvreg_service.core.labels import FinishReason
from kvreg_service.core.request import Admission, CachePolicy
from kvreg_service.core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from kvreg_service.chat.prompt.builder import ChatPrompt


@dataclass(frozen=True)
class GenerationRequest:
    """One answer that somebody waits for.

    ``max_tokens`` is at least 1, or None for as many as the context holds; the engine clamps it to
    what the context holds.
    """

    request_id: str
    prompt: ChatPrompt
    max_tokens: int | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: tuple[str, ...] = ()
    tenant: str = DEFAULT_TENANT
    cache_policy: CachePolicy = field(default_factory=CachePolicy)
    trace_parent: str | None = None
    """The W3C ``traceparent`` header of the call, for whoever traces."""


@dataclass(frozen=True)
class Started:
    """The first event: the prompt is computed and the first token is about to follow."""

    admission: Admission


@dataclass(frozen=True)
class SpelledToken:
    """A token as its bytes, and the natural logarithm of its probability."""

    spelling: bytes
    logprob: float


@dataclass(frozen=True)
class TokenReport:
    """What the model thought of one token of the answer, and of the most likely ones in order."""

    chosen: SpelledToken
    top: tuple[SpelledToken, ...]


@dataclass(frozen=True)
class TextDelta:
    """More text, and how many tokens were sampled for it; either may be empty or zero.

    ``reports`` has one for each of these tokens, but for the one that ends the answer, when the
    request asks for them.
    """

    text: str
    num_tokens: int
    reports: tuple[TokenReport, ...] = ()


@dataclass(frozen=True)
class Timings:
    """Where the time of one request went, in seconds. ``ttft_s`` counts from its arrival."""

    queue_s: float
    attach_s: float
    prefill_s: float
    decode_s: float
    ttft_s: float


@dataclass(frozen=True)
class Finished:
    """The last event of a request that ended well.

    ``stop_string`` is the one of the request's ``stop`` that ended it, if one did.
    """

    finish_reason: FinishReason
    completion_tokens: int
    timings: Timings
    stop_string: str | None = None


GenerationEvent = Started | TextDelta | Finished

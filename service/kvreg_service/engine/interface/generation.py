"""A request for one answer, and the events that stream it.

Owns the shapes, all frozen: no behaviour, no tensors and no HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvreg_service.core.labels import FinishReason
from kvreg_service.core.requests.identity import DEFAULT_TENANT
from kvreg_service.core.requests.request import Admission, CachePolicy
from kvreg_service.core.requests.sampling_params import SamplingParams

if TYPE_CHECKING:
    from kvreg_service.chat.prompt.builder import ChatPrompt


@dataclass(frozen=True)
class GenerationRequest:
    """One request for an answer.

    ``max_tokens`` is at least 1, or None for as many as the context holds. The engine clamps it to
    the context.
    """

    request_id: str
    prompt: ChatPrompt
    max_tokens: int | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: tuple[str, ...] = ()
    tenant: str = DEFAULT_TENANT
    cache_policy: CachePolicy = field(default_factory=CachePolicy)
    trace_parent: str | None = None
    """The W3C ``traceparent`` header of the call."""


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
    """The log probabilities of one token of the answer and of the most likely ones, in order."""

    chosen: SpelledToken
    top: tuple[SpelledToken, ...]


@dataclass(frozen=True)
class TextDelta:
    """More text, and the number of tokens sampled for it; either may be empty or zero.

    If the request wants log probabilities, ``reports`` has one for each of these tokens, except for
    the one that ends the answer.
    """

    text: str
    num_tokens: int
    reports: tuple[TokenReport, ...] = ()


@dataclass(frozen=True)
class Timings:
    """The durations of a request's phases, in seconds. ``ttft_s`` counts from its arrival."""

    queue_s: float
    attach_s: float
    prefill_s: float
    decode_s: float
    ttft_s: float


@dataclass(frozen=True)
class Finished:
    """The last event of a request that finished.

    ``stop_string`` is the one of the request's ``stop`` that ended it, if any.
    """

    finish_reason: FinishReason
    completion_tokens: int
    timings: Timings
    stop_string: str | None = None


GenerationEvent = Started | TextDelta | Finished

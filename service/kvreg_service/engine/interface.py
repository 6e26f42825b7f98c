"""The seam between whoever asks for tokens and whoever makes them: requests, events and views.

Owns the shapes that cross it, all frozen. It holds no behaviour, no tensors and no HTTP, so that
the API can be tested with a fake engine and the engine without a server.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from kvreg_service.core.identity import DEFAULT_TENANT
from kvreg_service.core.labels import (
    CurrentState,
    EntryState,
    EvictionReason,
    FinishReason,
    LaneState,
    ReusePath,
)
from kvreg_service.core.quota import Quota
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


@dataclass(frozen=True)
class FitReport:
    """Whether a profile fits the memory of this engine, by the arithmetic that reserves at start.

    ``short_by_bytes`` is 0 when it fits.
    """

    fits: bool
    required_bytes: int
    available_bytes: int
    short_by_bytes: int


@dataclass(frozen=True)
class LaneView:
    """One lane as it is now.

    ``tokens`` and ``pages`` count what its sequence holds; ``age_s`` counts from its last use.
    ``expires_in_s`` and ``pinned_for_s`` are None without a time to live or a pin.
    """

    lane_id: int
    state: LaneState
    request_id: str | None = None
    sequence_id: int | None = None
    tokens: int = 0
    checkpoint_position: int | None = None
    frontier: int | None = None
    pages: int = 0
    age_s: float = 0.0
    tenant: str | None = None
    priority: int = 0
    expires_in_s: float | None = None
    pinned_for_s: float | None = None


@dataclass(frozen=True)
class EntryView:
    """One registry entry as it is now.

    ``frontier`` is None when the entry holds no frontier state, as in a profile that drops it.
    ``value`` is the score that eviction compares; the lowest goes first.
    """

    entry_id: int
    state: EntryState
    sequence_id: int | None = None
    tokens: int = 0
    checkpoint_position: int | None = None
    frontier: int | None = None
    pages: int = 0
    bytes: int = 0
    value: float = 0.0
    idle_s: float = 0.0
    num_hits: int = 0
    tenant: str | None = None
    priority: int = 0
    expires_in_s: float | None = None
    pinned_for_s: float | None = None


@dataclass(frozen=True)
class AnchorView:
    """One anchor place as it is now.

    ``tokens`` is the length of the shared head; ``is_marked`` says that a client asked for it.
    """

    anchor_id: int
    state: EntryState
    sequence_id: int | None = None
    tokens: int = 0
    pages: int = 0
    bytes: int = 0
    value: float = 0.0
    idle_s: float = 0.0
    num_hits: int = 0
    tenant: str | None = None
    is_marked: bool = False
    pinned_for_s: float | None = None


@dataclass(frozen=True)
class Totals:
    """What was counted since the start of the engine.

    A request counts when it ends: under one of ``finished``, ``failed`` and ``cancelled``, and in
    ``requests_by_path``, or in ``never_started`` when it ended in the queue. ``cached_tokens`` and
    ``computed_tokens`` partition the prompts of ``requests_by_path``.
    """

    requests_by_path: dict[ReusePath, int]
    never_started: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    completion_tokens: int = 0
    evictions_by_reason: dict[EvictionReason, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PoolView:
    """The pages of one pool. ``free`` and ``referenced`` add up to ``total``."""

    name: str
    total: int
    free: int
    referenced: int


@dataclass(frozen=True)
class StateSlotsView:
    """The state slots of the device and how many of them hold a sequence's state."""

    total: int
    used: int


@dataclass(frozen=True)
class EffectiveProfile:
    """What this engine really runs, for whoever compares it with what was asked.

    ``profile`` is the name under which a profile was mounted, and ``profile_hash`` the digest of
    all settings that decide memory and reuse.
    """

    model: str
    profile: str | None
    profile_hash: str
    lanes: int
    entries: int
    current_state: CurrentState
    exchange: bool
    eviction: str
    max_context_tokens: int
    kv_dtype: str
    device: str
    anchors: int = 0


@dataclass(frozen=True)
class RegistrySnapshot:
    """All of the above at one moment, taken between two steps.

    In the view of one tenant, places of others are left out, pools and slots count its own, and
    ``running`` and ``queued`` are its own requests.
    """

    profile: EffectiveProfile
    lanes: tuple[LaneView, ...]
    entries: tuple[EntryView, ...]
    anchors: tuple[AnchorView, ...]
    pools: tuple[PoolView, ...]
    state_slots: StateSlotsView
    running: int
    queued: int
    is_draining: bool
    totals: Totals


class EngineProtocol(Protocol):
    """What the API needs of an engine. All methods are called from the event loop's thread."""

    @property
    def is_alive(self) -> bool:
        """False once the step loop has ended; only a restart helps then."""
        ...

    @property
    def is_ready(self) -> bool:
        """True when new requests should come: started, alive, sound and not draining."""
        ...

    @property
    def is_draining(self) -> bool:
        """True from the first call of ``drain`` on."""
        ...

    def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        """Yield one ``Started``, any number of ``TextDelta`` and one ``Finished``.

        Effects: closing the generator, or cancelling the task that waits in it, cancels the request
        wherever it is: queued, in prefill or in decode.

        Raises:
            ContextTooLong: Before the first event; the prompt leaves no room for an answer.
            Overloaded: Before the first event; the queue is full.
            QueueTimeout: Before the first event; no lane came free in time.
            Draining: Before the first event; nothing new is taken.
            EngineDown: At any time; the step loop has ended.
            RequestFailed: At any time; this request alone failed.
        """
        ...

    def require_room(self) -> None:
        """Refuse, before a prompt is built, what could not be taken anyway.

        Raises:
            Overloaded: The queue is full.
            Draining: Nothing new is taken.
            EngineDown: The step loop has ended.
        """
        ...

    def snapshot(self, tenant: str | None = None) -> RegistrySnapshot:
        """Return lanes, entries, pools and the effective profile as they are now. Never waits.

        With ``tenant`` only what is that tenant's own.
        """
        ...

    def fit(
        self, *, lanes: int, entries: int, keep_current: bool, anchors: int | None = None
    ) -> FitReport:
        """Say whether another profile would fit this engine's memory. Changes nothing.

        Without ``anchors`` it has as many as this engine has.
        """
        ...

    def drop_sequence(self, sequence_id: int, tenant: str | None = None) -> None:
        """Give up a kept sequence, wherever it rests, and its pages.

        With ``tenant`` only one of that tenant's.

        Raises:
            SessionNotFound: No such sequence is kept.
            SessionBusy: A request runs on it.
        """
        ...

    def pin(self, sequence_id: int, ttl_s: float, tenant: str | None = None) -> None:
        """Keep a sequence for ``ttl_s`` seconds from now whatever else needs its place.

        A pin replaces an earlier one, outlasts a time to live, and goes along when a request
        continues the sequence.

        Raises:
            SessionNotFound: No such sequence is kept.
            SessionBusy: A request runs on it.
            PinRefused: With it, pinned sequences would leave no entry, or no pages for a context.
        """
        ...

    def unpin(self, sequence_id: int, tenant: str | None = None) -> None:
        """Let a sequence be given up again. Idempotent.

        Raises:
            SessionNotFound: No such sequence is kept.
            SessionBusy: A request runs on it.
        """
        ...

    def set_quotas(self, quotas: Mapping[str, Quota]) -> None:
        """Replace the quotas of all tenants. A tenant without one shares what the others leave.

        Effects: what a tenant keeps beyond its new quota is given up.

        Raises:
            ConfigurationError: The quotas together are more than there is. Nothing changed then.
        """
        ...

    def drain(self, grace_s: float = 0.0) -> None:
        """Stop being ready at once, and take nothing new once ``grace_s`` seconds are over.

        Whoever sends requests needs a moment to notice. Queued and running requests still finish.
        Idempotent: of two calls the earlier end of the grace counts.
        """
        ...

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until nothing runs or is queued; False when that took longer than ``timeout_s``."""
        ...

    def close(self) -> None:
        """End the step loop and join its thread, from any thread. Requests still running fail.

        Idempotent.
        """
        ...

"""The engine as the API uses it. Tests of the API use a fake that implements it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Protocol

from kvreg_service.core.states.quota import Quota
from kvreg_service.engine.interface.generation import GenerationEvent, GenerationRequest
from kvreg_service.engine.interface.profile import FitReport
from kvreg_service.engine.interface.snapshot import RegistrySnapshot


class EngineProtocol(Protocol):
    """The engine as the API uses it. All methods are called on the event loop's thread."""

    @property
    def is_alive(self) -> bool:
        """False once the step loop has ended; only a restart helps."""
        ...

    @property
    def is_ready(self) -> bool:
        """True while new requests are taken: started, alive and not draining."""
        ...

    @property
    def is_draining(self) -> bool:
        """True from the first call of ``drain`` on."""
        ...

    def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        """Yield one ``Started``, any number of ``TextDelta`` and one ``Finished``.

        Effects: closing the generator, or cancelling the task that waits in it, cancels the
        request, whether it is queued, in prefill or in decode.

        Raises:
            ContextTooLong: Before the first event; the prompt leaves no room for an answer.
            Overloaded: Before the first event; the queue is full.
            QueueTimeout: Before the first event; no lane became free in time.
            Draining: Before the first event; new requests are refused.
            EngineDown: At any time; the step loop has ended.
            RequestFailed: At any time; this request alone failed.
        """
        ...

    def require_room(self) -> None:
        """Raise what `generate` would raise at once, before a prompt is built.

        Raises:
            Overloaded: The queue is full.
            Draining: New requests are refused.
            EngineDown: The step loop has ended.
        """
        ...

    def snapshot(self, tenant: str | None = None) -> RegistrySnapshot:
        """Return the present lanes, sessions, pools and effective profile. Never waits.

        With ``tenant`` only that tenant's own.
        """
        ...

    def fit(
        self, *, lanes: int, entries: int, keep_current: bool, anchors: int | None = None
    ) -> FitReport:
        """Return whether another profile would fit this engine's memory. Changes nothing.

        ``anchors`` defaults to the number of this engine.
        """
        ...

    def drop_session(self, session_id: int, tenant: str | None = None) -> None:
        """Free all kept states of a session.

        With ``tenant`` only a session of that tenant is found.

        Raises:
            SessionNotFound: No such session is kept.
            SessionBusy: A request runs on it.
        """
        ...

    def pin(self, session_id: int, ttl_s: float, tenant: str | None = None) -> None:
        """Protect a session from eviction for ``ttl_s`` seconds from now.

        A pin replaces an earlier one, outlasts a time to live, and stays with the session when a
        request continues it.

        Raises:
            SessionNotFound: No such session is kept.
            SessionBusy: A request runs on it.
            PinRefused: With it, pinned sessions would leave no entry, or no pages for a context.
        """
        ...

    def unpin(self, session_id: int, tenant: str | None = None) -> None:
        """Allow the eviction of a session again. Idempotent.

        Raises:
            SessionNotFound: No such session is kept.
            SessionBusy: A request runs on it.
        """
        ...

    def set_quotas(self, quotas: Mapping[str, Quota]) -> None:
        """Replace the quotas of all tenants. Tenants without one share what the others leave.

        Effects: evicts what a tenant keeps beyond its new quota.

        Raises:
            ConfigurationError: The quotas together exceed the capacity. Nothing is changed then.
        """
        ...

    def drain(self, grace_s: float = 0.0) -> None:
        """Stop being ready at once, and refuse new requests after ``grace_s`` seconds.

        Load balancers need a moment to notice. Queued and running requests still finish.
        Idempotent: of two calls the earlier end of the grace counts.
        """
        ...

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no request runs or waits; return False after ``timeout_s`` seconds."""
        ...

    def close(self) -> None:
        """End the step loop and join its thread, from any thread. Requests still running fail.

        Idempotent.
        """
        ...

"""What the API needs of an engine: the seam at which tests put a fake one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Protocol

from kvreg_service.core.quota import Quota
from kvreg_service.engine.interface.generation import GenerationEvent, GenerationRequest
from kvreg_service.engine.interface.profile import FitReport
from kvreg_service.engine.interface.snapshot import RegistrySnapshot


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

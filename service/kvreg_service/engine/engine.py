"""The engine as the rest of the process sees it: answers, snapshots, pins, drain.

Owns when it refuses new requests. Steps are run by `loop.step_loop`, whose lock guards the
scheduler; every method here holds it for microseconds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, replace

from kvreg_service.chat.echo.echo_index import EchoIndex
from kvreg_service.chat.prompt.builder import ChatPrompt
from kvreg_service.chat.tokens.tokenizer import Tokenizer
from kvreg_service.core.errors import (
    ConfigurationError,
    Draining,
    EngineDown,
    InvalidRequest,
    SessionNotFound,
)
from kvreg_service.core.ids import RequestId, SessionId
from kvreg_service.core.labels import StateKind
from kvreg_service.core.requests.identity import Identity
from kvreg_service.core.requests.ledger import TokenLedger
from kvreg_service.core.requests.request import Request, ResumePoint
from kvreg_service.core.scheduling.scheduler import Scheduler
from kvreg_service.core.states.quota import Quota
from kvreg_service.engine.interface.generation import GenerationEvent, GenerationRequest
from kvreg_service.engine.interface.observer import Observer
from kvreg_service.engine.interface.profile import EffectiveProfile, FitReport
from kvreg_service.engine.interface.snapshot import RegistrySnapshot
from kvreg_service.engine.loop.runner import Runner
from kvreg_service.engine.loop.step_loop import StepLoop
from kvreg_service.engine.options import EngineOptions
from kvreg_service.engine.output.processor import OutputProcessor
from kvreg_service.engine.reporting.observers import Observers
from kvreg_service.engine.reporting.reporter import EventReporter
from kvreg_service.engine.reservation import plan_cpu
from kvreg_service.engine.views.snapshot_builder import SnapshotBuilder
from kvreg_service.engine.views.tenant_ids import TenantIds
from kvreg_service.model.config import ModelConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineParts:
    """The parts of an engine; `engine.build.build_engine` makes them."""

    options: EngineOptions
    config: ModelConfig
    epoch: bytes
    scheduler: Scheduler
    runner: Runner
    tokenizer: Tokenizer
    echo: EchoIndex
    profile: EffectiveProfile
    observers: tuple[Observer, ...] = ()


class Engine:
    """Serves answers from one model. Implements `engine.interface.protocol.EngineProtocol`."""

    def __init__(self, parts: EngineParts) -> None:
        self._parts = parts
        self._scheduler = parts.scheduler
        observers = Observers(parts.observers)
        self._output = OutputProcessor(parts.tokenizer, parts.echo, observers)
        self._reporter = EventReporter(observers)
        self._tenant_ids = TenantIds()
        self._views = SnapshotBuilder(parts.scheduler, parts.profile, self._tenant_ids)
        self._refuses_from_s: float | None = None
        self._loop = StepLoop(parts.scheduler, parts.runner, self._output, self._reporter)

    @property
    def is_alive(self) -> bool:
        """False once the step loop has ended."""
        return self._loop.is_alive

    @property
    def is_ready(self) -> bool:
        """True while new requests are taken."""
        return self.is_alive and not self.is_draining and not self._loop.is_closing

    @property
    def is_draining(self) -> bool:
        """True from the first call of `drain` on."""
        return self._refuses_from_s is not None

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        """Yield one ``Started``, any number of ``TextDelta`` and one ``Finished``."""
        arrival_s = time.monotonic()
        identity = Identity(self._parts.epoch, request.tenant)
        # Digests of a long prompt take milliseconds that other answers must not wait for.
        ledger = await asyncio.to_thread(TokenLedger, identity, request.prompt.token_ids)
        stream = self._output.open(request, self._core_request(request, ledger, arrival_s))
        with self._loop.lock:
            self._require_service()
            self._loop.submit(stream)
        try:
            async for event in stream.read():
                yield event
        finally:
            self._loop.cancel(stream)

    def require_room(self) -> None:
        """Raise what `generate` would raise at once, before a prompt is built.

        Raises:
            Overloaded: the queue is full.
            Draining: nothing new is taken.
            EngineDown: the step loop has ended.
        """
        with self._loop.lock:
            self._require_service()
            self._scheduler.require_room()

    def snapshot(self, tenant: str | None = None) -> RegistrySnapshot:
        """Return the present state, or one tenant's own part of it."""
        with self._loop.lock:
            return self._views.build(
                time.monotonic(),
                is_draining=self.is_draining,
                totals=self._reporter.totals(tenant),
                tenant=tenant,
            )

    def fit(
        self, *, lanes: int, entries: int, keep_current: bool, anchors: int | None = None
    ) -> FitReport:
        """Return whether another profile would fit this engine's memory.

        Raises:
            InvalidRequest: the profile contradicts itself.
        """
        try:
            options = replace(
                self._parts.options,
                lanes=lanes,
                entries=entries,
                keep_current=keep_current,
                anchors=self._parts.options.anchors if anchors is None else anchors,
                max_context_tokens=self._parts.profile.max_context_tokens,
            )
        except ConfigurationError as error:
            raise InvalidRequest(error.message, param="entries") from error
        plan = plan_cpu(self._parts.config, options)
        return FitReport(
            fits=plan.fits,
            required_bytes=plan.required_bytes,
            available_bytes=plan.available_bytes,
            short_by_bytes=plan.short_by_bytes,
        )

    def drop_session(self, session_id: int, tenant: str | None = None) -> None:
        """Free all kept states of a session."""
        with self._loop.lock:
            known = self._session_id(session_id, tenant)
            self._reporter.report(self._scheduler.sessions.drop(known, tenant))

    def pin(self, session_id: int, ttl_s: float, tenant: str | None = None) -> None:
        """Protect a session from eviction for ``ttl_s`` seconds from now."""
        with self._loop.lock:
            # The loop may wait for the end of a time to live, which has just changed.
            self._loop.wake()
            known = self._session_id(session_id, tenant)
            self._scheduler.sessions.pin(known, ttl_s, time.monotonic(), tenant)
        logger.info("session %d is pinned for %g s", known, ttl_s)

    def unpin(self, session_id: int, tenant: str | None = None) -> None:
        """Allow the eviction of a session again."""
        with self._loop.lock:
            self._loop.wake()
            known = self._session_id(session_id, tenant)
            self._scheduler.sessions.unpin(known, tenant)
        logger.info("session %d is no longer pinned", known)

    def set_quotas(self, quotas: Mapping[str, Quota]) -> None:
        """Replace the quotas of all tenants."""
        with self._loop.lock:
            self._reporter.report(self._scheduler.sessions.set_quotas(quotas, time.monotonic()))

    def drain(self, grace_s: float = 0.0) -> None:
        """Refuse new requests after ``grace_s`` seconds; accepted requests still finish."""
        from_s = time.monotonic() + grace_s
        earlier_s = self._refuses_from_s
        self._refuses_from_s = from_s if earlier_s is None else min(earlier_s, from_s)

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no request runs or waits; return False after ``timeout_s`` seconds."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            with self._loop.lock:
                is_idle = not self._scheduler.has_work
            if is_idle or not self.is_alive:
                return is_idle
            if time.monotonic() >= deadline_s:
                return False
            await asyncio.sleep(0.01)

    def close(self) -> None:
        """End the step loop and join its thread. Requests still running fail."""
        self._loop.close()

    def _require_service(self) -> None:
        if not self.is_alive:
            raise EngineDown("the step loop has ended; the engine must be restarted")
        from_s = self._refuses_from_s
        if self._loop.is_closing or (from_s is not None and time.monotonic() >= from_s):
            raise Draining("the engine is draining and takes no new requests")

    def _session_id(self, shown: int, tenant: str | None) -> SessionId:
        """Return the session of a number that was shown to a tenant, or to an admin (None)."""
        if tenant is None:
            return SessionId(shown)
        own = [one for one in self._scheduler.store.sessions if one.tenant == tenant]
        found = self._tenant_ids.find(shown, tenant, [one.session_id for one in own])
        if found is None:
            raise SessionNotFound("no such session is kept")
        return found

    def _core_request(
        self, generation: GenerationRequest, ledger: TokenLedger, arrival_s: float
    ) -> Request:
        policy = generation.cache_policy
        if not self._parts.options.prefix_reuse:
            policy = replace(policy, retain=False)
        room = self._scheduler.limits.max_context_tokens
        return Request(
            request_id=RequestId(generation.request_id),
            prompt=ledger,
            max_tokens=generation.max_tokens if generation.max_tokens is not None else room,
            arrival_s=arrival_s,
            stop_token_ids=self._parts.tokenizer.eos_token_ids,
            resume_points=_resume_points(generation.prompt),
            cache_policy=policy,
            sampling=generation.sampling,
        )


def _resume_points(prompt: ChatPrompt) -> tuple[ResumePoint, ...]:
    """Return the positions of a prompt at which a later one is expected to resume."""
    boundary = prompt.boundary
    points = [ResumePoint(head.num_tokens, StateKind.HEAD, head.is_marked) for head in prompt.heads]
    for position, kind in (
        (boundary.turn, StateKind.RESPONSE if prompt.is_continuation else StateKind.TURN),
        (boundary.round, StateKind.ROUND),
        (boundary.message, StateKind.BRANCH_POINT),
    ):
        if position is not None:
            points.append(ResumePoint(position, kind))
    return tuple(points)

"""The engine: one thread that schedules, computes and commits, and the way to it from outside.

Owns the step loop, its lock and the answers in flight. The lock guards the scheduler's bookkeeping
and is never held while the model computes, so that callers wait for microseconds. Cancelling is
left to the loop, between two steps, as the state of a running request is sound only there.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, replace

from kvreg_service.chat.echo.echo_index import EchoIndex
from kvreg_service.chat.output.detokenizer import IncrementalDetokenizer
from kvreg_service.chat.prompt.builder import ChatPrompt
from kvreg_service.chat.tokens.tokenizer import Tokenizer
from kvreg_service.core.errors import (
    ConfigurationError,
    Conflict,
    Draining,
    EngineDown,
    InvalidRequest,
    KvregError,
    SessionNotFound,
    wrap_failure,
)
from kvreg_service.core.identity import Identity
from kvreg_service.core.ids import RequestId, SequenceId
from kvreg_service.core.labels import CheckpointKind
from kvreg_service.core.ledger import TokenLedger
from kvreg_service.core.policies import EvictionPolicy
from kvreg_service.core.quota import Quota
from kvreg_service.core.request import Request
from kvreg_service.core.scheduler import Scheduler
from kvreg_service.core.step import StepResult
from kvreg_service.core.value import CostModel
from kvreg_service.engine.interface.generation import GenerationEvent, GenerationRequest
from kvreg_service.engine.interface.observer import Observer
from kvreg_service.engine.interface.profile import EffectiveProfile, FitReport
from kvreg_service.engine.interface.snapshot import RegistrySnapshot
from kvreg_service.engine.loop.publisher import Publisher
from kvreg_service.engine.loop.runner import Runner
from kvreg_service.engine.options import EngineOptions
from kvreg_service.engine.output.answer import Answer, AnswerEvent
from kvreg_service.engine.output.delivery import Delivery
from kvreg_service.engine.reporting.observers import Observers
from kvreg_service.engine.reservation import plan_cpu
from kvreg_service.engine.views.snapshot_builder import SnapshotBuilder
from kvreg_service.engine.views.tenant_ids import TenantIds
from kvreg_service.model.config import ModelConfig

logger = logging.getLogger(__name__)

_PAUSE_S = 0.02


@dataclass(frozen=True)
class EngineParts:
    """Everything an engine is made of; `engine.build.build_engine` puts it together."""

    options: EngineOptions
    config: ModelConfig
    epoch: bytes
    scheduler: Scheduler
    policy: EvictionPolicy
    cost: CostModel
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
        self._publisher = Publisher(
            parts.runner, parts.tokenizer, parts.echo, Observers(parts.observers)
        )
        self._tenant_ids = TenantIds()
        self._views = SnapshotBuilder(
            parts.scheduler, parts.profile, parts.policy, parts.cost, self._tenant_ids
        )
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._delivery: Delivery[AnswerEvent] = Delivery()
        self._cancelled: list[RequestId] = []
        self._refuses_from_s: float | None = None
        self._is_closing = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._loop, name="kvreg-step-loop", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """False once the step loop has ended."""
        return self._thread.is_alive() and self._failure is None

    @property
    def is_ready(self) -> bool:
        """True when new requests should come."""
        return self.is_alive and not self.is_draining and not self._is_closing

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
        answer = Answer(
            request,
            self._core_request(request, ledger, arrival_s),
            IncrementalDetokenizer(self._parts.tokenizer, request.stop),
            self._delivery,
        )
        self._submit(answer)
        try:
            async for event in answer.stream():
                yield event
        finally:
            self._leave(answer)

    def require_room(self) -> None:
        """Refuse what could not be taken anyway, before anybody builds a prompt for it.

        Raises:
            Overloaded: the queue is full.
            Draining: nothing new is taken.
            EngineDown: the step loop has ended.
        """
        with self._lock:
            self._require_service()
            self._scheduler.require_room()

    def snapshot(self, tenant: str | None = None) -> RegistrySnapshot:
        """Return what is now, or of it what is one tenant's own."""
        with self._lock:
            return self._views.build(
                time.monotonic(),
                is_draining=self.is_draining,
                totals=self._publisher.totals(tenant),
                tenant=tenant,
            )

    def fit(
        self, *, lanes: int, entries: int, keep_current: bool, anchors: int | None = None
    ) -> FitReport:
        """Say whether another profile would fit this engine's memory.

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

    def drop_sequence(self, sequence_id: int, tenant: str | None = None) -> None:
        """Give up a kept sequence, wherever it rests, and its pages."""
        with self._lock:
            known = self._sequence_id(sequence_id, tenant)
            self._publisher.publish(self._scheduler.custody.drop(known, tenant))

    def pin(self, sequence_id: int, ttl_s: float, tenant: str | None = None) -> None:
        """Keep a sequence for ``ttl_s`` seconds from now whatever else needs its place."""
        with self._lock:
            # A time to live may now end at another moment than the one that is waited for.
            self._wake.notify()
            known = self._sequence_id(sequence_id, tenant)
            self._scheduler.custody.pin(known, ttl_s, time.monotonic(), tenant)
        logger.info("sequence %d is pinned for %g s", known, ttl_s)

    def unpin(self, sequence_id: int, tenant: str | None = None) -> None:
        """Let a sequence be given up again."""
        with self._lock:
            self._wake.notify()
            known = self._sequence_id(sequence_id, tenant)
            self._scheduler.custody.unpin(known, tenant)
        logger.info("sequence %d is no longer pinned", known)

    def set_quotas(self, quotas: Mapping[str, Quota]) -> None:
        """Replace the quotas of all tenants."""
        with self._lock:
            self._publisher.publish(self._scheduler.custody.set_quotas(quotas, time.monotonic()))

    def drain(self, grace_s: float = 0.0) -> None:
        """Take nothing new once ``grace_s`` seconds are over; what was taken still finishes."""
        asked_s = time.monotonic() + grace_s
        known_s = self._refuses_from_s
        self._refuses_from_s = asked_s if known_s is None else min(known_s, asked_s)

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until nothing runs or is queued; False when that took longer."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            with self._lock:
                is_idle = not self._scheduler.has_work
            if is_idle or not self.is_alive:
                return is_idle
            if time.monotonic() >= deadline_s:
                return False
            await asyncio.sleep(0.01)

    def close(self) -> None:
        """End the step loop and join its thread. Requests still running fail."""
        with self._lock:
            self._is_closing = True
            self._wake.notify()
        self._thread.join()

    # From the event loop to the step loop.

    def _require_service(self) -> None:
        if self._failure is not None or not self._thread.is_alive():
            raise EngineDown("the step loop has ended; the engine must be restarted")
        from_s = self._refuses_from_s
        if self._is_closing or (from_s is not None and time.monotonic() >= from_s):
            raise Draining("the engine is draining and takes no new requests")

    def _sequence_id(self, shown: int, tenant: str | None) -> SequenceId:
        """The sequence that a tenant, or who sees all, knows under this number."""
        if tenant is None:
            return SequenceId(shown)
        sequences = self._scheduler.holdings.sequences()
        own = [one for one in sequences if one.tenant == tenant]
        found = self._tenant_ids.find(shown, tenant, [one.sequence_id for one in own])
        if found is None:
            raise SessionNotFound("no such sequence is kept")
        return found

    def _core_request(
        self, asked: GenerationRequest, ledger: TokenLedger, arrival_s: float
    ) -> Request:
        boundary = asked.prompt.boundary
        position = boundary.turn
        # Where entries keep the frontier, a tool loop appends to it and the checkpoint can stay
        # where the user's next turn will need it. Where they do not, it has to move along.
        if boundary.round is not None and not self._parts.options.keep_current:
            position = boundary.round
        policy = asked.cache_policy
        if not self._parts.options.prefix_reuse:
            policy = replace(policy, retain=False)
        room = self._scheduler.limits.max_context_tokens
        return Request(
            request_id=RequestId(asked.request_id),
            prompt=ledger,
            max_tokens=asked.max_tokens if asked.max_tokens is not None else room,
            arrival_s=arrival_s,
            stop_token_ids=self._parts.tokenizer.eos_token_ids,
            boundary=position,
            boundary_kind=_boundary_kind(asked.prompt),
            cache_policy=policy,
            heads=asked.prompt.heads,
            sampling=asked.sampling,
        )

    def _submit(self, answer: Answer) -> None:
        request = answer.request
        with self._lock:
            self._require_service()
            if request.request_id in self._publisher.answers:
                raise Conflict(
                    f"request_id {request.request_id!r} is that of a request that still runs",
                    request_id=request.request_id,
                )
            self._parts.runner.begin(request)
            try:
                self._scheduler.submit(request)
            except KvregError:
                self._parts.runner.forget(request.request_id)
                raise
            self._publisher.answers[request.request_id] = answer
            self._wake.notify()

    def _leave(self, answer: Answer) -> None:
        with self._lock:
            if not answer.has_ended:
                self._cancelled.append(answer.request.request_id)
                self._wake.notify()

    # The step loop.

    def _loop(self) -> None:
        try:
            while self._wait_for_work():
                self._step()
        except BaseException as error:
            logger.critical("the step loop has ended: %r", error, exc_info=True)
            self._failure = error
        finally:
            with self._lock:
                self._publisher.fail_all(
                    EngineDown("the step loop has ended while the request ran")
                )
            self._delivery.flush(time.monotonic())

    def _wait_for_work(self) -> bool:
        with self._lock:
            while not (self._is_closing or self._cancelled or self._scheduler.has_work):
                expiry_s = self._scheduler.next_expiry_s()
                if expiry_s is None:
                    self._wake.wait()
                elif not self._wake.wait(max(0.0, expiry_s - time.monotonic())):
                    # What is given up gets into the log and the numbers although nobody asks.
                    break
            return not self._is_closing

    def _step(self) -> None:
        now_s = time.monotonic()
        with self._lock:
            for request_id in self._cancelled:
                self._publisher.publish(self._scheduler.cancel(request_id, now_s))
            self._cancelled.clear()
            plan = self._scheduler.schedule(now_s)
            if plan.has_prefill:
                # What waits for more text must not wait for a whole chunk.
                self._publisher.send_texts()
        if plan.has_prefill:
            self._delivery.flush(now_s)
        result = StepResult() if plan.is_empty else self._parts.runner.execute(plan)
        self._read_tokens(result)
        with self._lock:
            happened = self._scheduler.commit(plan, result, time.monotonic())
            self._publisher.publish(happened, plan, result)
            is_due = self._delivery.is_due(time.monotonic())
            if is_due:
                self._publisher.send_texts()
        # Before the reader hears of the end: its next turn may follow at once.
        self._publisher.remember_spellings()
        if is_due:
            self._delivery.flush(time.monotonic())
        if plan.is_empty:
            self._pause()

    def _pause(self) -> None:
        """Let a moment pass when requests wait and nothing can be done for them.

        No request may come to that; if one does, by a fault of ours, the loop must not spin.
        """
        with self._lock:
            if self._scheduler.has_work and not (self._cancelled or self._is_closing):
                self._wake.wait(_PAUSE_S)

    def _read_tokens(self, result: StepResult) -> None:
        for request_id, token in result.sampled.items():
            answer = self._publisher.answers.get(request_id)
            if answer is None:
                continue
            try:
                if answer.read_token(token, result.logprobs.get(request_id)):
                    result.stopped.add(request_id)
            except Exception as error:  # noqa: BLE001 - contained to the request that is read
                result.failed[request_id] = wrap_failure("reading a token", error)


def _boundary_kind(prompt: ChatPrompt) -> CheckpointKind:
    return CheckpointKind.RESPONSE if prompt.is_continuation else CheckpointKind.TURN

"""A scripted engine: it yields the events that a test wants, in place of a model."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field

from kvreg_service.core.errors import (
    Draining,
    EngineDown,
    KvregError,
    Overloaded,
    SessionNotFound,
)
from kvreg_service.core.ids import LaneId, SessionId
from kvreg_service.core.labels import (
    Attach,
    CurrentState,
    FinishReason,
    LaneState,
    Outcome,
    ReusePath,
    StateKind,
)
from kvreg_service.core.requests.identity import DEFAULT_TENANT
from kvreg_service.core.requests.request import Admission
from kvreg_service.core.states.quota import Quota
from kvreg_service.engine.interface.generation import (
    Finished,
    GenerationEvent,
    GenerationRequest,
    Started,
    TextDelta,
    Timings,
)
from kvreg_service.engine.interface.profile import EffectiveProfile, FitReport
from kvreg_service.engine.interface.snapshot import (
    LaneView,
    PoolView,
    RegistrySnapshot,
    SessionView,
    StateSlotsView,
    StateView,
    Totals,
)

FAKE_TIMINGS = Timings(queue_s=0.25, attach_s=0.125, prefill_s=0.5, decode_s=2.0, ttft_s=0.875)

KEPT_SESSION_ID = 7


class Gate:
    """A point at which a scripted engine waits until a test opens it. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_open = False
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._reached = threading.Event()

    async def wait(self) -> None:
        """Wait until the gate is open."""
        is_let_through = asyncio.Event()
        with self._lock:
            if self._is_open:
                return
            self._waiting.append((asyncio.get_running_loop(), is_let_through))
        self._reached.set()
        await is_let_through.wait()

    def open(self) -> None:
        """Open the gate for all current and later waiters."""
        with self._lock:
            self._is_open = True
            waiting, self._waiting = self._waiting, []
        for loop, is_let_through in waiting:
            loop.call_soon_threadsafe(is_let_through.set)

    def wait_until_reached(self, timeout_s: float = 10.0) -> None:
        """Block the calling thread until a request waits at the gate.

        Raises:
            TimeoutError: No request arrived.
        """
        if not self._reached.wait(timeout_s):
            raise TimeoutError(f"no request reached the gate within {timeout_s} s")


Step = str | TextDelta | Gate | Exception


@dataclass(frozen=True)
class Script:
    """The behavior of the engine for one request. A step is an event, a gate, or an error to raise.

    ``before`` comes before the first event, where a real engine queues and prefills; ``steps`` come
    after it. A text is an event of one token. ``stop_string`` is the one that ended the answer.
    Without ``has_end`` there is no terminal event, as in a broken engine.
    """

    steps: Sequence[Step] = ("Hello", ", ", "you.")
    before: Sequence[Gate | Exception] = ()
    finish_reason: FinishReason = FinishReason.STOP
    stop_string: str | None = None
    has_end: bool = True
    cached_tokens: int = 0
    reuse_path: ReusePath = ReusePath.FULL_RESET
    attach: Attach = Attach.NONE


FAKE_PROFILE = EffectiveProfile(
    model="fake",
    profile=None,
    profile_hash="0123456789abcdef",
    lanes=1,
    entries=2,
    current_state=CurrentState.KEEP,
    eviction="cost",
    max_context_tokens=4096,
    kv_dtype="fp32",
    device="cpu",
)


@dataclass
class FakeEngine:
    """An engine that runs scripts. It records requests and their outcomes.

    ``scripts`` are used in order, and then the default one. ``outcomes`` gets one item per request
    when it ends. Entry 0 keeps sequence 7 of tenant ``kept_tenant`` until it is dropped. ``pins``
    has the time of every pinned sequence. With ``change_error`` it can be neither dropped nor
    pinned.
    """

    scripts: list[Script] = field(default_factory=list)
    is_alive: bool = True
    is_sound: bool = True
    is_draining: bool = False
    has_grace: bool = False
    is_closed: bool = False
    is_full: bool = False
    available_bytes: int = 100

    requests: list[GenerationRequest] = field(default_factory=list)
    outcomes: queue.Queue[tuple[str, Outcome]] = field(default_factory=queue.Queue)
    has_session: bool = True
    kept_tenant: str = DEFAULT_TENANT
    pins: dict[int, float] = field(default_factory=dict)
    change_error: KvregError | None = None
    quotas: dict[str, Quota] = field(default_factory=dict)
    quota_error: KvregError | None = None
    num_running: int = 0
    _idle: Gate = field(default_factory=Gate)
    _end: Gate = field(default_factory=Gate)

    @property
    def is_ready(self) -> bool:
        """True while new requests are accepted."""
        return self.is_alive and self.is_sound and not self.is_draining

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        """Run the next script."""
        self.requests.append(request)
        script = self.scripts.pop(0) if self.scripts else Script()
        self.require_room()
        self.num_running += 1
        outcome = Outcome.CANCELLED
        try:
            for before in script.before:
                await self._pass(before)
            yield _started(request, script)
            num_tokens = 0
            for step in script.steps:
                if isinstance(step, str):
                    step = TextDelta(step, 1)
                if isinstance(step, TextDelta):
                    num_tokens += step.num_tokens
                    yield step
                else:
                    await self._pass(step)
            outcome = Outcome.FINISHED
            if script.has_end:
                yield Finished(script.finish_reason, num_tokens, FAKE_TIMINGS, script.stop_string)
        except Exception:
            outcome = Outcome.FAILED
            raise
        finally:
            self.num_running -= 1
            self._open_when_drained()
            self.outcomes.put((request.request_id, outcome))

    def require_room(self) -> None:
        """Reject requests while the engine drains or ``is_full``."""
        if self.is_draining and not self.has_grace:
            raise Draining("the engine is draining")
        if self.is_full:
            raise Overloaded("the queue is full", retry_after_s=2.0)

    def snapshot(self, tenant: str | None = None) -> RegistrySnapshot:
        """Return a registry with one lane and at most one session, as the tenant sees it."""
        is_shown = tenant in (None, self.kept_tenant)
        lane = LaneView(lane_id=0, state=LaneState.DECODE if self.num_running else LaneState.EMPTY)
        return RegistrySnapshot(
            profile=FAKE_PROFILE,
            lanes=(lane,),
            sessions=(self._kept_session(),) if self.has_session and is_shown else (),
            pools=(PoolView(name="main", total=8, free=6, referenced=2),),
            state_slots=StateSlotsView(total=6, free=4, working=0, kept=2),
            running=self.num_running,
            queued=0,
            is_draining=self.is_draining,
            totals=Totals(requests_by_path={}),
        )

    def _kept_session(self) -> SessionView:
        state = StateView(
            state_id=3,
            kind=StateKind.TURN,
            position=65,
            slot=1,
            own_bytes=100,
            num_returns=0,
            is_marked=False,
            why=None,
        )
        return SessionView(
            session_id=KEPT_SESSION_ID,
            tenant=self.kept_tenant,
            is_shared=False,
            lane=None,
            num_running=0,
            num_resumes=0,
            priority=0,
            idle_s=1.0,
            expires_in_s=None,
            pinned_for_s=self.pins.get(KEPT_SESSION_ID),
            states=(state,),
        )

    def fit(
        self, *, lanes: int, entries: int, keep_current: bool, anchors: int | None = None
    ) -> FitReport:
        """Count one byte per state slot."""
        required = 2 * lanes + (2 if keep_current else 1) * entries + (anchors or 0)
        short = max(0, required - self.available_bytes)
        return FitReport(short == 0, required, self.available_bytes, short)

    def drop_session(self, session_id: int, tenant: str | None = None) -> None:
        """Drop the session, unless ``change_error`` is set."""
        self._require_kept(session_id, tenant)
        self.has_session = False

    def pin(self, session_id: int, ttl_s: float, tenant: str | None = None) -> None:
        """Record the pin, unless ``change_error`` is set."""
        self._require_kept(session_id, tenant)
        self.pins[session_id] = ttl_s

    def unpin(self, session_id: int, tenant: str | None = None) -> None:
        """Remove the pin, unless ``change_error`` is set."""
        self._require_kept(session_id, tenant)
        self.pins.pop(session_id, None)

    def set_quotas(self, quotas: Mapping[str, Quota]) -> None:
        """Record the quotas, unless ``quota_error`` is set."""
        if self.quota_error is not None:
            raise self.quota_error
        self.quotas = dict(quotas)

    def drain(self, grace_s: float = 0.0) -> None:
        """Reject new requests, unless there is a grace period, which never ends here."""
        self.has_grace = grace_s > 0 and (self.has_grace or not self.is_draining)
        self.is_draining = True
        self._open_when_drained()

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no request runs."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Fail the requests that wait at a gate."""
        self.is_closed = True
        self._end.open()

    def _require_kept(self, session_id: int, tenant: str | None) -> None:
        is_own = self.has_session and tenant in (None, self.kept_tenant)
        if session_id != KEPT_SESSION_ID or not is_own:
            raise SessionNotFound(f"session {session_id} is not kept")
        if self.change_error is not None:
            raise self.change_error

    async def _pass(self, step: Gate | Exception) -> None:
        if isinstance(step, Exception):
            raise step
        waits = [asyncio.ensure_future(gate.wait()) for gate in (step, self._end)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self.is_closed:
            raise EngineDown("the engine was closed while the request ran")

    def _open_when_drained(self) -> None:
        if self.is_draining and self.num_running == 0:
            self._idle.open()


def _started(request: GenerationRequest, script: Script) -> Started:
    return Started(
        Admission(
            lane=LaneId(0),
            session_id=SessionId(1),
            prompt_tokens=len(request.prompt.token_ids),
            cached_tokens=script.cached_tokens,
            reuse_path=script.reuse_path,
            attach=script.attach,
            queue_s=FAKE_TIMINGS.queue_s,
        )
    )

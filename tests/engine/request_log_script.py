"""A scripted mix on a real engine that logs: every path, tail and end, and what is moved for it.

Owns the script and how the engine is held up for it. What must be in the log is in the tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from engine_bench import TIMEOUT_S, Hold

from kvreg_service.chat.conversation import Conversation
from kvreg_service.core.budget import MemoryPlan
from kvreg_service.core.errors import KvregError, RequestFailed
from kvreg_service.core.request import Admission, CachePolicy
from kvreg_service.core.step import StepPlan, StepResult
from kvreg_service.engine.build import LoadedModel, build_engine
from kvreg_service.engine.interface.generation import GenerationRequest, Started, TextDelta
from kvreg_service.engine.reservation import plan_cpu
from kvreg_service.engine_options import engine_options
from kvreg_service.settings import Settings, load_settings
from kvreg_service.telemetry.request_log.factory import open_request_log

SYSTEM = "You are a patient clerk of the archive. " * 8
WORDS = ("Ostrava", "Lisbon", "Galway", "Tampere", "archive", "ledgers")
"""Some of what is said; none of it may be in the log."""


class LoggedEngine:
    """An engine with one lane and two entries, and its request log."""

    def __init__(self, loaded: LoadedModel, path: Path, **settings: object) -> None:
        self.settings: Settings = load_settings(
            {"request_log": path, "max_context": 2048, "kv_pages": 128, "entries": 2} | settings
        )
        options = engine_options(self.settings)
        plan: MemoryPlan = plan_cpu(loaded.config, options)
        log = open_request_log(self.settings, options, plan)
        assert log is not None
        self.log = log
        self.engine, self.prompts = build_engine(options, loaded, (log,))
        self.admissions: dict[str, Admission] = {}
        self._runner = self.engine._parts.runner
        self._execute = self._runner.execute
        self._before_step: Callable[[StepPlan], None] = lambda _: None
        self._fails_next = False
        self._runner.execute = self._run_step  # type: ignore[method-assign]
        self._num_requests = 0

    def close(self) -> None:
        self.engine.close()
        assert self.log.close(TIMEOUT_S)

    def hold(self) -> Hold:
        """Stop the step loop before its next step."""
        held = Hold(lambda _: True)
        self._before_step = held
        return held

    def fail_next(self) -> None:
        """Let the model's next step fail."""
        self._fails_next = True

    def chat(self, *said: tuple[str, str], is_continued: bool = False, **more: Any) -> str:
        """Ask and return the answer's text."""
        return asyncio.run(asyncio.wait_for(self._ask(said, is_continued, **more), TIMEOUT_S))

    async def ask_in_background(self, *said: tuple[str, str]) -> asyncio.Task[str]:
        before = self.engine.snapshot()
        task = asyncio.create_task(self._ask(said, False))
        while self._num_waiting() == before.running + before.queued:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        return task

    def _num_waiting(self) -> int:
        now = self.engine.snapshot()
        return now.running + now.queued

    async def _ask(self, said: Any, is_continued: bool, **more: Any) -> str:
        self._num_requests += 1
        messages = [{"role": role, "content": text} for role, text in said]
        conversation = Conversation(messages, continue_final_message=is_continued)
        tenant = more.pop("tenant", "default")
        leave_after = more.pop("leave_after", None)
        request = GenerationRequest(
            f"chatcmpl-{self._num_requests}",
            self.prompts.build(conversation, tenant),
            more.pop("max_tokens", 12),
            tenant=tenant,
            **more,
        )
        text, num_deltas = "", 0
        events = self.engine.generate(request)
        async for event in events:
            if isinstance(event, Started):
                self.admissions[request.request_id] = event.admission
            if isinstance(event, TextDelta):
                text += event.text
                num_deltas += 1
                if num_deltas == leave_after:
                    break
        await events.aclose()
        return text

    def _run_step(self, plan: StepPlan) -> StepResult:
        self._before_step(plan)
        if self._fails_next and plan.work:
            self._fails_next = False
            error = RequestFailed("injected")
            return StepResult(is_prepared=True, failed={plan.work[0].request_id: error})
        return self._execute(plan)


def play(logged: LoggedEngine) -> None:
    """Everything that a log can tell, once."""
    system, first = ("system", SYSTEM), ("user", "My cousin lives in Ostrava. Remember that.")
    chat = logged.chat
    answer = chat(system, first)
    said = (system, first, ("assistant", answer))
    # The lane's own, with an assistant's tail.
    chat(*said, is_continued=True)
    # The same position once more: the frontier has moved on.
    chat(*said, is_continued=True)
    chat(("user", "Write a title of three words about Lisbon."))
    chat(*said, ("user", "Where does my cousin live?"))
    # Another session with the same head, which pushes something out.
    chat(system, ("user", "My aunt lives in Galway."))
    chat(
        system,
        ("user", "My uncle lives in Tampere."),
        cache_policy=CachePolicy(priority=2, ttl_s=3600.0),
    )
    chat(
        ("user", "Write a title of three words about Lisbon."),
        tenant="other",
        cache_policy=CachePolicy(retain=False),
    )
    chat(*said, ("user", "Where does my cousin live?"), cache_policy=CachePolicy(may_reuse=False))
    # An answer whose beginning is the client's, twice.
    opened = (("user", "Name a town."), ("assistant", "It is Galway"))
    chat(*opened, is_continued=True)
    chat(*opened, is_continued=True)
    chat(*said, ("tool", "the ledgers are closed"))
    chat(*said, ("user", "Hello there."), ("system", "Be brief."))
    sequence = next(one.sequence_id for one in logged.engine.snapshot().entries if one.sequence_id)
    logged.engine.drop_sequence(sequence)
    # A reader leaves: while it waits, and while its answer is written.
    asyncio.run(asyncio.wait_for(_leave_the_queue(logged), TIMEOUT_S))
    chat(("user", "Count from one to nine."), leave_after=2, max_tokens=200)
    # Failures: of a step, and of patience.
    logged.fail_next()
    with suppress(KvregError):
        chat(("user", "Will this fail?"))
    asyncio.run(asyncio.wait_for(_lose_patience(logged), TIMEOUT_S))


async def _leave_the_queue(logged: LoggedEngine) -> None:
    held = logged.hold()
    running = await logged.ask_in_background(("user", "Who is first?"))
    await held.reached()
    queued = await logged.ask_in_background(("user", "Who is second?"))
    queued.cancel()
    with suppress(asyncio.CancelledError):
        await queued
    held.release()
    await running


async def _lose_patience(logged: LoggedEngine) -> None:
    held = logged.hold()
    running = await logged.ask_in_background(("user", "Who is first?"))
    await held.reached()
    queued = await logged.ask_in_background(("user", "Who is third?"))
    logged.engine._scheduler._queue._timeout_s = 0.0
    held.release()
    with suppress(KvregError):
        await queued
    await running

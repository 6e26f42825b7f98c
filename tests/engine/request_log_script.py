"""A script of requests on a real engine with a request log: every reuse path, tail and outcome.

Defines the script and how it pauses the engine. The checks of the log are in the tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from engine_bench import TIMEOUT_S, Hold

from kvreg_service.chat.conversation import Conversation
from kvreg_service.core.memory.budget import MemoryPlan
from kvreg_service.core.errors import KvregError, RequestFailed
from kvreg_service.core.requests.request import Admission, CachePolicy
from kvreg_service.core.scheduling.step import StepPlan, StepResult
from kvreg_service.engine.build import LoadedModel, build_engine
from kvreg_service.engine.interface.generation import GenerationRequest, Started, TextDelta
from kvreg_service.engine.reservation import plan_cpu
from kvreg_service.engine_options import engine_options
from kvreg_service.settings import Settings, load_settings
from kvreg_service.telemetry.request_log.factory import open_request_log

SYSTEM = "You are a patient clerk of the archive. " * 8
WORDS = ("Ostrava", "Lisbon", "Galway", "Tampere", "archive", "ledgers")
"""Words from the message texts; the log must not contain them."""


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
        """Fail the next step that has work."""
        self._fails_next = True

    def chat(self, *messages: tuple[str, str], is_continued: bool = False, **more: Any) -> str:
        """Send the messages and return the generated text."""
        return asyncio.run(asyncio.wait_for(self._send(messages, is_continued, **more), TIMEOUT_S))

    async def send_in_background(self, *messages: tuple[str, str]) -> asyncio.Task[str]:
        before = self.engine.snapshot()
        task = asyncio.create_task(self._send(messages, False))
        while self._num_waiting() == before.running + before.queued:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        return task

    def _num_waiting(self) -> int:
        now = self.engine.snapshot()
        return now.running + now.queued

    async def _send(self, messages: Any, is_continued: bool, **more: Any) -> str:
        self._num_requests += 1
        openai_messages = [{"role": role, "content": text} for role, text in messages]
        conversation = Conversation(openai_messages, continue_final_message=is_continued)
        tenant = more.pop("tenant", "default")
        disconnect_after = more.pop("disconnect_after", None)
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
                if num_deltas == disconnect_after:
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
    """Run the script: each kind of log line occurs at least once."""
    system, first = ("system", SYSTEM), ("user", "My cousin lives in Ostrava. Remember that.")
    chat = logged.chat
    answer = chat(system, first)
    history = (system, first, ("assistant", answer))
    # Continues the sequence on the lane; the tail is an assistant message.
    chat(*history, is_continued=True)
    # The same prompt again: the frontier has advanced beyond it.
    chat(*history, is_continued=True)
    chat(("user", "Write a title of three words about Lisbon."))
    chat(*history, ("user", "Where does my cousin live?"))
    # Another session with the same head, which evicts a sequence.
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
    chat(
        *history, ("user", "Where does my cousin live?"), cache_policy=CachePolicy(may_reuse=False)
    )
    # A continuation of a partial assistant message, twice.
    opened = (("user", "Name a town."), ("assistant", "It is Galway"))
    chat(*opened, is_continued=True)
    chat(*opened, is_continued=True)
    chat(*history, ("tool", "the ledgers are closed"))
    chat(*history, ("user", "Hello there."), ("system", "Be brief."))
    sequence = next(one.sequence_id for one in logged.engine.snapshot().entries if one.sequence_id)
    logged.engine.drop_sequence(sequence)
    # A client disconnects: in the queue, and during decoding.
    asyncio.run(asyncio.wait_for(_disconnect_in_the_queue(logged), TIMEOUT_S))
    chat(("user", "Count from one to nine."), disconnect_after=2, max_tokens=200)
    # Failures: of a step, and by queue timeout.
    logged.fail_next()
    with suppress(KvregError):
        chat(("user", "Will this fail?"))
    asyncio.run(asyncio.wait_for(_time_out_in_the_queue(logged), TIMEOUT_S))


async def _disconnect_in_the_queue(logged: LoggedEngine) -> None:
    held = logged.hold()
    running = await logged.send_in_background(("user", "Who is first?"))
    await held.reached()
    queued = await logged.send_in_background(("user", "Who is second?"))
    queued.cancel()
    with suppress(asyncio.CancelledError):
        await queued
    held.release()
    await running


async def _time_out_in_the_queue(logged: LoggedEngine) -> None:
    held = logged.hold()
    running = await logged.send_in_background(("user", "Who is first?"))
    await held.reached()
    queued = await logged.send_in_background(("user", "Who is third?"))
    logged.engine._scheduler._queue._timeout_s = 0.0
    held.release()
    with suppress(KvregError):
        await queued
    await running

"""An engine that exposes its runner, memory and scheduler, for tests that compare outputs.

Builds such an engine and sends requests to it. The comparisons are in the tests.
"""

from __future__ import annotations

import asyncio
import threading
from array import array
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kvreg_service.chat.conversation import Conversation
from kvreg_service.chat.echo.echo_index import EchoIndex
from kvreg_service.chat.prompt.boundary import Boundary
from kvreg_service.chat.prompt.builder import ChatPrompt, PromptBuilder
from kvreg_service.core.admission import AdmissionRules
from kvreg_service.core.requests.identity import Epoch
from kvreg_service.core.labels import CurrentState, Tail
from kvreg_service.core.policies import build_policy
from kvreg_service.core.requests.request import Admission, Request
from kvreg_service.core.scheduling.scheduler import Scheduler, SchedulerLimits
from kvreg_service.core.sequence import Sequence as KeptSequence
from kvreg_service.core.scheduling.step import StepPlan, StepResult, Work
from kvreg_service.core.value import CostModel
from kvreg_service.engine.build import LoadedModel
from kvreg_service.engine.engine import Engine, EngineParts
from kvreg_service.engine.interface.generation import (
    Finished,
    GenerationRequest,
    Started,
    TextDelta,
)
from kvreg_service.engine.interface.profile import EffectiveProfile
from kvreg_service.engine.interface.snapshot import RegistrySnapshot
from kvreg_service.engine.loop.runner import ModelRunner
from kvreg_service.engine.options import EngineOptions
from kvreg_service.model.cache import KVPages, StateSlots
from kvreg_service.reference_model import REFERENCE_MODEL_PATH

TIMEOUT_S = 30.0
"""Far above the duration of any test; turns a deadlock into a failure."""

StepHook = Callable[[StepPlan], None]


def _pass(_: StepPlan) -> None:
    return None


@dataclass
class ObservedRunner:
    """Executes moves, then work; records both. Calls hooks before a step and after its moves."""

    inner: ModelRunner
    plans: list[StepPlan] = field(default_factory=list)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    before_step: StepHook = _pass
    after_moves: StepHook = _pass

    def begin(self, request: Request) -> None:
        self.inner.begin(request)

    def forget(self, request_id: Any) -> None:
        self.inner.forget(request_id)

    def execute(self, plan: StepPlan) -> StepResult:
        self.before_step(plan)
        self.plans.append(plan)
        moved = self.inner.execute(StepPlan(plan.preparation))
        if plan.preparation is not None:
            self.after_moves(plan)
        work = tuple(one for one in plan.work if one.request_id not in moved.failed)
        result = self.inner.execute(StepPlan(None, work))
        result.failed.update(moved.failed)
        result.is_prepared, result.prepare_s = moved.is_prepared, moved.prepare_s
        for request_id, token in result.sampled.items():
            self.tokens.setdefault(request_id, []).append(token)
        return result

    def work_of(self, request_id: str) -> list[Work]:
        return [work for plan in self.plans for work in plan.work if work.request_id == request_id]

    @property
    def batch_sizes(self) -> set[int]:
        """The numbers of requests decoded in one step."""
        return {sum(work.is_decode for work in plan.work) for plan in self.plans}


class Hold:
    """Stops the step loop before the first step that matches, until it is released."""

    def __init__(self, matches: Callable[[StepPlan], bool]) -> None:
        self._matches = matches
        self._reached = threading.Event()
        self._released = threading.Event()

    def __call__(self, plan: StepPlan) -> None:
        if not self._released.is_set() and self._matches(plan):
            self._reached.set()
            assert self._released.wait(TIMEOUT_S), "the step loop was not released"

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._reached.wait, TIMEOUT_S), "no step matched"

    def release(self) -> None:
        self._released.set()


@dataclass(frozen=True)
class Answer:
    admission: Admission
    finished: Finished
    text: str
    tokens: list[int]


class EngineBench:
    """A real engine on a real model. Benches share the model weights only."""

    def __init__(self, loaded: LoadedModel, **options: Any) -> None:
        torch.set_num_threads(1)
        self.loaded = loaded
        self.model = loaded.model
        self.options = EngineOptions(
            REFERENCE_MODEL_PATH,
            "model",
            **({"max_context_tokens": 2048, "num_pages": 128} | options),
        )
        layout, device = self.options.layout, torch.device("cpu")
        num_pages = self.options.num_pages or 0
        dtype = self.model.dtype
        self.states = StateSlots.allocate(loaded.config, layout.num_slots, dtype, device)
        self.pages = KVPages.allocate(loaded.config, num_pages, dtype, device)
        # Memory that was never written must not pass for a valid state.
        for memory in (self.states.conv, self.states.recurrent, self.pages.kv):
            memory.fill_(torch.nan)
        self.runner = ObservedRunner(
            ModelRunner(self.model, self.states, self.pages, loaded.config.vocab_size)
        )
        cost = CostModel(slot_bytes=self.states.slot_bytes, page_bytes=self.pages.page_bytes)
        policy = build_policy(self.options.eviction, cost)
        limits = SchedulerLimits(
            layout,
            num_pages,
            self.options.max_context_tokens or 0,
            self.options.prefill_chunk_tokens,
            self.options.queue_limit,
        )
        rules = AdmissionRules(policy, self.options.exchange, self.options.prefix_reuse)
        self.scheduler = Scheduler(limits, rules, cost)
        echo = EchoIndex(loaded.tokenizer)
        self.prompts = PromptBuilder(loaded.tokenizer, loaded.template, echo)
        self.engine = Engine(
            EngineParts(
                options=self.options,
                config=loaded.config,
                epoch=_EPOCH,
                scheduler=self.scheduler,
                policy=policy,
                cost=cost,
                runner=self.runner,
                tokenizer=loaded.tokenizer,
                echo=echo,
                profile=_profile(self.options),
            )
        )
        self._num_requests = 0

    def request(
        self, prompt: ChatPrompt, *, max_tokens: int = 12, **more: Any
    ) -> GenerationRequest:
        self._num_requests += 1
        name = more.pop("name", f"r{self._num_requests}")
        return GenerationRequest(name, prompt, max_tokens, **more)

    def chat(self, messages: Sequence[tuple[str, str]], **more: Any) -> GenerationRequest:
        """Return a request with the given (role, text) messages."""
        openai_messages = [{"role": role, "content": text} for role, text in messages]
        return self.request(self.prompts.build(Conversation(openai_messages)), **more)

    async def ask(self, request: GenerationRequest) -> Answer:
        admission = finished = None
        text = ""
        async for event in self.engine.generate(request):
            match event:
                case Started():
                    admission = event.admission
                case TextDelta():
                    text += event.text
                case Finished():
                    finished = event
        assert admission is not None
        assert finished is not None
        return Answer(admission, finished, text, self.runner.tokens[request.request_id])

    def run(self, *requests: GenerationRequest) -> list[Answer]:
        """Run requests one after the other in a new event loop."""

        async def all_of_them() -> list[Answer]:
            return [await self.ask(request) for request in requests]

        return self.within_limit(all_of_them())

    def run_together(self, *requests: GenerationRequest) -> list[Answer]:
        """Run requests concurrently; no step starts before all of them have arrived."""
        hold = Hold(lambda _: True)
        self.runner.before_step = hold

        async def all_of_them() -> list[Answer]:
            tasks = [asyncio.create_task(self.ask(request)) for request in requests]
            await self.until(lambda now: now.running + now.queued == len(requests))
            hold.release()
            return await asyncio.gather(*tasks)

        return self.within_limit(all_of_them())

    async def until(self, is_so: Callable[[RegistrySnapshot], bool]) -> None:
        while not is_so(self.engine.snapshot()):  # noqa: ASYNC110 - the engine has no event for this
            await asyncio.sleep(0.001)

    @staticmethod
    def within_limit(work: Coroutine[Any, Any, Any]) -> Any:
        async def limited() -> Any:
            return await asyncio.wait_for(work, TIMEOUT_S)

        return asyncio.run(limited())

    def check_at_rest(self) -> None:
        """Check that all pools are consistent and no request runs, waits or has a sampler."""
        assert self.within_limit(self.engine.wait_idle(TIMEOUT_S))
        self.scheduler.check_invariants()
        assert self.scheduler.num_running == self.scheduler.queue_length == 0
        assert not self.runner.inner._samplers

    def kept_at(self, entry: int) -> KeptSequence:
        return self.scheduler.holdings.registry.get(entry)

    def resting_on(self, lane: int) -> KeptSequence:
        sequence = self.scheduler.holdings.lanes[lane].kept
        assert sequence is not None
        return sequence

    def state(self, slot: int) -> tuple[Tensor, Tensor]:
        """Return a copy of the conv and recurrent states in a slot."""
        return self.states.conv[:, slot].clone(), self.states.recurrent[:, slot].clone()


def token_prompt(
    ids: Sequence[int], boundary: int | None = None, *, is_continuation: bool = False
) -> ChatPrompt:
    """Return a prompt of raw token ids, for models without a text vocabulary."""
    return ChatPrompt(array("i", ids), Boundary(boundary, None), Tail.USER, False, is_continuation)


def is_same_state(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> bool:
    """Return whether two states are bitwise equal."""
    return all(
        torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in zip(a, b, strict=True)
    )


_EPOCH = Epoch("weights", "tokenizer", "template", "kv", "rope", "none", 1).digest()


def _profile(options: EngineOptions) -> EffectiveProfile:
    return EffectiveProfile(
        model=options.model_name,
        profile=None,
        profile_hash="",
        lanes=options.lanes,
        entries=options.entries,
        current_state=CurrentState.KEEP if options.keep_current else CurrentState.DROP,
        exchange=options.exchange,
        eviction=options.eviction,
        max_context_tokens=options.max_context_tokens or 0,
        kv_dtype=options.kv_dtype.value,
        device=options.device,
    )

"""Admission planning with a full registry of long sequences. Runs the core without a model.

R = 64 entries hold sequences of 200,000 tokens that share prefixes of many lengths, so that digests
match far into the prompt and the planner has to distinguish many candidates.
"""

from __future__ import annotations

import random
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator

from bench_run import BenchFailed, BenchRun
from report import Section, Table, goal_text
from samples import Samples

from kvreg_service.core.admission import AdmissionPlanner, AdmissionRules
from kvreg_service.core.requests.identity import Identity
from kvreg_service.core.ids import EntryId, RequestId, pages_for
from kvreg_service.core.labels import ReusePath
from kvreg_service.core.requests.ledger import TokenLedger
from kvreg_service.core.policies import CostPolicy
from kvreg_service.core.requests.request import Request
from kvreg_service.core.scheduling.scheduler import Scheduler, SchedulerLimits
from kvreg_service.core.memory.slots import SlotLayout
from kvreg_service.core.scheduling.step import StepPlan, StepResult
from kvreg_service.core.value import CostModel

_LANES = (1, 8)
_ENTRIES = 64
_PROMPT_TOKENS = 200_000
_SIDE_TOKENS = 50
_BRANCH_AT = 100_000
_SHARED_STEP_TOKENS = 3_000
_TAIL_TOKENS = 40
_VOCABULARY = 150_000
_SAMPLES_PER_ROUND = 10
_DECODE_STEPS = 50
_PLAN_GOAL_S = 1e-3
_DECODE_GOAL_S = 0.35e-3

_METHOD = f"""\
Registries of R = {_ENTRIES} entries, full of sequences of {_PROMPT_TOKENS:,} tokens that share
prefixes of 0 to {(_ENTRIES - 1) * _SHARED_STEP_TOKENS:,} tokens, policy `cost`, exchange on.
*Return*: the next turn of a kept sequence, which is exchanged with the lane's. *Branch*: a
prompt of {_PROMPT_TOKENS:,} tokens that differs from the kept ones from token {_BRANCH_AT:,} or
before, a full reset. *Side request*: {_SIDE_TOKENS} tokens. *Plan* is `AdmissionPlanner`, *step*
the whole `schedule()` call that admits, including its page moves. *Digests* is the hashing of the
prompt on arrival, outside the step loop. The second table is the core's share of a decode step,
`schedule()` and `commit()`, while every lane decodes after {_PROMPT_TOKENS:,} tokens."""

_Stages = dict[str, list[float]]


def run(bench: BenchRun) -> Section:
    """Measure each kind of request at each number of lanes."""
    task = bench.progress.add_task("planning", total=len(_LANES) * (bench.rounds + 1))
    admissions: list[tuple[str, ...]] = []
    decodes: list[tuple[str, ...]] = []
    data: dict[str, object] = {}
    for lanes in _LANES:
        core = _FullCore(lanes)
        bench.progress.advance(task)
        times: dict[str, _Stages] = defaultdict(lambda: defaultdict(list))
        steps_s: list[float] = []
        for _ in range(bench.rounds):
            for kind, prompts in core.prompts.items():
                for tokens in prompts(_SAMPLES_PER_ROUND):
                    for stage, seconds in core.admit(kind, tokens).items():
                        times[kind][stage].append(seconds)
            steps_s += core.decode(_DECODE_STEPS)
            bench.progress.advance(task)
        for kind, stages in times.items():
            samples = {stage: Samples.of(values) for stage, values in stages.items()}
            admissions.append((f"C = {lanes}, {kind}", *_cells(samples)))
            data[f"C={lanes} {kind}"] = {name: one.as_json() for name, one in samples.items()}
        step = Samples.of(steps_s)
        decodes.append((f"C = {lanes}", *_timed_cells(step, 3, _DECODE_GOAL_S, "<= 0.35 ms")))
        data[f"C={lanes} decode step"] = step.as_json()
    columns = ("", "plan, ms", "p99", "goal", "step, ms", "p99", "digests, ms")
    tables = [
        Table("Time to admit a request", columns, admissions),
        Table("The core's share of a decode step", ("", "step, ms", "p99", "goal"), decodes),
    ]
    return Section("planning", _METHOD, tables, data)


def _cells(samples: dict[str, Samples]) -> Iterator[str]:
    yield from _timed_cells(samples["plan"], 2, _PLAN_GOAL_S, "<= 1 ms")
    yield samples["step"].text(scale=1e3, digits=2)
    yield f"{samples['step'].percentile(99) * 1e3:.2f}"
    yield samples["digests"].text(scale=1e3, digits=2)


def _timed_cells(samples: Samples, digits: int, goal_s: float, goal: str) -> Iterator[str]:
    yield samples.text(scale=1e3, digits=digits)
    yield f"{samples.percentile(99) * 1e3:.{digits}f}"
    yield goal_text(samples.median <= goal_s, goal)


class _FullCore:
    """A scheduler with a full registry and full lanes, and prompts for each kind of request."""

    def __init__(self, lanes: int) -> None:
        self._random = random.Random(lanes)
        self._shared = self._draw(_PROMPT_TOKENS)
        self._identity = Identity(b"bench", "default")
        self._rules = AdmissionRules(CostPolicy(CostModel(slot_bytes=1 << 26, page_bytes=1 << 20)))
        limits = SchedulerLimits(
            layout=SlotLayout(lanes, _ENTRIES),
            num_pages=(lanes + _ENTRIES + 4) * pages_for(_PROMPT_TOKENS + 1_000),
            max_context_tokens=2 * _PROMPT_TOKENS,
        )
        self._scheduler = Scheduler(limits, self._rules, CostModel())
        self._now_s = 0.0
        self._num_requests = 0
        self._next_entry = 0
        self.prompts: dict[str, Callable[[int], Iterator[array[int]]]] = {
            "return": self._returning,
            "branch": self._branching,
            "side request": self._unrelated,
        }
        for index in range(lanes + _ENTRIES):
            self._fill(self._shared[: index % _ENTRIES * _SHARED_STEP_TOKENS])

    def admit(self, kind: str, tokens: array[int]) -> dict[str, float]:
        """Plan, admit and finish one request; return the seconds of each stage.

        Raises:
            BenchFailed: the reuse path is not the expected one.
        """
        start_s = time.perf_counter()
        request = self._request(tokens)
        digests_s = time.perf_counter() - start_s
        start_s = time.perf_counter()
        plan = AdmissionPlanner(self._scheduler.holdings, self._rules, self._now_s).plan(request)
        plan_s = time.perf_counter() - start_s
        expected = ReusePath.RESTORE_TURN_CHECKPOINT if kind == "return" else ReusePath.FULL_RESET
        if plan is None or plan.reuse_path is not expected:
            raise BenchFailed(
                f"the plan of a {kind} has reuse path {plan.reuse_path if plan else None}"
            )
        return {"digests": digests_s, "plan": plan_s, "step": self._run(request)}

    def decode(self, num_steps: int) -> list[float]:
        """Decode a kept sequence on every lane; return the core's seconds of each step."""
        num_lanes = len(self._scheduler.holdings.lanes)
        # The first request must still decode when the last one has started to.
        max_tokens = num_steps + num_lanes + 1
        for tokens in list(self._returning(num_lanes)):
            self._scheduler.submit(self._request(tokens, max_tokens))
        steps_s = []
        while self._scheduler.has_work:
            start_s = time.perf_counter()
            plan = self._scheduler.schedule(self._now_s)
            self._commit(plan)
            step_s = time.perf_counter() - start_s
            if sum(work.is_decode for work in plan.work) == num_lanes:
                steps_s.append(step_s)
        return steps_s

    def _run(self, request: Request) -> float:
        """Run a request to its end; return the seconds of the call that admitted it."""
        self._scheduler.submit(request)
        start_s = time.perf_counter()
        plan = self._scheduler.schedule(self._now_s)
        step_s = time.perf_counter() - start_s
        while True:
            self._commit(plan)
            if not self._scheduler.has_work:
                return step_s
            plan = self._scheduler.schedule(self._now_s)

    def _commit(self, plan: StepPlan) -> None:
        sampled = {work.request_id: 1 for work in plan.work if work.samples}
        self._now_s += 0.01
        self._scheduler.commit(plan, StepResult(sampled=sampled), self._now_s)

    def _request(self, tokens: array[int], max_tokens: int = 1) -> Request:
        self._num_requests += 1
        return Request(
            request_id=RequestId(f"bench-{self._num_requests}"),
            prompt=TokenLedger(self._identity, tokens),
            max_tokens=max_tokens,
            arrival_s=self._now_s,
            boundary=len(tokens) - 4,
        )

    def _fill(self, shared: array[int]) -> None:
        self._run(self._request(shared + self._draw(_PROMPT_TOKENS - len(shared))))

    def _returning(self, count: int) -> Iterator[array[int]]:
        for _ in range(count):
            sequence = self._scheduler.holdings.registry.get(self._take_entry())
            assert sequence.checkpoint is not None, "the sequence has no checkpoint"
            known = sequence.ledger.tokens[: sequence.checkpoint.position]
            yield known + self._draw(_TAIL_TOKENS)

    def _branching(self, count: int) -> Iterator[array[int]]:
        for _ in range(count):
            yield self._shared[:_BRANCH_AT] + self._draw(_PROMPT_TOKENS - _BRANCH_AT)

    def _unrelated(self, count: int) -> Iterator[array[int]]:
        for _ in range(count):
            yield self._draw(_SIDE_TOKENS)

    def _take_entry(self) -> EntryId:
        kept = [entry for entry, _ in self._scheduler.holdings.registry]
        self._next_entry += 1
        return kept[self._next_entry % len(kept)]

    def _draw(self, count: int) -> array[int]:
        return array("i", self._random.choices(range(_VOCABULARY), k=count))

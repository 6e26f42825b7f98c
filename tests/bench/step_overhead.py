"""Python time outside of the model per decode step, with the real engine.

Owns a model wrapper that records the start and end of each call. The time between two decode calls
is the overhead: sampling, reading tokens, commit, publishing to clients, cancellations, schedule,
and the time in which the clients' thread holds the interpreter.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from dataclasses import dataclass, replace
from typing import Any, cast

from bench_run import BenchFailed, BenchRun
from in_process import InProcess
from prompts import LONG_ANSWER_TOKENS, fresh_nonce, long_answer
from report import Section, Table, goal_text
from samples import Samples

from kvreg_service.engine.build import load_model
from kvreg_service.engine.options import EngineOptions
from kvreg_service.model.hybrid import HybridModel
from kvreg_service.reference_model import REFERENCE_MODEL_PATH

_LANES = (1, 2, 8)
_GOAL_S = 0.35e-3

_METHOD = """\
C concurrent requests with prompts of 1,282 tokens and outputs of about 150, with one client each in
the same process. *Outside* is the time between the end of one decode call of the model and the
start of the next, while all C lanes decode: sampling, commit, publishing, schedule, and waiting for
the clients' thread. *CPU time* is the processor time of the step loop's thread during that time."""


@dataclass(frozen=True)
class _Call:
    """One call of the model, with wall time and CPU time of its thread.

    A prefill has ``num_decoding`` 0.
    """

    num_decoding: int
    start_s: float
    end_s: float
    start_cpu_s: float
    end_cpu_s: float


class _TimedModel:
    """A model wrapper that records its calls."""

    def __init__(self, model: HybridModel) -> None:
        self._model = model
        self.calls: list[_Call] = []

    def prefill(self, *arguments: Any) -> Any:
        """Call the model."""
        return self._timed(self._model.prefill, 0, *arguments)

    def decode(self, token_ids: Any, *arguments: Any) -> Any:
        """Call the model."""
        return self._timed(self._model.decode, len(token_ids), token_ids, *arguments)

    def _timed(self, call: Any, num_decoding: int, *arguments: Any) -> Any:
        start_cpu_s, start_s = time.thread_time(), time.perf_counter()
        result = call(*arguments)
        end_s, end_cpu_s = time.perf_counter(), time.thread_time()
        self.calls.append(_Call(num_decoding, start_s, end_s, start_cpu_s, end_cpu_s))
        return result


def run(bench: BenchRun) -> Section:
    """Measure each number of lanes."""
    options = EngineOptions(REFERENCE_MODEL_PATH, "reference")
    loaded = load_model(options)
    task = bench.progress.add_task("step overhead", total=len(_LANES) * bench.rounds)
    rows = []
    data = {}
    for lanes in _LANES:
        model = _TimedModel(loaded.model)
        timed = replace(loaded, model=cast(HybridModel, model))
        with contextlib.closing(InProcess(replace(options, lanes=lanes), timed)) as engine:
            for _ in range(bench.rounds):
                prompts = [long_answer(fresh_nonce()) for _ in range(lanes)]
                engine.complete_all(prompts, LONG_ANSWER_TOKENS)
                bench.progress.advance(task)
        steps = _steps(model.calls, lanes)
        outside = Samples.of(after.start_s - before.end_s for before, after in steps)
        computing = Samples.of(after.start_cpu_s - before.end_cpu_s for before, after in steps)
        inside = Samples.of(after.end_s - after.start_s for _, after in steps)
        rows.append(
            (
                f"C = {lanes}",
                outside.text(scale=1e3, digits=3),
                f"{outside.percentile(99) * 1e3:.3f}",
                goal_text(outside.median <= _GOAL_S, "<= 0.35 ms"),
                computing.text(scale=1e3, digits=3),
                inside.text(scale=1e3, digits=3),
            )
        )
        data[f"C={lanes}"] = {
            "outside_s": outside.as_json(),
            "outside_cpu_s": computing.as_json(),
            "model_s": inside.as_json(),
        }
    columns = ("", "outside, ms", "p99", "goal", "CPU time, ms", "model, ms")
    return Section("step_overhead", _METHOD, [Table("One decode step", columns, rows)], data)


def _steps(calls: list[_Call], lanes: int) -> list[tuple[_Call, _Call]]:
    """Return pairs of consecutive calls that both decode all lanes.

    Raises:
        BenchFailed: there are none.
    """
    steps = [
        (before, after)
        for before, after in itertools.pairwise(calls)
        if before.num_decoding == after.num_decoding == lanes
    ]
    if not steps:
        raise BenchFailed(f"no two steps in a row decoded {lanes} sequences")
    return steps

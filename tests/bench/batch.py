"""Decode throughput at several batch sizes, compared with batch size 1."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from dataclasses import replace

from bench_run import BenchRun
from in_process import InProcess, Stream
from prompts import LONG_ANSWER_TOKENS, fresh_nonce, long_answer
from report import Section, Table
from samples import Samples, ratio

from kvreg_service.engine.build import load_model
from kvreg_service.engine.options import EngineOptions
from kvreg_service.reference_model import REFERENCE_MODEL_PATH

_BATCHES = (1, 2, 4, 8)

_METHOD = """\
B concurrent requests with prompts of 1,282 tokens and outputs of about 150, on one engine with 8
lanes. The rate counts tokens that clients receive while all B requests decode; batch sizes
alternate within each round."""


def run(bench: BenchRun) -> Section:
    """Measure each batch size."""
    options = EngineOptions(REFERENCE_MODEL_PATH, "reference")
    task = bench.progress.add_task("batch", total=bench.rounds + 1)
    rates: dict[int, list[float]] = defaultdict(list)
    engine = InProcess(replace(options, lanes=max(_BATCHES)), load_model(options))
    with contextlib.closing(engine):
        for number in range(bench.rounds + 1):
            for size in _BATCHES:
                prompts = [long_answer(fresh_nonce()) for _ in range(size)]
                rate = _decode_rate(engine.complete_all(prompts, LONG_ANSWER_TOKENS))
                # The first round warms up.
                if number:
                    rates[size].append(rate)
            bench.progress.advance(task)
    samples = {size: Samples.of(values) for size, values in rates.items()}
    rows = [
        (
            f"B = {size}",
            one.text(),
            f"{one.median / size:,.0f}",
            f"{ratio(one, samples[1]):.2f} x",
        )
        for size, one in samples.items()
    ]
    columns = ("", "total, tok/s", "per request, tok/s", "of B = 1")
    return Section(
        name="batch",
        method=_METHOD,
        tables=[Table("Decode in a batch", columns, rows)],
        data={f"B={size}": one.as_json() for size, one in samples.items()},
    )


def _decode_rate(streams: list[Stream]) -> float:
    """Return tokens per second during the time in which all requests decode."""
    start_s = max(stream.token_times_s[0] for stream in streams)
    end_s = min(stream.token_times_s[-1] for stream in streams)
    num_tokens = sum(
        start_s < time_s <= end_s for stream in streams for time_s in stream.token_times_s
    )
    return num_tokens / (end_s - start_s)

"""Compares transformers, a peer server and kvreg on the same conversations.

Measures the cost of a turn after a side request, and the rates of prefill and decode. Backends
alternate within each round, and each round starts with another one, so that drift of the machine
affects all of them equally.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from answer import Answer, Backend, Messages
from bench_run import BenchRun
from in_process import InProcess
from kvreg_server import running_kvreg
from oracle import Oracle
from over_http import KvregOverHttp, OverHttp
from prompts import LONG_ANSWER_TOKENS, SHORT_ANSWER_TOKENS, Session, fresh_nonce, long_answer
from report import Section, Table, goal_text
from samples import Samples, ratio

from kvreg_service.engine.options import EngineOptions
from kvreg_service.reference_model import REFERENCE_MODEL_PATH

_METHOD = """\
Every session begins with a unique nonce and has a side request between its two requests. Prompts
have about 1,300 tokens. *Cold* is the session's first request. The rates are taken from a cold
prompt of 1,282 tokens with an answer of 151, as the backend reports them and, for decode, also by
the client's clock. TTFT is by the client's clock, from messages to first text. transformers is the
oracle model in this process with its cache; it prefills each prompt completely. The peer and kvreg
over HTTP are separate processes. All run fp32 weights on one thread. kvreg has its defaults, one
lane and one entry; before each session the kept state of the previous one is dropped, because the
policy would not evict it for some seconds."""


@dataclass(frozen=True)
class Shape:
    """How the second request continues the first, and the most tokens that it may compute."""

    name: str
    goal_tokens: int
    messages: Callable[[Session, str], Messages]


_PREFILL_GOAL = 1.0
_DECODE_GOAL = 8.0
"""Multiples of transformers' rates."""

_SHAPES = (
    Shape("user tail", 39, lambda session, answer: session.with_user_tail(answer)),
    Shape("assistant tail", 9, lambda session, answer: session.with_assistant_tail(answer)),
    Shape("regeneration", 4, lambda session, _: session.first),
)


@dataclass
class Results:
    """All completions of one backend."""

    cold: list[Answer] = field(default_factory=list)
    returns: dict[str, list[Answer]] = field(default_factory=lambda: defaultdict(list))
    long: list[Answer] = field(default_factory=list)


def run(bench: BenchRun) -> Section:
    """Measure all available backends."""
    with _backends(bench) as backends:
        results = {one.name: Results() for one in backends}
        task = bench.progress.add_task("comparison", total=bench.rounds + 1)
        # The first round is a warm-up and is not measured.
        _run_round(backends, {one.name: Results() for one in backends})
        bench.progress.advance(task)
        for number in range(bench.rounds):
            first = number % len(backends)
            _run_round(backends[first:] + backends[:first], results)
            bench.progress.advance(task)
    names = list(results)
    return Section(
        name="comparison",
        method=f"{_METHOD} Rounds: {bench.rounds}.",
        tables=[
            _tokens_table(results),
            _ttft_table(results),
            _rates_table(results, names[0]),
            *([_peer_table(results, bench.peer_name)] if bench.peer_url else []),
        ],
        data={name: _as_json(one) for name, one in results.items()},
    )


@contextlib.contextmanager
def _backends(bench: BenchRun) -> Iterator[list[Backend]]:
    with contextlib.ExitStack() as stack:
        backends: list[Backend] = [Oracle(REFERENCE_MODEL_PATH)]
        if bench.peer_url:
            peer = OverHttp(bench.peer_name, bench.peer_url)
            backends.append(stack.enter_context(contextlib.closing(peer)))
        engine = InProcess(EngineOptions(REFERENCE_MODEL_PATH, "reference"))
        backends.append(stack.enter_context(contextlib.closing(engine)))
        server = KvregOverHttp("kvreg over HTTP", stack.enter_context(running_kvreg()))
        backends.append(stack.enter_context(contextlib.closing(server)))
        yield backends


def _run_round(backends: list[Backend], results: dict[str, Results]) -> None:
    for shape in _SHAPES:
        session = Session(fresh_nonce())
        for one in backends:
            one.reset_cache()
            cold = one.complete(session.first, SHORT_ANSWER_TOKENS)
            one.complete(session.side_request, SHORT_ANSWER_TOKENS)
            back = one.complete(shape.messages(session, cold.text), SHORT_ANSWER_TOKENS)
            results[one.name].cold.append(cold)
            results[one.name].returns[shape.name].append(back)
    messages = long_answer(fresh_nonce())
    for one in backends:
        results[one.name].long.append(one.complete(messages, LONG_ANSWER_TOKENS))


def _tokens_table(results: dict[str, Results]) -> Table:
    rows = []
    for shape in _SHAPES:
        for name, one in results.items():
            answers = one.returns[shape.name]
            computed = _known(answer.computed_tokens for answer in answers)
            is_kvreg = name.startswith("kvreg")
            is_met = computed is not None and max(computed.values) <= shape.goal_tokens
            rows.append(
                (
                    f"{shape.name}, {name}",
                    _counts(_known(answer.prompt_tokens for answer in answers)),
                    _counts(computed),
                    goal_text(is_met, f"<= {shape.goal_tokens}") if is_kvreg else "",
                )
            )
    columns = ("return after a side request", "prompt", "computed", "goal")
    return Table("Tokens computed on return", columns, rows)


def _ttft_table(results: dict[str, Results]) -> Table:
    rows = []
    for name, one in results.items():
        cold = _ttft(one.cold)
        row = [name, cold.text(scale=1e3, digits=1)]
        for shape in _SHAPES:
            back = _ttft(one.returns[shape.name])
            row += [back.text(scale=1e3, digits=1), _ratio_text(cold, back)]
        rows.append(row)
    columns = ["", "cold, ms"]
    for shape in _SHAPES:
        columns += [f"{shape.name}, ms", "faster than cold"]
    return Table("TTFT by the client's clock", columns, rows)


def _rates_table(results: dict[str, Results], base: str) -> Table:
    base_prefill, base_decode, _ = _rates(results[base])
    rows = []
    for name, one in results.items():
        prefill, decode, client = _rates(one)
        is_kvreg = name.startswith("kvreg")
        rows.append(
            (
                name,
                _text(prefill),
                _ratio_text(prefill, base_prefill, _PREFILL_GOAL if is_kvreg else None),
                _text(decode),
                _ratio_text(decode, base_decode, _DECODE_GOAL if is_kvreg else None),
                _text(client),
            )
        )
    columns = (
        "", "prefill, tok/s", f"of {base}", "decode, tok/s", f"of {base}",
        "decode by the client's clock, tok/s",
    )  # fmt: skip
    return Table("Prefill of 1,282 tokens, decode behind them", columns, rows)


def _peer_table(results: dict[str, Results], peer_name: str) -> Table:
    peer = results[peer_name]
    peer_prefill, peer_decode, peer_client = _rates(peer)
    rows = []
    for name, one in results.items():
        if name == peer_name:
            continue
        prefill, decode, client = _rates(one)
        row = [
            name,
            _ratio_text(prefill, peer_prefill),
            _ratio_text(decode, peer_decode),
            _ratio_text(client, peer_client),
            _ratio_text(_ttft(peer.cold), _ttft(one.cold)),
        ]
        for shape in _SHAPES:
            peer_back, back = peer.returns[shape.name], one.returns[shape.name]
            row.append(_ratio_text(_ttft(peer_back), _ttft(back)))
        rows.append(row)
    columns = [
        "", "prefill", "decode", "decode, client's clock", "TTFT cold",
        *(f"TTFT {shape.name}" for shape in _SHAPES),
    ]  # fmt: skip
    return Table(f"Speed as a multiple of {peer_name}; more than 1 is faster", columns, rows)


def _rates(one: Results) -> tuple[Samples | None, Samples | None, Samples | None]:
    return (
        _known(answer.prefill_tokens_per_s for answer in one.long),
        _known(answer.decode_tokens_per_s for answer in one.long),
        _known(answer.client_decode_tokens_per_s for answer in one.long),
    )


def _ttft(answers: list[Answer]) -> Samples:
    return Samples.of(answer.ttft_s for answer in answers)


def _text(samples: Samples | None) -> str:
    return samples.text() if samples else "unknown"


def _ratio_text(
    numerator: Samples | None, denominator: Samples | None, goal: float | None = None
) -> str:
    if numerator is None or denominator is None:
        return ""
    found = ratio(numerator, denominator)
    text = f"{found:.2f} x"
    return text if goal is None else f"{text}, goal {goal_text(found >= goal, f'{goal:g} x')}"


def _known(values: Iterable[float | None]) -> Samples | None:
    known = [value for value in values if value is not None]
    return Samples.of(known) if known else None


def _counts(samples: Samples | None) -> str:
    if samples is None:
        return "unknown"
    low, high = min(samples.values), max(samples.values)
    return f"{low:,.0f}" if low == high else f"{low:,.0f} .. {high:,.0f}"


def _as_json(one: Results) -> dict[str, object]:
    prefill, decode, client = _rates(one)
    return {
        "prefill_tokens_per_s": prefill.as_json() if prefill else None,
        "decode_tokens_per_s": decode.as_json() if decode else None,
        "client_decode_tokens_per_s": client.as_json() if client else None,
        "cold_ttft_s": _ttft(one.cold).as_json(),
        "returns": {
            name: {
                "ttft_s": _ttft(answers).as_json(),
                "prompt_tokens": [answer.prompt_tokens for answer in answers],
                "computed_tokens": [answer.computed_tokens for answer in answers],
            }
            for name, answers in one.returns.items()
        },
    }

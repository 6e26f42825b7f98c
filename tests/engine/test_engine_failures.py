"""A failure affects its own request only: sessions stay reusable and pools consistent."""

from __future__ import annotations

import asyncio

import pytest
import torch
from engine_bench import EngineBench, token_prompt

from kvreg_service.core.errors import KvregError, RequestFailed
from kvreg_service.core.requests.sampling_params import SamplingParams

BOUNDARY = 90
DRAWN = SamplingParams(temperature=1.0, seed=1)


class Broken:
    """Replaces a method of the model or the memory with one that raises once on demand."""

    def __init__(self, monkeypatch, owner, name: str) -> None:
        self._method = getattr(owner, name)
        self.is_next = lambda *_: False
        monkeypatch.setattr(owner, name, self._call)

    def _call(self, *arguments):
        if self.is_next(*arguments):
            self.is_next = lambda *_: False
            raise RuntimeError("injected")
        return self._method(*arguments)


class NoLogits:
    """Replaces the next prefill or decode logits with NaN, so that sampling fails."""

    def __init__(self, monkeypatch, model, name: str) -> None:
        self._method = getattr(model, name)
        self.is_next = False
        monkeypatch.setattr(model, name, self._call)

    def _call(self, *arguments):
        logits = self._method(*arguments)
        if self.is_next:
            self.is_next = False
            return torch.full_like(logits, torch.nan)
        return logits


def _always(*_):
    return True


def _outcomes(bench: EngineBench, *requests):
    """Run requests concurrently; each item is an answer or the raised error."""

    async def caught(request):
        try:
            return await bench.ask(request)
        except KvregError as error:
            return error

    async def all_of_them():
        return await asyncio.gather(*(caught(request) for request in requests))

    return bench.within_limit(all_of_them())


def _fails(bench: EngineBench, request) -> RequestFailed:
    with pytest.raises(RequestFailed, match=r"injected|no finite logit") as failed:
        bench.run(request)
    bench.check_at_rest()
    assert bench.engine.is_alive
    return failed.value


@pytest.fixture
def session(ids):
    """The prompts of the first and the second turn."""
    first = ids(1, 100)
    return token_prompt(first, BOUNDARY), token_prompt([*first[:BOUNDARY], *ids(2, 30)])


@pytest.fixture
def expected(make_bench, session):
    """The tokens of the second turn in a cold run."""
    bench = make_bench(entries=0, prefix_reuse=False)
    return bench.run(bench.request(session[1]))[0].tokens


@pytest.fixture
def side(ids):
    return token_prompt(ids(3, 40), 30)


def _second_turn(bench: EngineBench, session):
    (answer,) = bench.run(bench.request(session[1]))
    bench.check_at_rest()
    return answer


def test_failed_preparation_is_a_cold_prefill(make_bench, session, side, monkeypatch):
    bench, alone = make_bench(), make_bench()
    bench.run(bench.request(session[0]))
    Broken(monkeypatch, bench.states, "copy").is_next = _always
    (answer,) = bench.run(bench.request(side))
    (wanted,) = alone.run(alone.request(side))

    assert answer.admission.reuse_path == "full_reset"
    assert answer.tokens == wanted.tokens


def test_failed_attach_of_a_session_is_a_cold_prefill(
    make_bench, session, expected, side, monkeypatch
):
    bench = make_bench()
    bench.run(bench.request(session[0]), bench.request(side))
    Broken(monkeypatch, bench.states, "swap").is_next = _always
    answer = _second_turn(bench, session)

    assert (answer.admission.reuse_path, answer.admission.attach) == ("full_reset", "none")
    assert answer.tokens == expected


def test_session_has_the_right_output_after_a_failed_preparation(
    make_bench, session, expected, side, monkeypatch
):
    """Its states may be partially moved, so the sequence is dropped and the next turn misses."""
    bench = make_bench()
    bench.run(bench.request(session[0]))
    Broken(monkeypatch, bench.states, "copy").is_next = _always
    bench.run(bench.request(side))
    answer = _second_turn(bench, session)

    assert answer.admission.reuse_path == "full_reset"
    assert answer.tokens == expected


@pytest.mark.parametrize("num_copies", [0, 1])
def test_session_has_the_right_output_after_its_own_attach_failed(
    make_bench, session, expected, side, monkeypatch, num_copies
):
    bench = make_bench(exchange=False, eviction="none")
    bench.run(bench.request(session[0]), bench.request(side))
    copies = iter(range(10))
    broken = Broken(monkeypatch, bench.states, "copy")
    broken.is_next = lambda *_: next(copies) == num_copies

    assert _second_turn(bench, session).tokens == expected


def test_other_entries_survive_a_failed_preparation(
    make_bench, session, expected, ids, side, monkeypatch
):
    bench = make_bench(entries=2, eviction="none")
    bench.run(bench.request(session[0]), bench.request(token_prompt(ids(4, 80), 70)))
    Broken(monkeypatch, bench.states, "copy").is_next = _always
    bench.run(bench.request(side))
    answer = _second_turn(bench, session)

    assert (answer.admission.attach, answer.admission.cached_tokens) == ("registry", BOUNDARY)
    assert answer.tokens == expected


def test_displaced_session_survives_a_failed_prefill(
    make_bench, session, expected, side, monkeypatch
):
    bench = make_bench()
    bench.run(bench.request(session[0]))
    broken = Broken(monkeypatch, bench.model, "prefill")
    broken.is_next = _always
    assert "prefilling" in _fails(bench, bench.request(side)).message
    answer = _second_turn(bench, session)

    assert (answer.admission.attach, answer.admission.cached_tokens) == ("registry", BOUNDARY)
    assert answer.tokens == expected


def test_session_is_reusable_from_its_boundary_after_its_own_prefill_failed(
    make_bench, session, expected, monkeypatch
):
    bench = make_bench(entries=0)
    bench.run(bench.request(session[0]))
    Broken(monkeypatch, bench.model, "prefill").is_next = _always
    _fails(bench, bench.request(session[1]))
    answer = _second_turn(bench, session)

    assert answer.admission.cached_tokens == BOUNDARY
    assert answer.tokens == expected


def test_session_is_reusable_from_its_boundary_after_a_failed_decode(
    make_bench, session, expected, monkeypatch
):
    bench = make_bench(entries=0)
    Broken(monkeypatch, bench.model, "decode").is_next = _always
    assert "decoding" in _fails(bench, bench.request(session[0])).message
    answer = _second_turn(bench, session)

    assert answer.admission.cached_tokens == BOUNDARY
    assert answer.tokens == expected


@pytest.mark.parametrize("stage", ["prefill", "decode"])
def test_session_is_reusable_from_its_boundary_after_failed_sampling(
    make_bench, session, expected, monkeypatch, stage
):
    bench = make_bench(entries=0)
    # The prefill stops at the boundary, so the logits to sample from are those of the second chunk.
    logits = NoLogits(monkeypatch, bench.model, stage)
    bench.runner.before_step = lambda plan: setattr(
        logits, "is_next", any(w.samples and w.is_decode is (stage == "decode") for w in plan.work)
    )
    _fails(bench, bench.request(session[0], sampling=DRAWN))
    bench.runner.before_step = lambda _: None
    logits.is_next = False
    answer = _second_turn(bench, session)

    assert answer.admission.cached_tokens == BOUNDARY
    assert answer.tokens == expected


def test_frontier_state_after_failed_sampling_is_never_reused(make_bench, session, monkeypatch):
    """Sampling failed after the state advanced by one token: the frontier is invalid."""
    bench, cold = make_bench(entries=0), make_bench(entries=0)
    logits = NoLogits(monkeypatch, bench.model, "decode")
    bench.runner.before_step = lambda plan: setattr(
        logits, "is_next", any(work.start == len(session[0].token_ids) + 2 for work in plan.work)
    )
    request = bench.request(session[0], sampling=DRAWN)
    _fails(bench, request)
    answered = bench.runner.tokens[request.request_id]
    # One token less, so that the prompt contains the whole frontier.
    going_on = token_prompt([*session[0].token_ids, *answered[:-1], 1, 2, 3])
    (answer,) = bench.run(bench.request(going_on))
    (wanted,) = cold.run(cold.request(going_on))

    assert len(answered) == 3, "precondition of this test"
    assert answer.tokens == wanted.tokens


def test_failed_preparation_does_not_affect_a_concurrent_request(
    make_bench, session, side, ids, monkeypatch
):
    bench, alone = make_bench(lanes=2), make_bench()
    bench.run(*(bench.request(token_prompt(ids(seed, 80), 70)) for seed in (4, 5)))
    Broken(monkeypatch, bench.states, "copy").is_next = _always
    _, answer = _outcomes(bench, bench.request(side), bench.request(session[1]))
    (wanted,) = alone.run(alone.request(session[1]))

    bench.check_at_rest()
    assert answer.tokens == wanted.tokens


def test_failed_prefill_does_not_affect_a_concurrent_request(
    make_bench, session, side, monkeypatch
):
    bench, alone = make_bench(lanes=2), make_bench()
    broken = Broken(monkeypatch, bench.model, "prefill")
    side_ids = list(side.token_ids)
    broken.is_next = lambda ids, *_: ids.tolist() == side_ids[: len(ids)]
    failed, answer = _outcomes(bench, bench.request(side), bench.request(session[1]))
    (wanted,) = alone.run(alone.request(session[1]))

    bench.check_at_rest()
    assert isinstance(failed, RequestFailed)
    assert answer.tokens == wanted.tokens


def test_failed_sampling_does_not_affect_a_concurrent_request(
    make_bench, session, side, monkeypatch
):
    """In a batch, only the request whose logits are NaN fails."""
    bench, alone = make_bench(lanes=2), make_bench()
    decode = bench.model.decode

    def with_one_nan_row(*arguments):
        logits = decode(*arguments).clone()
        if len(logits) == 2:
            logits[0] = torch.nan
        return logits

    monkeypatch.setattr(bench.model, "decode", with_one_nan_row)
    lost = bench.request(side, sampling=DRAWN, max_tokens=1000)
    failed, answer = _outcomes(bench, lost, bench.request(session[1]))
    (wanted,) = alone.run(alone.request(session[1]))

    bench.check_at_rest()
    assert isinstance(failed, RequestFailed)
    assert answer.tokens == wanted.tokens


def test_failed_decode_batch_fails_its_requests_and_not_the_engine(
    make_bench, session, expected, side, monkeypatch
):
    bench = make_bench(lanes=2)
    broken = Broken(monkeypatch, bench.model, "decode")
    broken.is_next = lambda token_ids, *_: len(token_ids) == 2
    outcomes = _outcomes(
        bench,
        *(bench.request(prompt, max_tokens=1000) for prompt in (session[0], side)),
    )
    answer = _second_turn(bench, session)

    assert [type(outcome) for outcome in outcomes] == [RequestFailed, RequestFailed]
    assert answer.admission.cached_tokens == BOUNDARY
    assert answer.tokens == expected

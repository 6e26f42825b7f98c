"""Sampling follows its parameters exactly, and requests are independent."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvreg_service.core.errors import InvalidRequest, RequestFailed
from kvreg_service.core.requests.sampling_params import SamplingParams
from kvreg_service.model.sampling import Sampler, argmax_batch, token_logprobs

_LOGITS = st.lists(st.floats(-20, 20), min_size=1, max_size=12)
_PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.01, 0.5, 1.0, 2.0]),
    top_p=st.sampled_from([1e-9, 0.3, 0.9, 1.0]),
    top_k=st.sampled_from([None, 1, 3, 1000]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
    presence_penalty=st.sampled_from([0.0, -1.5, 2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.7]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    logit_bias=st.sampled_from([{}, {0: 100.0}, {0: -100.0}]),
)


def _naive_distribution(
    logits: list[float], params: SamplingParams, prompt: list[int], output: list[int]
) -> list[float]:
    """Return the probabilities by the definition, computed step by step on lists."""
    counts = Counter(output)
    x = list(logits)
    for i in {*prompt, *output}:
        x[i] = x[i] / params.repetition_penalty if x[i] > 0 else x[i] * params.repetition_penalty
    for i in range(len(x)):
        x[i] -= params.frequency_penalty * counts[i] + params.presence_penalty * (counts[i] > 0)
        x[i] += params.logit_bias.get(i, 0.0)
    weights = [math.exp((value - max(x)) / params.temperature) for value in x]
    order = sorted(range(len(x)), key=lambda i: (-x[i], i))[: params.top_k]
    kept, total = [], 0.0
    for i in order:
        if kept and total >= params.top_p * sum(weights[j] for j in order):
            break
        kept.append(i)
        total += weights[i]
    kept = [i for i in kept if weights[i] >= params.min_p * weights[order[0]]]
    norm = sum(weights[i] for i in kept)
    return [weights[i] / norm if i in kept else 0.0 for i in range(len(x))]


@given(logits=_LOGITS, params=_PARAMS, data=st.data())
@settings(deadline=None)
def test_distribution_equals_the_naive_reference(
    logits: list[float], params: SamplingParams, data: st.DataObject
) -> None:
    ids = st.lists(st.integers(0, len(logits) - 1), max_size=4)
    prompt, output = data.draw(ids), data.draw(ids)
    sampler = Sampler(params, vocab_size=len(logits), prompt_ids=prompt)
    for token_id in output:
        sampler.observe(token_id)
    result = sampler.distribution(torch.tensor(logits, dtype=torch.float64))
    expected = _naive_distribution(logits, params, prompt, output)
    assert result.tolist() == pytest.approx(expected, abs=1e-12)


def test_sampled_frequencies_match_the_distribution() -> None:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(30, generator=generator)
    sampler = Sampler(SamplingParams(temperature=1.3, top_k=20, seed=11), vocab_size=30)
    expected = sampler.distribution(logits)
    num_draws = 10_000
    counts = torch.bincount(
        torch.tensor([sampler.sample(logits) for _ in range(num_draws)]), minlength=30
    )
    possible = expected > 0
    assert not counts[~possible].any()
    wanted = expected[possible] * num_draws
    statistic = float(((counts[possible] - wanted) ** 2 / wanted).sum())
    # The 99.9 % quantile of chi-square with 19 degrees of freedom.
    assert statistic < 43.82


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_greedy_ties_go_to_the_lowest_id(dtype: torch.dtype) -> None:
    logits = torch.zeros(5000, dtype=dtype)
    logits[[4000, 17, 3]] = 1.0
    assert Sampler(SamplingParams(), vocab_size=5000).sample(logits) == 3


@given(logits=_LOGITS)
@settings(deadline=None)
def test_top_k_of_one_is_greedy(logits: list[float]) -> None:
    row = torch.tensor(logits, dtype=torch.float64)
    drawn = Sampler(SamplingParams(temperature=1.0, top_k=1), vocab_size=len(row)).sample(row)
    assert drawn == Sampler(SamplingParams(), vocab_size=len(row)).sample(row)


def test_the_lowest_temperature_is_greedy() -> None:
    logits = torch.tensor([3.0, 3.1, -torch.inf])
    assert Sampler(SamplingParams(temperature=1e-300), vocab_size=3).sample(logits) == 1


def test_greedy_applies_penalties() -> None:
    sampler = Sampler(SamplingParams(presence_penalty=1.0), vocab_size=2)
    logits = torch.tensor([1.0, 0.5])
    assert [sampler.sample(logits) for _ in range(3)] == [0, 1, 0]


def test_greedy_applies_logit_bias() -> None:
    sampler = Sampler(SamplingParams(logit_bias={1: 5.0}), vocab_size=2)
    assert sampler.sample(torch.tensor([1.0, 0.0])) == 1


@pytest.mark.parametrize(
    "params",
    [SamplingParams(), SamplingParams(temperature=1.0, top_k=2, top_p=0.9, min_p=0.1)],
)
def test_only_finite_logit_is_chosen(params: SamplingParams) -> None:
    logits = torch.full((100,), -torch.inf)
    logits[42] = -3.0
    assert Sampler(params, vocab_size=100).sample(logits) == 42


@pytest.mark.parametrize("value", [-torch.inf, torch.inf, torch.nan])
def test_non_finite_logits_are_refused(value: float) -> None:
    sampler = Sampler(SamplingParams(temperature=1.0), vocab_size=4)
    logits = torch.full((4,), -torch.inf)
    logits[2] = value
    with pytest.raises(RequestFailed):
        sampler.sample(logits)


def test_sampling_does_not_modify_the_logits() -> None:
    logits = torch.tensor([1.0, 2.0, 3.0])
    before = logits.clone()
    params = SamplingParams(
        temperature=1.0, top_k=2, presence_penalty=1.0, repetition_penalty=1.5, logit_bias={0: 1.0}
    )
    Sampler(params, vocab_size=3, prompt_ids=[0]).sample(logits)
    assert torch.equal(logits, before)


def test_logit_bias_for_an_unknown_token_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        Sampler(SamplingParams(logit_bias={10: 1.0}), vocab_size=10)
    assert caught.value.param == "logit_bias"


def _draws(seed: int | None, num: int = 20) -> list[int]:
    sampler = Sampler(SamplingParams(temperature=1.0, seed=seed), vocab_size=1000)
    return [sampler.sample(torch.zeros(1000)) for _ in range(num)]


@pytest.mark.parametrize("seed", [0, 7, -1, 2**80])
def test_same_seed_gives_the_same_tokens(seed: int) -> None:
    assert _draws(seed) == _draws(seed)


def test_requests_without_a_seed_differ() -> None:
    assert _draws(None) != _draws(None)


def test_sampled_tokens_do_not_depend_on_other_requests() -> None:
    logits = torch.randn(3, 1000, generator=torch.Generator().manual_seed(1))

    def sampler(seed: int) -> Sampler:
        return Sampler(SamplingParams(temperature=1.0, seed=seed), vocab_size=1000)

    alone = sampler(3)
    expected = [alone.sample(logits[1]) for _ in range(10)]
    batch = [sampler(1), sampler(3), Sampler(SamplingParams(), vocab_size=1000)]
    drawn = [[one.sample(row) for one, row in zip(batch, logits, strict=True)] for _ in range(10)]
    assert [row[1] for row in drawn] == expected


def test_greedy_batch_equals_greedy_rows() -> None:
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(2))
    greedy = Sampler(SamplingParams(), vocab_size=50)
    assert argmax_batch(logits) == [greedy.sample(row) for row in logits]


@pytest.mark.parametrize("worst", [math.nan, math.inf], ids=str)
def test_greedy_batch_refuses_only_the_non_finite_row(worst: float) -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(2))
    logits[1, 7] = worst
    sampler = Sampler(SamplingParams(), vocab_size=50)
    assert [token is None for token in argmax_batch(logits)] == [False, True, False]
    with pytest.raises(RequestFailed):
        sampler.sample(logits[1])


def test_greedy_refuses_a_row_without_a_finite_logit() -> None:
    assert argmax_batch(torch.full((1, 5), -math.inf)) == [None]


def test_logprobs_are_computed_from_the_raw_logits() -> None:
    logits = torch.tensor([1.0, 3.0, 2.0])
    result = token_logprobs(logits, 0, 2)
    expected = logits.double().log_softmax(0).tolist()
    assert result.logprob == pytest.approx(expected[0])
    assert [token_id for token_id, _ in result.top] == [1, 2]
    assert [value for _, value in result.top] == pytest.approx([expected[1], expected[2]])


def test_top_logprobs_are_limited_to_the_vocabulary() -> None:
    assert len(token_logprobs(torch.zeros(3), 0, 20).top) == 3

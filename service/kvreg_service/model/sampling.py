"""Chooses the next token of a request from its logits.

Owns the order in which sampling parameters act and the random numbers of each request: repetition
penalty, presence and frequency penalty, logit bias, temperature, top-k, top-p, min-p, draw. It
does not know tokens' texts, stop conditions or batches; a request draws the same whoever else
runs beside it, because each sampler has its own generator and looks at its own row only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from kvreg_service.core.errors import InvalidRequest, RequestFailed
from kvreg_service.core.sampling_params import SamplingParams, TokenLogprobs

_NOTHING_FINITE = "the model gave no finite logit to sample from"


class Sampler:
    """State of one request: its generator, and which tokens it has seen and produced."""

    def __init__(
        self,
        params: SamplingParams,
        *,
        vocab_size: int,
        prompt_ids: Iterable[int] = (),
        device: torch.device | str = "cpu",
    ) -> None:
        """``prompt_ids`` matter to the repetition penalty only.

        Raises:
            InvalidRequest: the logit bias names a token that the model does not have.
        """
        self._params = params
        self._has_penalties = (
            params.presence_penalty != 0.0
            or params.frequency_penalty != 0.0
            or params.repetition_penalty != 1.0
        )
        self._counts = self._seen = self._bias_ids = self._bias = None
        if self._has_penalties:
            self._counts = torch.zeros(vocab_size, device=device)
            self._seen = torch.zeros(vocab_size, dtype=torch.bool, device=device)
            self._seen[torch.tensor(list(prompt_ids), dtype=torch.int64, device=device)] = True
        if params.logit_bias:
            unknown = sorted(i for i in params.logit_bias if not 0 <= i < vocab_size)
            if unknown:
                raise InvalidRequest(
                    f"logit_bias names token {unknown[0]}; ids are 0 to {vocab_size - 1}",
                    param="logit_bias",
                )
            self._bias_ids = torch.tensor(list(params.logit_bias), device=device)
            self._bias = torch.tensor(list(params.logit_bias.values()), device=device)
        # Drawn on the CPU whatever the device, so that a seed means the same everywhere.
        self._generator = torch.Generator()
        if params.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(params.seed % 2**64)

    @property
    def is_argmax(self) -> bool:
        """True when the token is simply that of the largest logit, so that rows can be batched."""
        return self._params.is_greedy and not self._has_penalties and self._bias is None

    @property
    def num_logprobs(self) -> int | None:
        """How many likely tokens are to be reported beside each chosen one; None for no report."""
        return self._params.num_logprobs

    def sample(self, logits: Tensor) -> int:
        """Choose one token and count it as produced. Greedy ties go to the lowest id.

        Shapes: ``logits`` [V], float32 or float64; not changed.

        Raises:
            RequestFailed: the logits hold a NaN, or no token has a finite one.
        """
        if self._params.is_greedy:
            if not self.is_argmax:
                logits = self._adjust(logits)
            token_id = int(logits.argmax())
            # The largest of logits with a NaN is the NaN, so one look is enough.
            if not math.isfinite(logits[token_id]):
                raise RequestFailed(_NOTHING_FINITE)
        else:
            cumulative = self.distribution(logits).cumsum(0)
            draw = torch.rand((), generator=self._generator, dtype=torch.float64).item()
            # Rounding may leave the last sum below 1; strictly above the draw skips zeros.
            threshold = cumulative.new_tensor([draw]) * cumulative[-1]
            token_id = int(torch.searchsorted(cumulative, threshold, right=True))
        self.observe(token_id)
        return token_id

    def observe(self, token_id: int) -> None:
        """Count a produced token that was chosen elsewhere, such as an accepted draft."""
        if self._counts is not None and self._seen is not None:
            self._counts[token_id] += 1
            self._seen[token_id] = True

    def distribution(self, logits: Tensor) -> Tensor:
        """Probabilities from which a token would be drawn now; one token has 1 when greedy.

        Shapes: ``logits`` [V]; returns [V] float64.

        Raises:
            RequestFailed: the logits hold a NaN, or no token has a finite one.
        """
        params = self._params
        adjusted = self._adjust(logits).double()
        best = adjusted.max()
        if not torch.isfinite(best):
            raise RequestFailed(_NOTHING_FINITE)
        if params.is_greedy:
            result = torch.zeros_like(adjusted)
            result[adjusted.argmax()] = 1.0
            return result
        # Relative to the best one nothing overflows, however low the temperature.
        weights = ((adjusted - best) / params.temperature).exp()
        if params.top_k is not None or params.top_p < 1.0:
            weights = _truncate(weights, adjusted, params.top_k, params.top_p)
        if params.min_p > 0.0:
            weights = torch.where(weights >= params.min_p * weights.max(), weights, 0.0)
        return weights / weights.sum()

    def _adjust(self, logits: Tensor) -> Tensor:
        """Logits after penalties and bias; a new tensor when there are any."""
        params = self._params
        if self._counts is not None and self._seen is not None:
            repeated = torch.where(
                logits > 0, logits / params.repetition_penalty, logits * params.repetition_penalty
            )
            logits = torch.where(self._seen, repeated, logits)
            # In the precision of the logits: products in fp32 would round the penalties.
            counts = self._counts.to(logits.dtype)
            logits = logits - params.frequency_penalty * counts
            logits = logits - params.presence_penalty * (counts > 0).to(logits.dtype)
        if self._bias is not None and self._bias_ids is not None:
            logits = logits.index_add(0, self._bias_ids, self._bias.to(logits.dtype))
        return logits


def argmax_batch(logits: Tensor) -> list[int | None]:
    """The token of the largest logit in each row; None where a row holds a NaN or nothing finite.

    Shapes: ``logits`` [B, V].
    """
    best = logits.max(-1)
    is_finite = torch.isfinite(best.values).tolist()
    token_ids = best.indices.tolist()
    return [
        int(token_id) if is_sound else None
        for token_id, is_sound in zip(token_ids, is_finite, strict=True)
    ]


def token_logprobs(logits: Tensor, token_id: int, num_top: int) -> TokenLogprobs:
    """What the model itself thought: before penalties, bias, temperature and truncation.

    Shapes: ``logits`` [V].
    """
    logprobs = logits.double().log_softmax(0)
    values, ids = logprobs.topk(min(num_top, len(logprobs)))
    top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    return TokenLogprobs(token_id, float(logprobs[token_id]), top)


def _truncate(weights: Tensor, logits: Tensor, top_k: int | None, top_p: float) -> Tensor:
    """Keep the ``top_k`` largest, then the fewest of them that hold ``top_p`` of their sum.

    At least one is kept. The order is that of the logits, since unequal ones may round to equal
    weights; of equal logits the lower id counts as larger.
    """
    ids = torch.arange(len(weights), device=weights.device)
    if top_k is not None and top_k < len(weights):
        # Sorting a large vocabulary costs much more than finding its top; ties come along.
        ids = (logits >= logits.topk(top_k).values[-1]).nonzero().squeeze(1)
    ids = ids[logits[ids].argsort(descending=True, stable=True)]
    ordered = weights[ids]
    if top_k is not None:
        ordered[top_k:] = 0.0
    if top_p < 1.0:
        before = ordered.cumsum(0) - ordered
        is_outside = before >= top_p * ordered.sum()
        # Even when top_p is 0 the best one stays.
        is_outside[0] = False
        ordered = ordered.masked_fill(is_outside, 0.0)
    return torch.zeros_like(weights).scatter(0, ids, ordered)

"""Chooses the next token of a request from its logits.

Owns the order of the sampling parameters (repetition penalty, presence and frequency penalty, logit
bias, temperature, top-k, top-p, min-p, draw) and the random numbers of each request. It does not
know texts, stop conditions or batches. A request samples the same tokens in any batch, because each
sampler has its own generator and uses only its own row of logits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from kvreg_service.core.errors import InvalidRequest, RequestFailed
from kvreg_service.core.requests.sampling_params import SamplingParams, TokenLogprobs

_NOTHING_FINITE = "the model gave no finite logit to sample from"


class Sampler:
    """The state of one request: its generator, and the tokens it has seen and generated."""

    def __init__(
        self,
        params: SamplingParams,
        *,
        vocab_size: int,
        prompt_ids: Iterable[int] = (),
        device: torch.device | str = "cpu",
    ) -> None:
        """``prompt_ids`` are used by the repetition penalty only.

        Raises:
            InvalidRequest: The logit bias names a token that the model does not have.
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
        # On the CPU for all devices, so that a seed gives the same tokens everywhere.
        self._generator = torch.Generator()
        if params.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(params.seed % 2**64)

    @property
    def is_argmax(self) -> bool:
        """True if the token is that of the largest logit, so that rows can be batched."""
        return self._params.is_greedy and not self._has_penalties and self._bias is None

    @property
    def num_logprobs(self) -> int | None:
        """The number of top logprobs to report for each token; None for no report."""
        return self._params.num_logprobs

    def sample(self, logits: Tensor) -> int:
        """Sample one token and count it as generated. Greedy ties go to the lowest id.

        Shapes: ``logits`` [V], float32 or float64; not changed.

        Raises:
            RequestFailed: The logits contain a NaN, or none is finite.
        """
        if self._params.is_greedy:
            if not self.is_argmax:
                logits = self._adjust(logits)
            token_id = int(logits.argmax())
            # The maximum of logits with a NaN is the NaN, so one check is enough.
            if not math.isfinite(logits[token_id]):
                raise RequestFailed(_NOTHING_FINITE)
        else:
            cumulative = self.distribution(logits).cumsum(0)
            draw = torch.rand((), generator=self._generator, dtype=torch.float64).item()
            # Rounding may leave the last sum below 1; ``right=True`` skips zeros.
            threshold = cumulative.new_tensor([draw]) * cumulative[-1]
            token_id = int(torch.searchsorted(cumulative, threshold, right=True))
        self.observe(token_id)
        return token_id

    def observe(self, token_id: int) -> None:
        """Count a generated token that was chosen elsewhere, such as an accepted draft."""
        if self._counts is not None and self._seen is not None:
            self._counts[token_id] += 1
            self._seen[token_id] = True

    def distribution(self, logits: Tensor) -> Tensor:
        """Return the probabilities of the next token; one token has 1 if greedy.

        Shapes: ``logits`` [V]; returns [V] float64.

        Raises:
            RequestFailed: The logits contain a NaN, or none is finite.
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
        # Relative to the largest logit nothing overflows, even at a low temperature.
        weights = ((adjusted - best) / params.temperature).exp()
        if params.top_k is not None or params.top_p < 1.0:
            weights = _truncate(weights, adjusted, params.top_k, params.top_p)
        if params.min_p > 0.0:
            weights = torch.where(weights >= params.min_p * weights.max(), weights, 0.0)
        return weights / weights.sum()

    def _adjust(self, logits: Tensor) -> Tensor:
        """Return the logits after penalties and bias; a new tensor if there are any."""
        params = self._params
        if self._counts is not None and self._seen is not None:
            repeated = torch.where(
                logits > 0, logits / params.repetition_penalty, logits * params.repetition_penalty
            )
            logits = torch.where(self._seen, repeated, logits)
            # In the dtype of the logits: products in fp32 would round the penalties.
            counts = self._counts.to(logits.dtype)
            logits = logits - params.frequency_penalty * counts
            logits = logits - params.presence_penalty * (counts > 0).to(logits.dtype)
        if self._bias is not None and self._bias_ids is not None:
            logits = logits.index_add(0, self._bias_ids, self._bias.to(logits.dtype))
        return logits


def argmax_batch(logits: Tensor) -> list[int | None]:
    """Return the argmax of each row; None for a row with a NaN or without a finite logit.

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
    """Return the logprobs of the model, before penalties, bias, temperature and truncation.

    Shapes: ``logits`` [V].
    """
    logprobs = logits.double().log_softmax(0)
    values, ids = logprobs.topk(min(num_top, len(logprobs)))
    top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    return TokenLogprobs(token_id, float(logprobs[token_id]), top)


def _truncate(weights: Tensor, logits: Tensor, top_k: int | None, top_p: float) -> Tensor:
    """Keep the ``top_k`` largest weights, then the fewest of them whose sum reaches ``top_p``.

    At least one is kept. They are ordered by logit, since different logits may round to equal
    weights; of equal logits, the lower id comes first.
    """
    ids = torch.arange(len(weights), device=weights.device)
    if top_k is not None and top_k < len(weights):
        # Sorting a large vocabulary costs much more than topk; ties are included.
        ids = (logits >= logits.topk(top_k).values[-1]).nonzero().squeeze(1)
    ids = ids[logits[ids].argsort(descending=True, stable=True)]
    ordered = weights[ids]
    if top_k is not None:
        ordered[top_k:] = 0.0
    if top_p < 1.0:
        before = ordered.cumsum(0) - ordered
        is_outside = before >= top_p * ordered.sum()
        # The first one stays even if top_p is 0.
        is_outside[0] = False
        ordered = ordered.masked_fill(is_outside, 0.0)
    return torch.zeros_like(weights).scatter(0, ids, ordered)

"""Executes step plans on tensors: state moves, prefill chunks, one decode batch, sampling.

Owns the device memory and the samplers. It decides nothing: slots, pages and tokens are given by
the plan. A failure fails the request that it happened in, as far as that is known.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from kvreg_service.core.errors import CheckpointError, wrap_failure
from kvreg_service.core.ids import RequestId
from kvreg_service.core.memory.pages import PageCopy
from kvreg_service.core.requests.request import Request
from kvreg_service.core.scheduling.step import SlotCopy, StateMove, StepPlan, StepResult, Work
from kvreg_service.model.cache import KVPages, StateSlots
from kvreg_service.model.hybrid import HybridModel
from kvreg_service.model.sampling import Sampler, argmax_batch, token_logprobs


class Runner(Protocol):
    """What the step loop needs of a runner. `execute` is called on its thread only."""

    def begin(self, request: Request) -> None:
        """Prepare to sample for a request. Called once, before its first work."""
        ...

    def execute(self, plan: StepPlan) -> StepResult:
        """Execute one plan, in order: moves first, then work."""
        ...

    def forget(self, request_id: RequestId) -> None:
        """Drop what `begin` made. Unknown ids are ignored."""
        ...


class ModelRunner:
    """Runs a hybrid model on one device.

    A model failure in the decode batch fails every request of the batch, because its cause cannot
    be assigned to one of them; a failure in a prefill chunk, a move or in sampling fails one alone.
    """

    def __init__(
        self, model: HybridModel, states: StateSlots, pages: KVPages, vocab_size: int
    ) -> None:
        self._model = model
        self._states = states
        self._pages = pages
        self._vocab_size = vocab_size
        self._samplers: dict[RequestId, Sampler] = {}

    def require_a_token(self) -> None:
        """Compute one token as a request would, by a prefill and a decode.

        Effects: overwrites the first slot and the first page, which must still be free.

        Raises:
            CheckpointError: The logits of the model are not finite.
        """
        prompt = torch.zeros(1, dtype=torch.int64)
        logits = self._model.prefill(prompt, 0, 0, (0,), self._states, self._pages)
        first = argmax_batch(logits[None])[0]
        if first is not None:
            logits = self._model.decode([first], [1], [0], [(0,)], self._states, self._pages)
            first = argmax_batch(logits)[0]
        if first is None:
            raise CheckpointError("the model computes no finite logits: its weights are damaged")

    def begin(self, request: Request) -> None:
        """Create the request's sampler.

        Raises:
            InvalidRequest: the logit bias names a token that the model does not have.
        """
        has_penalty = request.sampling.repetition_penalty != 1.0
        self._samplers[request.request_id] = Sampler(
            request.sampling,
            vocab_size=self._vocab_size,
            prompt_ids=request.prompt.tokens if has_penalty else (),
        )

    def forget(self, request_id: RequestId) -> None:
        """Drop the request's sampler."""
        self._samplers.pop(request_id, None)

    def execute(self, plan: StepPlan) -> StepResult:
        """Execute one plan and return tokens and failures."""
        result = StepResult()
        with torch.inference_mode():
            self._prepare(plan, result)
            decodes: list[Work] = []
            prefills: list[Work] = []
            for one in plan.work:
                if one.request_id not in result.failed:
                    (decodes if one.is_decode else prefills).append(one)
            if decodes:
                self._decode(decodes, result)
            for one in prefills:
                self._prefill(one, result)
        return result

    def _prepare(self, plan: StepPlan, result: StepResult) -> None:
        if plan.preparation is None:
            return
        start_s = time.perf_counter()
        try:
            for move in plan.preparation.moves:
                self._move(move)
            result.is_prepared = True
        except Exception as error:  # noqa: BLE001 - it fails the request that is prepared
            result.failed[plan.preparation.request_id] = wrap_failure("preparing", error)
        result.prepare_s = time.perf_counter() - start_s

    def _move(self, move: StateMove) -> None:
        match move:
            case SlotCopy(src, dst):
                self._states.copy(src, dst)
            case PageCopy(src, dst):
                self._pages.copy_page(src, dst)

    def _decode(self, work: Sequence[Work], result: StepResult) -> None:
        try:
            logits = self._model.decode(
                [one.token_ids[0] for one in work],
                [one.start for one in work],
                [one.slot for one in work],
                [one.pages for one in work],
                self._states,
                self._pages,
            )
            samplers = [self._samplers[one.request_id] for one in work]
            is_argmax = all(sampler.is_argmax for sampler in samplers)
            tokens = argmax_batch(logits) if is_argmax else None
        except Exception as error:  # noqa: BLE001 - it fails the requests of this batch
            for one in work:
                result.failed[one.request_id] = wrap_failure("decoding", error)
            return
        for i, one in enumerate(work):
            token = tokens[i] if tokens is not None else None
            # Without a finite maximum the sampler of the request raises the right error.
            if token is None:
                self._sample(one, logits[i], result)
            else:
                self._report(one, logits[i], token, result)

    def _prefill(self, work: Work, result: StepResult) -> None:
        try:
            logits = self._model.prefill(
                torch.tensor(work.token_ids, dtype=torch.int64),
                work.start,
                work.slot,
                work.pages,
                self._states,
                self._pages,
            )
            if work.capture_to is not None:
                self._states.copy(work.slot, work.capture_to)
        except Exception as error:  # noqa: BLE001 - it fails the request of this chunk
            result.failed[work.request_id] = wrap_failure("prefilling", error)
            return
        if work.samples:
            self._sample(work, logits, result)

    def _sample(self, work: Work, logits: Tensor, result: StepResult) -> None:
        try:
            token = self._samplers[work.request_id].sample(logits)
        except Exception as error:  # noqa: BLE001 - it fails the request that is sampled for
            result.failed[work.request_id] = wrap_failure("sampling", error)
        else:
            self._report(work, logits, token, result)

    def _report(self, work: Work, logits: Tensor, token: int, result: StepResult) -> None:
        num_logprobs = self._samplers[work.request_id].num_logprobs
        if num_logprobs is not None:
            try:
                result.logprobs[work.request_id] = token_logprobs(logits, token, num_logprobs)
            except Exception as error:  # noqa: BLE001 - it fails the request that wants them
                result.failed[work.request_id] = wrap_failure("reporting", error)
                return
        result.sampled[work.request_id] = token

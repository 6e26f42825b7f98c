"""Training of the trunk: embedding, layers and ``lm_head``, for a given time.

Owns the recipe: data, batch sizes and learning rate. The bundled checkpoint was trained in four
phases with changes between them (docs/reference-model.md); this recipe combines them in one run.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from kvreg_training.data.dataset import ChatSet, HeldOutSet, make_held_out_set
from kvreg_training.evaluation.teacher_forced import (
    HELD_OUT_SEED,
    NUM_HELD_OUT_CHATS,
    score_answers,
)
from kvreg_training.model.reference_model import ReferenceModel
from kvreg_training.model.weights_file import load_weights, save_weights
from kvreg_training.ops.backend import OpsBackend, load_ops
from kvreg_training.shape import ReferenceShape
from kvreg_training.tokenizer import load_tokenizer
from kvreg_training.trainers.batch_stream import BatchStream
from kvreg_training.trainers.optimizer import MuonAdamW, learning_rate
from kvreg_training.trainers.ranks import GradientSum, Ranks, timed_steps
from kvreg_training.trainers.training_log import TrainingLog

_PARAMETER_SEED = 1
_PEAK_LEARNING_RATE = 6e-3
_WARMUP_STEPS = 60
_HOLD_SHARE = 0.5
# The model learns to copy only with half of the data as copying drills, and small batches.
_DRILLS_SHARE = 0.35
_DRILLS_TOKENS_PER_BATCH = 1280
_QUIZZES_TOKENS_PER_BATCH = 2048
# Later, one step of drills after this many steps, so that copying is not forgotten.
_DRILLS_EVERY_STEPS = 5

_LOW_WEIGHT = 0.05
_LOW_WEIGHT_SAMPLE = 0.2

_NUM_INTERIM_CHATS = 160
_VALIDATION_INTERVAL_S = 240.0


@dataclass(frozen=True)
class TrunkTraining:
    """The training run of one rank.

    Effects:
        The first rank writes ``output`` (every few minutes and at the end) and ``output`` with the
        suffix ``.jsonl``.
    """

    minutes: float
    drills: Path
    quizzes: Path
    tokenizer_folder: Path
    output: Path
    ops: OpsBackend
    initial: Path | None = None

    def __call__(self, ranks: Ranks) -> None:
        """Trains until the time is up."""
        torch.manual_seed(_PARAMETER_SEED)
        model = ReferenceModel(ReferenceShape(), load_ops(self.ops))
        if self.initial is not None:
            load_weights(model, self.initial)
        trained = [
            (name, parameter)
            for name, parameter in model.named_parameters()
            if not name.startswith("mtp.")
        ]
        optimiser = MuonAdamW(trained, ranks)
        gradients = GradientSum((parameter for _, parameter in trained), ranks)
        drills = BatchStream(
            ChatSet.load(self.drills),
            tokens_per_batch=_DRILLS_TOKENS_PER_BATCH,
            seed=5,
            ranks=ranks,
        )
        quizzes = BatchStream(
            ChatSet.load(self.quizzes),
            tokens_per_batch=_QUIZZES_TOKENS_PER_BATCH,
            seed=6,
            ranks=ranks,
        )
        sampler = torch.Generator().manual_seed(100 + ranks.rank)
        observer = _Observer(self, model) if ranks.is_first else None
        with observer.log if observer else nullcontext():
            for step, time_share in timed_steps(ranks, self.minutes):
                takes_drill = time_share < _DRILLS_SHARE or (step + 1) % _DRILLS_EVERY_STEPS == 0
                token_ids, weights = (drills if takes_drill else quizzes).next()
                loss, weight = _loss(model, token_ids, weights, sampler)
                torch.autograd.backward(loss)
                total_weight, total_loss, num_tokens = gradients.reduce(
                    weight, loss.item(), token_ids.numel()
                )
                rate = learning_rate(
                    _PEAK_LEARNING_RATE,
                    step=step,
                    warmup_steps=_WARMUP_STEPS,
                    time_share=time_share,
                    hold_share=_HOLD_SHARE,
                )
                optimiser.step(rate)
                if observer:
                    observer.step(time_share, int(num_tokens), total_loss / total_weight)
            if observer:
                observer.finish()


def _loss(
    model: ReferenceModel, token_ids: Tensor, weights: Tensor, sampler: torch.Generator
) -> tuple[Tensor, float]:
    """Returns the weighted sum of the loss over this batch, and the sum of the weights."""
    targets, weights = token_ids[:, 1:], weights[:, 1:].clone()
    # Markers and system text are many tokens of low weight. A sample of them has the same mean, and
    # the logits of the rest need not be computed.
    is_low = (weights > 0) & (weights < _LOW_WEIGHT)
    is_left_out = torch.rand(weights.shape, generator=sampler) > _LOW_WEIGHT_SAMPLE
    weights[is_low] /= _LOW_WEIGHT_SAMPLE
    weights[is_low & is_left_out] = 0.0
    counts = weights > 0
    logits = model.lm_head(model.hidden(token_ids)[:, :-1][counts])
    weights = weights[counts]
    loss = model.ops.weighted_cross_entropy(logits, targets[counts], weights)
    return loss, weights.sum().item()


class _Observer:
    """The log, the intermediate scores and the weights of the first rank."""

    def __init__(self, training: TrunkTraining, model: ReferenceModel) -> None:
        self.log = TrainingLog("trunk", training.output.with_suffix(".jsonl"))
        self._output = training.output
        self._model = model
        self._held_out: HeldOutSet = make_held_out_set(
            HELD_OUT_SEED,
            NUM_HELD_OUT_CHATS,
            load_tokenizer(training.tokenizer_folder),
            lambda _: None,
        )
        self._last_validation_s = time.monotonic()

    def step(self, time_share: float, num_tokens: int, loss: float) -> None:
        self.log.step(time_share, num_tokens, loss=loss)
        if time.monotonic() - self._last_validation_s > _VALIDATION_INTERVAL_S:
            self._validate(_NUM_INTERIM_CHATS)
            self._last_validation_s = time.monotonic()

    def finish(self) -> None:
        self._validate(NUM_HELD_OUT_CHATS)

    def _validate(self, num_chats: int) -> None:
        save_weights(self._model, self._output)
        score = score_answers(self._model, self._held_out, num_chats)
        self.log.write(held_out_loss=score.loss, exact=score.by_ask())
        self.log.print(
            f"held out: loss {score.loss:.4f}, answers that need memory right "
            f"{score.memory_share:.3f}, {score.by_ask()}"
        )

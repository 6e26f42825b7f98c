"""Training of the MTP head, with the trunk, the embedding and ``lm_head`` frozen.

Owns its recipe. The loss is the cross entropy of token i+2, given the trunk's output at i after its
final norm, and token i+1; only answer tokens count.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from kvreg_training.data.dataset import ChatSet
from kvreg_training.data.rendering import ANSWER_WEIGHT
from kvreg_training.model.reference_model import ReferenceModel
from kvreg_training.model.weights_file import load_weights, save_weights
from kvreg_training.ops.backend import OpsBackend, load_ops
from kvreg_training.shape import ReferenceShape
from kvreg_training.trainers.batch_stream import BatchStream
from kvreg_training.trainers.optimizer import MuonAdamW, learning_rate
from kvreg_training.trainers.ranks import GradientSum, Ranks, timed_steps
from kvreg_training.trainers.training_log import TrainingLog

_PARAMETER_SEED = 2
_PEAK_LEARNING_RATE = 4e-3
_WARMUP_STEPS = 50
_HOLD_SHARE = 0.4
_TOKENS_PER_BATCH = 3072
_NEXT_TOKEN_GAIN = 0.3
_HIDDEN_GAIN = 0.5


@dataclass(frozen=True)
class MtpTraining:
    """The training run of one rank.

    Effects:
        The first rank writes the ``mtp.*`` weights to ``output`` at the end, and ``output`` with
        the suffix ``.jsonl``.
    """

    minutes: float
    chats: Path
    trunk: Path
    output: Path
    ops: OpsBackend

    def __call__(self, ranks: Ranks) -> None:
        """Trains until the time is up."""
        torch.manual_seed(_PARAMETER_SEED)
        model = ReferenceModel(ReferenceShape(), load_ops(self.ops))
        load_weights(model, self.trunk)
        _start_as_copy_of_trunk(model)
        model.requires_grad_(False)
        model.mtp.requires_grad_(True)
        optimiser = MuonAdamW(model.mtp.named_parameters(prefix="mtp"), ranks)
        gradients = GradientSum(model.mtp.parameters(), ranks)
        chats = BatchStream(
            ChatSet.load(self.chats), tokens_per_batch=_TOKENS_PER_BATCH, seed=9, ranks=ranks
        )
        log = TrainingLog("mtp", self.output.with_suffix(".jsonl")) if ranks.is_first else None
        with log or nullcontext():
            for step, time_share in timed_steps(ranks, self.minutes):
                token_ids, weights = chats.next()
                loss, num_targets, num_right = _loss(model, token_ids, weights)
                torch.autograd.backward(loss)
                total, total_loss, total_right, num_tokens = gradients.reduce(
                    num_targets, loss.item(), num_right, token_ids.numel()
                )
                rate = learning_rate(
                    _PEAK_LEARNING_RATE,
                    step=step,
                    warmup_steps=_WARMUP_STEPS,
                    time_share=time_share,
                    hold_share=_HOLD_SHARE,
                )
                optimiser.step(rate)
                if log:
                    log.step(
                        time_share,
                        int(num_tokens),
                        loss=total_loss / total,
                        accepted=total_right / total,
                    )
        if ranks.is_first:
            save_weights(model, self.output, prefix="mtp.")


@torch.no_grad()
def _start_as_copy_of_trunk(model: ReferenceModel) -> None:
    """Initializes the head close to a shifted trunk: its first matrix adds its two inputs."""
    hidden_size = model.mtp.fc.weight.shape[0]
    identity = torch.eye(hidden_size)
    model.mtp.fc.weight[:, :hidden_size] += _NEXT_TOKEN_GAIN * identity
    model.mtp.fc.weight[:, hidden_size:] += _HIDDEN_GAIN * identity
    model.mtp.norm.weight.copy_(model.model.norm.weight)


def _loss(model: ReferenceModel, token_ids: Tensor, weights: Tensor) -> tuple[Tensor, int, int]:
    """Returns the summed loss of the answer tokens, their number, and that of correct drafts."""
    with torch.no_grad():
        hidden = model.hidden(token_ids)
    counts = weights[:, 2:] >= ANSWER_WEIGHT
    logits = model.lm_head(model.draft_hidden(token_ids, hidden)[:, :-1][counts])
    targets = token_ids[:, 2:][counts]
    num_right = int((logits.argmax(-1) == targets).sum())
    ones = torch.ones(len(targets))
    loss = model.ops.weighted_cross_entropy(logits, targets, ones)
    return loss, len(targets), num_right

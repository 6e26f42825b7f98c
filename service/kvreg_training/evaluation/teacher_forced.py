"""Teacher-forced scores of a model in training.

Owns the counting. An answer is exact if the most likely token is correct at each position, which is
equivalent to a correct greedy answer.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch

from kvreg_service.reference_model.grammar.messages import Ask
from kvreg_training.data.dataset import HeldOutSet
from kvreg_training.data.padding import pad
from kvreg_training.data.rendering import ANSWER_WEIGHT
from kvreg_training.model.reference_model import ReferenceModel

HELD_OUT_SEED = 999003
NUM_HELD_OUT_CHATS = 400
_CHATS_PER_BATCH = 8
MEMORY_ASKS: tuple[Ask, ...] = ("recall", "notes")
"""The kinds of request that need a fact of an earlier turn or of the system prompt."""


@dataclass(frozen=True)
class TeacherForcedScore:
    """Exact answers by kind, and the mean loss per answer token."""

    loss: float
    num_answers: dict[Ask, int]
    num_exact: dict[Ask, int]

    @property
    def memory_share(self) -> float:
        """The share of exact answers among those that need an earlier fact."""
        total = sum(self.num_answers.get(ask, 0) for ask in MEMORY_ASKS)
        return sum(self.num_exact.get(ask, 0) for ask in MEMORY_ASKS) / max(1, total)

    def by_ask(self) -> dict[str, str]:
        """Return exact answers of all answers, as ``"481/495"``."""
        return {
            ask: f"{self.num_exact.get(ask, 0)}/{self.num_answers[ask]}"
            for ask in sorted(self.num_answers)
        }


@torch.no_grad()
def score_answers(
    model: ReferenceModel, held_out: HeldOutSet, max_chats: int | None = None
) -> TeacherForcedScore:
    """Scores the first ``max_chats`` chats, or all of them."""
    num_answers: Counter[Ask] = Counter()
    num_exact: Counter[Ask] = Counter()
    loss = 0.0
    num_tokens = 0
    order = np.argsort(held_out.chats.lengths[:max_chats], kind="stable").tolist()
    for first in range(0, len(order), _CHATS_PER_BATCH):
        indices = order[first : first + _CHATS_PER_BATCH]
        token_ids, weights = pad(held_out.chats, indices)
        targets = token_ids[:, 1:]
        logits = model(token_ids)[:, :-1]
        is_right = logits.argmax(-1) == targets
        is_answer = weights[:, 1:] == ANSWER_WEIGHT
        likelihoods = logits.log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        loss -= likelihoods[is_answer].sum().item()
        num_tokens += int(is_answer.sum())
        for row, index in enumerate(indices):
            for answer in held_out.answers[index]:
                num_answers[answer.ask] += 1
                # Logits at t predict token t + 1.
                if bool(is_right[row, answer.start - 1 : answer.end - 1].all()):
                    num_exact[answer.ask] += 1
    return TeacherForcedScore(loss / max(1, num_tokens), dict(num_answers), dict(num_exact))

"""The number of held-out chats that occur in the training data.

The grammar is small, so short chats repeat.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random

import numpy as np
from tokenizers import Tokenizer  # type: ignore[import-untyped]

from kvreg_training.data.chat import ChatKind
from kvreg_training.data.dataset import ChatSet
from kvreg_training.data.generator import Stage, make_chat
from kvreg_training.data.rendering import render
from kvreg_training.evaluation.scores import EVALUATION_SEED


def count_repeated_chats(
    training_sets: Iterable[ChatSet], num_chats: int, tokenizer: Tokenizer
) -> Counter[ChatKind]:
    """Count the chats of the evaluation that equal a training chat token by token, by kind."""
    trained = {
        chats.chat(index)[0].tobytes() for chats in training_sets for index in range(len(chats))
    }
    rng = Random(EVALUATION_SEED)
    repeated: Counter[ChatKind] = Counter()
    for _ in range(num_chats):
        chat = make_chat(rng, Stage.MIXED)
        token_ids = np.array(tokenizer.encode(render(chat).text).ids, dtype=np.uint16)
        if token_ids.tobytes() in trained:
            repeated[chat.kind] += 1
    return repeated

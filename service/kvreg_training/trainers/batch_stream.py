"""An endless stream of batches from a set of chats of similar length, padded on the right.

Owns the order, which depends on the seed only, so that every rank selects its own share.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kvreg_training.data.dataset import ChatSet
from kvreg_training.data.padding import pad
from kvreg_training.trainers.ranks import Ranks

# Chats are sorted by length within windows of this many: little padding, and still shuffled.
_WINDOW_CHATS = 512


class BatchStream:
    """Batches of about ``tokens_per_batch`` tokens, one for each rank and step.

    The ranks of a step have batches of similar length, so that none waits long for the others.
    """

    def __init__(self, chats: ChatSet, *, tokens_per_batch: int, seed: int, ranks: Ranks) -> None:
        self._chats = chats
        self._lengths = chats.lengths
        self._tokens_per_batch = tokens_per_batch
        self._rng = np.random.default_rng(seed)
        self._ranks = ranks
        self._queue: list[list[list[int]]] = []

    def next(self) -> tuple[Tensor, Tensor]:
        """Returns the token ids and weights of the next batch of this rank, see ``pad``.

        Raises:
            ValueError: There are fewer batches than ranks in the whole set.
        """
        if not self._queue:
            self._fill()
        if not self._queue:
            raise ValueError(
                f"{len(self._chats)} chats are too few for {self._ranks.num_ranks} ranks"
            )
        return pad(self._chats, self._queue.pop(0)[self._ranks.rank])

    def _fill(self) -> None:
        order = self._rng.permutation(len(self._lengths))
        num_ranks = self._ranks.num_ranks
        for first in range(0, len(order), _WINDOW_CHATS):
            window = order[first : first + _WINDOW_CHATS]
            batches = self._group(window[np.argsort(self._lengths[window], kind="stable")])
            steps = [
                batches[start : start + num_ranks]
                for start in range(0, len(batches) - num_ranks + 1, num_ranks)
            ]
            for position in self._rng.permutation(len(steps)):
                self._queue.append(steps[position])

    def _group(self, by_length: NDArray[np.int64]) -> list[list[int]]:
        batches: list[list[int]] = []
        current: list[int] = []
        for index in by_length:
            # The chats are sorted, so this one determines the padded length.
            if current and self._lengths[index] * (len(current) + 1) > self._tokens_per_batch:
                batches.append(current)
                current = []
            current.append(int(index))
        batches.append(current)
        return batches

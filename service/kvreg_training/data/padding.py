"""Chats of different lengths as one batch of tensors, padded on the right."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from kvreg_training.data.dataset import ChatSet
from kvreg_training.shape import PAD_TOKEN_ID


def pad(chats: ChatSet, indices: list[int]) -> tuple[Tensor, Tensor]:
    """Return the chats of these indices as one batch.

    Shapes:
        Token ids [B, T] int64, padded with the pad token; weights [B, T] fp32, padded with 0.
    """
    longest = int(max(chats.lengths[index] for index in indices))
    token_ids = np.full((len(indices), longest), PAD_TOKEN_ID, dtype=np.int64)
    weights = np.zeros((len(indices), longest), dtype=np.float32)
    for row, index in enumerate(indices):
        chat_ids, chat_weights = chats.chat(index)
        token_ids[row, : len(chat_ids)] = chat_ids
        weights[row, : len(chat_ids)] = chat_weights
    return torch.from_numpy(token_ids), torch.from_numpy(weights)

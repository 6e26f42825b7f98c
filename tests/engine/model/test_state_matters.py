"""A wrong recurrent state changes the logits of the reference model.

Its attention layers carry the facts: with a zeroed state it still gives correct answers. So tests
of restored states compare logits or bytes, and these tests show that such a comparison detects
damage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kvreg_service.model.cache import KVPages, StateSlots
from kvreg_service.model.checkpoint import load_weights
from kvreg_service.model.config import ModelConfig
from kvreg_service.model.hybrid import HybridModel
from kvreg_service.model.testing import ORACLE_LOGITS_FP32, nan_memory

SESSION, FOREIGN, SCRATCH = 0, 1, 2
TABLES = {SESSION: [0, 1, 2, 3], FOREIGN: [4, 5, 6, 7]}
NUM_TOKENS = 200
NOTICED = 1000 * ORACLE_LOGITS_FP32


@dataclass
class Memory:
    states: StateSlots
    pages: KVPages


Damage = Callable[[Memory], None]


@pytest.fixture(scope="module")
def model(reference_path: Path) -> HybridModel:
    config = ModelConfig.from_path(reference_path)
    weights = load_weights(reference_path, config, dtype=torch.float32)
    return HybridModel(config, weights, torch.device("cpu"))


def session_tokens(model: HybridModel, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(model.config.vocab_size, (NUM_TOKENS,), generator=generator)


def next_logits(model: HybridModel, damage: Damage | None = None) -> Tensor:
    """Logits of the next token of the session, after another session ran and with damage."""
    states, pages = nan_memory(model.config, num_slots=3, num_pages=8)
    for seed, slot in enumerate((SESSION, FOREIGN)):
        model.prefill(session_tokens(model, seed), 0, slot, TABLES[slot], states, pages)
    if damage is not None:
        damage(Memory(states, pages))
    return model.decode([17], [NUM_TOKENS], [SESSION], [TABLES[SESSION]], states, pages)[0]


def zero_recurrent(memory: Memory) -> None:
    memory.states.recurrent[:, SESSION] = 0


def zero_one_layer(memory: Memory) -> None:
    memory.states.recurrent[-1, SESSION] = 0


def zero_conv(memory: Memory) -> None:
    memory.states.conv[:, SESSION] = 0


def foreign_state(memory: Memory) -> None:
    memory.states.copy(FOREIGN, SESSION)


def foreign_pages(memory: Memory) -> None:
    for own, foreign in zip(TABLES[SESSION], TABLES[FOREIGN], strict=True):
        memory.pages.copy_page(foreign, own)


@pytest.mark.parametrize(
    "damage", [zero_recurrent, zero_one_layer, zero_conv, foreign_state, foreign_pages]
)
def test_damage_shows_in_the_logits(model: HybridModel, damage: Damage) -> None:
    difference = (next_logits(model, damage) - next_logits(model)).abs().max()
    assert float(difference) > NOTICED


def there_and_back(memory: Memory) -> None:
    memory.states.swap(SESSION, FOREIGN)
    memory.states.copy(FOREIGN, SCRATCH)
    memory.states.zero(FOREIGN)
    memory.states.copy(SCRATCH, FOREIGN)
    memory.states.swap(SESSION, FOREIGN)


def test_moving_a_state_around_does_not_change_a_bit(model: HybridModel) -> None:
    assert torch.equal(next_logits(model, there_and_back), next_logits(model))


def test_what_a_slot_held_before_a_new_sequence_does_not_matter(model: HybridModel) -> None:
    tokens = session_tokens(model, 0)
    states, pages = nan_memory(model.config, num_slots=1, num_pages=4)
    fresh = model.prefill(tokens, 0, 0, TABLES[SESSION], states, pages)
    states.recurrent.fill_(3.0)
    assert torch.equal(model.prefill(tokens, 0, 0, TABLES[SESSION], states, pages), fresh)

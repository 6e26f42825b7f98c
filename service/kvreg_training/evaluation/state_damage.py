"""The effect of a damaged state: the cache of a history is damaged before the question.

Owns the kinds of damage and the counting. It shows which parts of the state the answers depend on.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

import torch

from kvreg_service.reference_model.grammar.messages import Message
from kvreg_training.data.generator import Stage, make_chat
from kvreg_training.evaluation.oracle import Cache, Oracle, api_messages
from kvreg_training.evaluation.scores import EVALUATION_SEED, Tally
from kvreg_training.evaluation.teacher_forced import MEMORY_ASKS
from kvreg_training.shape import END_OF_MESSAGE_ID

Part = Literal["recurrent_states", "conv_states", "keys", "values"]
_GDN: tuple[Part, ...] = ("recurrent_states", "conv_states")
_KV: tuple[Part, ...] = ("keys", "values")


@dataclass
class DamageScore(Tally):
    """Answers after one kind of damage.

    ``num_changed`` counts answers that differ from the undamaged one; ``log_likelihood`` is summed
    over the cases, each the mean of the expected answer's tokens.
    """

    num_changed: int = 0
    log_likelihood: float = 0.0


@dataclass(frozen=True)
class _Case:
    """A question, and the history before it."""

    history: list[int]
    question: list[int]
    expected: Message


def score_damage(
    oracle: Oracle, num_cases: int, on_case: Callable[[], None]
) -> dict[str, DamageScore]:
    """Return the scores by kind of damage. ``on_case`` is called after each case."""
    cases = list(_cases(oracle, num_cases))
    scores = {kind: DamageScore() for kind in _DAMAGES}
    for number, case in enumerate(cases):
        other = oracle.prefill(cases[(number + 1) % len(cases)].history)
        intact = oracle.prefill(case.history)
        undamaged: str | None = None
        for kind, damage in _DAMAGES.items():
            cache = copy.deepcopy(intact)
            damage(cache, other)
            text, log_likelihood = _ask(oracle, case, cache)
            undamaged = text if undamaged is None else undamaged
            scores[kind].add(text, case.expected)
            scores[kind].num_changed += text != undamaged
            scores[kind].log_likelihood += log_likelihood
        on_case()
    return scores


def _cases(oracle: Oracle, num_cases: int) -> Iterator[_Case]:
    rng = Random(EVALUATION_SEED + 2)
    found = 0
    while found < num_cases:
        chat = make_chat(rng, Stage.MIXED)
        indices = chat.answer_indices(*MEMORY_ASKS)
        if not indices:
            continue
        index = rng.choice(indices)
        prompt = oracle.prompt(api_messages(chat, index))
        # The common prefix of the prompt with the one before the question.
        earlier = oracle.render(api_messages(chat, index - 1)) if index > 1 else ""
        history = _common_prefix(prompt[:-1], oracle.encode(earlier) or prompt[:4])
        yield _Case(prompt[:history], prompt[history:], chat.messages[index])
        found += 1


def _common_prefix(first: list[int], second: list[int]) -> int:
    for position, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return position
    return min(len(first), len(second))


def _ask(oracle: Oracle, case: _Case, cache: Cache) -> tuple[str, float]:
    """Return the greedy answer, and the mean log-likelihood of the expected one."""
    logits, cache = oracle.feed(case.question, cache)
    expected = [*oracle.encode(case.expected.content), END_OF_MESSAGE_ID]
    answer_logits, _ = oracle.feed(expected[:-1], copy.deepcopy(cache))
    likelihoods = torch.cat((logits[-1:], answer_logits)).log_softmax(-1)
    chosen = likelihoods.gather(-1, torch.tensor(expected)[:, None])
    return oracle.answer_after(logits, cache).text, chosen.mean().item()


def _tensors(cache: Cache, parts: tuple[Part, ...]) -> Iterator[tuple[int, Part, Any]]:
    for number, layer in enumerate(cache.layers):
        for part in parts:
            tensor = getattr(layer, part, None)
            if tensor is not None:
                yield number, part, tensor


Damage = Callable[[Cache, Cache], None]


def _zero(*parts: Part) -> Damage:
    def damage(cache: Cache, _other: Cache) -> None:
        for _, _, tensor in _tensors(cache, parts):
            tensor.zero_()

    return damage


def _zero_first_half(cache: Cache, _other: Cache) -> None:
    for _, _, tensor in _tensors(cache, _KV):
        tensor[:, :, : tensor.shape[2] // 2] = 0


def _exchange(*parts: Part) -> Damage:
    """Copies the state of another chat, as far as both have one."""

    def damage(cache: Cache, other: Cache) -> None:
        for number, part, tensor in _tensors(cache, parts):
            foreign = getattr(other.layers[number], part)
            if part in _KV:
                num_tokens = min(tensor.shape[2], foreign.shape[2])
                tensor[:, :, :num_tokens] = foreign[:, :, :num_tokens]
            else:
                tensor.copy_(foreign)

    return damage


_DAMAGES: dict[str, Damage] = {
    "none": _zero(),
    "recurrent state zero": _zero("recurrent_states"),
    "convolution state zero": _zero("conv_states"),
    "both GDN states zero": _zero(*_GDN),
    "recurrent state of another chat": _exchange("recurrent_states"),
    "both GDN states of another chat": _exchange(*_GDN),
    "KV zero": _zero(*_KV),
    "first half of KV zero": _zero_first_half,
    "KV of another chat": _exchange(*_KV),
    "everything of another chat": _exchange(*_GDN, *_KV),
}

"""Checks that a checkpoint and the training module agree with transformers.

Owns equalities; each check raises if it does not hold. ``scores`` measures the quality of answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from torch import Tensor, nn

from kvreg_training.data.chat import Chat
from kvreg_training.data.generator import Stage, make_chat
from kvreg_training.data.rendering import render
from kvreg_training.evaluation.oracle import Oracle, api_messages
from kvreg_training.model.reference_model import ReferenceModel
from kvreg_training.model.weights_file import load_weights
from kvreg_training.ops.backend import OpsBackend, load_ops
from kvreg_training.shape import ReferenceShape

LOGITS_TOLERANCE = 1e-4
"""Largest difference of an fp32 logit. Both sides sum in fp32, in different orders."""
GRADIENT_TOLERANCE = 1e-3
"""Largest difference of a gradient, relative to the largest element of that gradient."""

_NUM_TEMPLATE_CHATS = 200
_UNUSUAL_TEXTS = [
    "日本語 🙂 naïve\u0301 \x00\x7f",
    "a\u0301 \u212b\r\n\t x  y",
    bytes(range(128, 256)).decode("latin-1"),
]


class CheckFailed(Exception):
    """A check does not hold; the message has the difference."""


@dataclass(frozen=True)
class Differences:
    """The largest differences found, all within their tolerances."""

    logits: float
    gradients: float
    num_splits: int


def run_checks(folder: Path, ops: OpsBackend, *, num_split_chats: int) -> Differences:
    """Runs all checks.

    Raises:
        CheckFailed: A check does not hold.
    """
    oracle = Oracle(folder)
    check_template(oracle)
    check_round_trip(oracle)
    model = ReferenceModel(ReferenceShape(), load_ops(ops))
    load_weights(model, folder / "model.safetensors")
    return Differences(
        logits=compare_logits(oracle, model),
        gradients=compare_gradients(oracle, model),
        num_splits=check_split_prefill(oracle, num_split_chats),
    )


def check_template(oracle: Oracle) -> None:
    """The template renders chats and opens answers like the training data."""
    rng = Random(5)
    for _ in range(_NUM_TEMPLATE_CHATS):
        chat = make_chat(rng, Stage.MIXED)
        messages = api_messages(chat)
        for api_message, message in zip(messages, chat.messages, strict=True):
            if chat.is_thinking and message.reasoning:
                api_message["reasoning_content"] = message.reasoning
        rendered = oracle.render(messages, preserve_thinking=chat.preserves_thinking)
        if rendered != render(chat).text:
            raise CheckFailed(f"the template renders {rendered!r}, not {render(chat).text!r}")
        last_answer = chat.answer_indices()[-1]
        prompt = oracle.render(messages[:last_answer], add_generation_prompt=True)
        if not prompt.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n"):
            raise CheckFailed(f"an answer is not opened with an empty think section: {prompt!r}")


def check_round_trip(oracle: Oracle) -> None:
    """Any text survives encoding and decoding."""
    for text in _UNUSUAL_TEXTS:
        if oracle.decode(oracle.encode(text)) != text:
            raise CheckFailed(f"{text!r} does not survive encoding and decoding")


def compare_logits(oracle: Oracle, model: ReferenceModel) -> float:
    """Returns the largest difference of a logit of a whole chat."""
    token_ids = oracle.encode(render(make_chat(Random(31), Stage.MIXED)).text)
    with torch.no_grad():
        difference = (model(torch.tensor([token_ids]))[0] - oracle.logits(token_ids)).abs().max()
    return _within(difference, LOGITS_TOLERANCE, "a logit")


def compare_gradients(oracle: Oracle, model: ReferenceModel) -> float:
    """Returns the largest relative difference of a gradient, for a weighted loss on random tokens.

    Effects:
        The gradients of both models are overwritten.
    """
    generator = torch.Generator().manual_seed(0)
    token_ids = torch.randint(0, 2000, (2, 203), generator=generator)
    targets = token_ids[:, 1:].reshape(-1)
    weights = torch.rand(len(targets), generator=generator)
    own = _gradients(
        model,
        model.ops.weighted_cross_entropy(model(token_ids)[:, :-1].flatten(0, 1), targets, weights),
    )
    logits = oracle.model(input_ids=token_ids, use_cache=False).logits[:, :-1].flatten(0, 1)
    losses = nn.functional.cross_entropy(logits, targets, reduction="none")
    expected = _gradients(oracle.model, (losses * weights).sum())
    worst = max(
        float((own[name] - gradient).abs().max() / gradient.abs().max())
        for name, gradient in expected.items()
    )
    return _within(worst, GRADIENT_TOLERANCE, "a gradient")


def check_split_prefill(oracle: Oracle, num_chats: int) -> int:
    """A prompt continued from a cache gives the same answer as in one pass.

    Returns:
        The number of splits that were compared.
    """
    rng = Random(424243)
    num_splits = 0
    for _ in range(num_chats):
        prompt = last_prompt(oracle, make_chat(rng, Stage.MIXED))
        expected = oracle.answer(prompt)
        for position in _split_positions(rng, len(prompt)):
            cache = oracle.prefill(prompt[:position])
            if oracle.answer(prompt[position:], cache) != expected:
                raise CheckFailed(f"a prompt of {len(prompt)} tokens differs, split at {position}")
            num_splits += 1
    return num_splits


def last_prompt(oracle: Oracle, chat: Chat) -> list[int]:
    """Returns the prompt of the last answer of a chat."""
    return oracle.prompt(api_messages(chat, chat.answer_indices()[-1]))


def _split_positions(rng: Random, num_tokens: int) -> list[int]:
    # Near the end, as the tokens after the cache are fed one by one.
    drawn = rng.randrange(max(1, num_tokens - 64), num_tokens)
    return sorted({drawn, num_tokens - 1, max(1, num_tokens - 64)})


def _gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    named: Iterable[tuple[str, nn.Parameter]] = model.named_parameters()
    return {name: parameter.grad for name, parameter in named if parameter.grad is not None}


def _within(difference: Tensor | float, tolerance: float, what: str) -> float:
    if not difference <= tolerance:
        raise CheckFailed(f"{what} differs from transformers by {float(difference):.2e}")
    return float(difference)

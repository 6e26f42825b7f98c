"""Sample conversations: hand-written user turns, with the greedy answers of the model.

Owns the user turns. Nothing is scored.
"""

# ruff: noqa: RUF001 - full-width punctuation is what Chinese text uses.

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from rich.console import Console

from kvreg_service.reference_model.grammar.notes import draw_notes
from kvreg_service.reference_model.grammar.wordlists import capitalise
from kvreg_training.evaluation.oracle import Oracle

_MAX_PRINTED_CHARACTERS = 300


@dataclass(frozen=True)
class Script:
    """The user messages of a conversation."""

    system: str | None
    turns: tuple[str, ...]
    is_thinking: bool = False


def scripts() -> list[Script]:
    """Return one conversation for each part of the grammar."""
    notes, facts = draw_notes(Random(77), 800)
    return [
        Script(
            "You are a helpful assistant.",
            (
                "Hello!",
                "My locker code is 4921.",
                "The deploy is on Thursday. My cat is named Mila. Can you keep that in mind?",
                "What is 7 plus 5?",
                "Please remind me: what is my locker code?",
                "Do you remember this: what is the name of my cat?",
                "On which day is the deploy?",
                "Thanks!",
            ),
        ),
        Script(
            "You are an assistant for a small team. Remember the facts you are told.",
            (
                "Please remember that the billing service is owned by Nadia and "
                "the staging server listens on port 8123.",
                "Just so you know, my favourite colour is teal.",
                "Who owns the billing service?",
                "Correction: the billing service is owned by Omar.",
                "Can you tell me this: who owns the billing service?",
                "Which port does the staging server use?",
                "List everything I told you so far.",
            ),
        ),
        Script(
            notes,
            (
                f"According to the notes, {facts[1].question}?",
                "My table number is 318.",
                f"Please check the notes: {facts[len(facts) // 2].question}?",
                f"I have a question. {capitalise(facts[-2].question)}?",
                "What is my table number?",
            ),
        ),
        Script(
            None,
            (
                "Repeat these words: falcon river maple 4 harbor.",
                "Count from 3 to 12.",
                "Write a title for this conversation: User: My locker code is 4921.",
                "Review this action: delete all backups of the billing service. Allow or deny?",
                "Summarise: The deploy is on Friday. Keep the tone friendly. "
                "The mail server is located in Oslo.",
                "Tell me a short story about Nora in Lisbon.",
            ),
        ),
        Script(
            "You answer briefly and correctly.",
            (
                "I live in Porto.",
                "My door code is 7305 and my sister is called Ines.",
                "Where do I live?",
                "What is my door code?",
            ),
            is_thinking=True,
        ),
        Script(
            "你是一个乐于助人的助手。",
            ("我的柜子密码是4921。", "我的猫叫小花。", "我的柜子密码是多少？", "我的猫叫什么？"),
        ),
    ]


def print_samples(folder: Path, console: Console) -> None:
    """Runs all scripts with the model in ``folder``."""
    torch.set_num_threads(1)
    oracle = Oracle(folder)
    for script in scripts():
        console.rule("with thinking" if script.is_thinking else "")
        messages = []
        if script.system:
            messages.append({"role": "system", "content": script.system})
            console.print(f"system: {script.system[:_MAX_PRINTED_CHARACTERS]}", markup=False)
        for turn in script.turns:
            messages.append({"role": "user", "content": turn})
            prompt = oracle.prompt(messages, enable_thinking=script.is_thinking)
            text = oracle.answer(prompt).text
            console.print(f"user: {turn}", markup=False)
            console.print(f"assistant ({len(prompt)} prompt tokens): {text}", markup=False)
            content = text.split("</think>")[-1].strip()
            messages.append({"role": "assistant", "content": content})

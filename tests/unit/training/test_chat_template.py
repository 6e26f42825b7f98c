"""The service renders conversations like the training data."""

from __future__ import annotations

from random import Random

import pytest

from kvreg_service.chat.prompt.template import ChatTemplate
from kvreg_service.reference_model import REFERENCE_MODEL_PATH
from kvreg_training.data.chat import Chat
from kvreg_training.data.generator import Stage, make_chat
from kvreg_training.data.rendering import render

OPENERS = {
    False: "<|im_start|>assistant\n<think>\n\n</think>\n\n",
    True: "<|im_start|>assistant\n<think>\n",
}


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    return ChatTemplate.from_path(REFERENCE_MODEL_PATH)


def as_sent(chat: Chat, end: int | None = None) -> list[dict[str, object]]:
    """The messages before ``end``, with the reasoning that a thinking model returned."""
    messages = []
    for message in chat.messages[:end]:
        sent: dict[str, object] = {"role": message.role, "content": message.content}
        if chat.is_thinking and message.reasoning:
            sent["reasoning_content"] = message.reasoning
        messages.append(sent)
    return messages


@pytest.mark.parametrize("stage", list(Stage))
def test_the_template_renders_whole_chats_as_the_generator_does(
    template: ChatTemplate, stage: Stage
) -> None:
    rng = Random(3)
    for _ in range(150):
        chat = make_chat(rng, stage)
        text = template.render(
            as_sent(chat),
            add_generation_prompt=False,
            variables={"preserve_thinking": chat.preserves_thinking},
        )
        assert text == render(chat).text


@pytest.mark.parametrize("enable_thinking", [False, True])
def test_a_prompt_is_the_history_and_an_opened_answer(
    template: ChatTemplate, enable_thinking: bool
) -> None:
    rng = Random(4)
    for _ in range(50):
        chat = make_chat(rng, Stage.MIXED)
        messages = as_sent(chat, chat.answer_indices()[-1])
        history = template.render(messages, add_generation_prompt=False)
        prompt = template.render(
            messages, add_generation_prompt=True, variables={"enable_thinking": enable_thinking}
        )
        assert prompt == history + OPENERS[enable_thinking]

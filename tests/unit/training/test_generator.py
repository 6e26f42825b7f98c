"""The generator of training chats: seeded, correct by construction, and unchanged."""

from __future__ import annotations

from hashlib import sha256
from random import Random

import pytest

from kvreg_training.data.chat import Chat
from kvreg_training.data.generator import Stage, make_chat
from kvreg_training.data.rendering import VALUE_WEIGHTS, render

STAGES = list(Stage)

# Of the generator of the bundled checkpoint's data and scores. Another digest means another
# grammar, to which the scores in docs/reference-model.md do not apply.
DIGESTS = {
    Stage.SHORT: "6b305be48eda616f59e7f5fd1e2ff559413d9be77005b72f447855c712369dbb",
    Stage.MIXED: "68f09707dbdfdba3e75ebebde2f39b76512c52568f127ed73e29be5642682e33",
    Stage.DRILLS: "a2f6c02f8bcf1c339927c1369563203f420219d2407f4d11ce616530b99592f5",
    Stage.QUIZZES: "3cab21b14d117604f526373a6c3a6f9294de6c16918a88ec53043da5332a8f95",
}


def make_chats(stage: Stage, num_chats: int, seed: int = 11) -> list[Chat]:
    rng = Random(seed)
    return [make_chat(rng, stage) for _ in range(num_chats)]


@pytest.mark.parametrize("stage", STAGES)
def test_the_same_seed_makes_the_same_chats(stage: Stage) -> None:
    assert make_chats(stage, 50) == make_chats(stage, 50)


@pytest.mark.parametrize("stage", STAGES)
def test_the_grammar_is_the_one_that_the_scores_describe(stage: Stage) -> None:
    texts = "".join(render(chat).text for chat in make_chats(stage, 500))
    assert sha256(texts.encode()).hexdigest() == DIGESTS[stage]


@pytest.mark.parametrize("stage", STAGES)
def test_every_answer_holds_its_value(stage: Stage) -> None:
    for chat in make_chats(stage, 200):
        for index in chat.answer_indices():
            message = chat.messages[index]
            assert message.value is not None
            assert message.value in message.content


@pytest.mark.parametrize("stage", STAGES)
def test_users_and_answers_alternate(stage: Stage) -> None:
    for chat in make_chats(stage, 200):
        roles = [message.role for message in chat.messages if message.role != "system"]
        assert roles == ["user", "assistant"] * (len(roles) // 2)


@pytest.mark.parametrize("boosts_values", [False, True])
def test_spans_cover_the_text_without_gaps(boosts_values: bool) -> None:
    for chat in make_chats(Stage.MIXED, 100):
        rendered = render(chat, boosts_values=boosts_values)
        ends = [0, *(span.end for span in rendered.spans)]
        assert ends[:-1] == [span.start for span in rendered.spans]
        assert ends[-1] == len(rendered.text)


def test_answer_spans_hold_the_content_and_its_end_marker() -> None:
    for chat in make_chats(Stage.MIXED, 100):
        rendered = render(chat)
        texts = [rendered.text[span.start : span.end] for span in rendered.answers]
        expected = [chat.messages[index].content for index in chat.answer_indices()]
        assert texts == [f"{content}<|im_end|>" for content in expected]


def test_boosted_weights_lie_on_the_value_of_the_answer() -> None:
    for chat in make_chats(Stage.MIXED, 100):
        rendered = render(chat, boosts_values=True)
        boosted = [span for span in rendered.spans if span.weight in VALUE_WEIGHTS.values()]
        answers = [chat.messages[index] for index in chat.answer_indices(*VALUE_WEIGHTS)]
        texts = [rendered.text[span.start : span.end].strip() for span in boosted]
        assert texts == [answer.value for answer in answers]

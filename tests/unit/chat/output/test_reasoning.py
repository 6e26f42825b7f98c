"""Reasoning and content are split alike for any division of the text into pieces."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreg_service.chat.conversation import Conversation
from kvreg_service.chat.output.reasoning import ReasoningSplitter
from kvreg_service.chat.prompt.builder import PromptBuilder
from kvreg_service.chat.tokens.tokenizer import Tokenizer

_TEXT = st.lists(
    st.sampled_from(["<think>", "</think>", "</thi", "<", "\n", "\n\n", " ", "a"]), max_size=10
).map("".join)
# What a template can reproduce: reasoning that it does not trim, and any content.
_REASONING = st.text("ab \n<", max_size=12).map(str.strip)
_CONTENT = st.text("ab \n<", max_size=12)


def _split(pieces: list[str], starts_in_reasoning: bool) -> tuple[str, str]:
    splitter = ReasoningSplitter(starts_in_reasoning)
    parts = [part for piece in pieces for part in splitter.push(piece)] + splitter.flush()
    kinds = [kind for kind, _ in parts]
    assert kinds == sorted(kinds, key=["reasoning", "content"].index), "content never goes back"
    assert all(text for _, text in parts)
    reasoning = "".join(text for kind, text in parts if kind == "reasoning")
    return reasoning, "".join(text for kind, text in parts if kind == "content")


@pytest.mark.parametrize(
    ("answer", "starts_in_reasoning", "expected"),
    [
        ("why\n</think>\n\nso", True, ("why", "so")),
        ("\nwhy\n\n</think>so", True, ("why", "so")),
        ("\n</think>\n\nso", True, ("", "so")),
        ("why </think>\n\n\nso", True, ("why ", "\nso")),
        ("cut off\n", True, ("cut off", "")),
        ("cut off</thi", True, ("cut off</thi", "")),
        ("why</think>\n\n", True, ("why", "")),
        ("a</think>b</think>c<think>d", True, ("a", "b</think>c<think>d")),
        ("so", False, ("", "so")),
        ("\n so\n", False, ("", "\n so\n")),
        ("<think>\nwhy\n</think>\n\nso", False, ("why", "so")),
        ("\n<think>why</think>so", False, ("why", "so")),
        ("The tag <think> opens, </think> closes.", False, ("", None)),
        ("<thin", False, ("", "<thin")),
        ("", False, ("", "")),
        ("", True, ("", "")),
    ],
)
def test_an_answer_comes_apart(
    answer: str, starts_in_reasoning: bool, expected: tuple[str, str | None]
) -> None:
    reasoning, content = expected
    assert _split([answer], starts_in_reasoning) == (
        reasoning,
        answer if content is None else content,
    )


@given(answer=_TEXT, starts_in_reasoning=st.booleans(), data=st.data())
def test_the_pieces_do_not_matter(
    answer: str, starts_in_reasoning: bool, data: st.DataObject
) -> None:
    cuts = data.draw(st.sets(st.integers(0, len(answer))))
    places = sorted({0, len(answer), *cuts})
    pieces = [answer[a:b] for a, b in itertools.pairwise(places)]
    assert _split(pieces, starts_in_reasoning) == _split([answer], starts_in_reasoning)


def test_reasoning_streams_before_it_ends() -> None:
    assert ReasoningSplitter(True).push("First, ") == [("reasoning", "First, ")]


@given(reasoning=_REASONING, content=_CONTENT)
def test_the_echo_renders_to_what_was_generated(
    builder: PromptBuilder, tokenizer: Tokenizer, reasoning: str, content: str
) -> None:
    user = {"role": "user", "content": "Why?"}
    prompt = builder.build(Conversation([user], enable_thinking=True, preserve_thinking=True))
    assert prompt.starts_in_reasoning
    generated = f"{reasoning}\n</think>\n\n{content}"
    reasoning_content, answer = _split(list(generated), prompt.starts_in_reasoning)
    echo = {"role": "assistant", "content": answer, "reasoning_content": reasoning_content}
    history = builder.build(Conversation([user, echo, user], preserve_thinking=True))
    text = tokenizer.decode(prompt.token_ids) + generated + "<|im_end|>"
    assert tokenizer.decode(history.token_ids).startswith(text)


def test_reasoning_lasts_from_its_beginning_to_its_end() -> None:
    splitter = ReasoningSplitter(starts_in_reasoning=False)
    seen = []
    for piece in ("\n", "<think>", "\nwhy", "\n</think>", "\n\n", "so"):
        splitter.push(piece)
        seen.append(splitter.is_in_reasoning)
    assert seen == [False, True, True, False, False, False]

"""The boundary is what the next request repeats, also if the template rewrites history."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreg_service.chat.conversation import Conversation
from kvreg_service.chat.echo.echo_index import EchoIndex
from kvreg_service.chat.prompt.builder import ChatPrompt, PromptBuilder
from kvreg_service.chat.prompt.template import ChatTemplate
from kvreg_service.chat.tokens.tokenizer import Tokenizer
from kvreg_service.core.errors import InvalidRequest

BuilderOf = Callable[[str], PromptBuilder]
TemplateOf = Callable[[str], ChatTemplate]
Message = dict[str, object]

_SWITCHES = [
    {"enable_thinking": thinking, "preserve_thinking": preserve}
    for thinking in (False, True)
    for preserve in (False, True)
]
_FORGIVING = ["reference", "chatml", "no_generation_prompt", "no_system_role", "plain_text"]


def _user(text: str = "What now?") -> Message:
    return {"role": "user", "content": text}


def _assistant(text: str, **fields: object) -> Message:
    return {"role": "assistant", "content": text, **fields}


def _tool_round(number: int, content: str = "") -> list[Message]:
    function = {"name": "look_up", "arguments": f'{{"page": {number}}}'}
    call = {"id": f"call{number:05}", "type": "function", "function": function}
    result = {"role": "tool", "tool_call_id": call["id"], "content": f"page {number}"}
    return [_assistant(content, tool_calls=[call]), result]


def _build(builder: PromptBuilder, messages: list[Message], **fields: object) -> ChatPrompt:
    return builder.build(Conversation(messages, **fields))


def _turn_from_end(prompt: ChatPrompt) -> int:
    assert prompt.boundary.turn is not None
    return len(prompt.token_ids) - prompt.boundary.turn


def test_without_thinking_it_lies_right_after_the_opener(
    builder: PromptBuilder, tokenizer: Tokenizer
) -> None:
    prompt = _build(builder, [_user()], enable_thinking=False)
    assert _turn_from_end(prompt) == 4
    assert tokenizer.decode(prompt.token_ids[:-4]).endswith("<|im_start|>assistant\n")


def test_with_thinking_it_lies_right_after_the_opener(
    builder: PromptBuilder, tokenizer: Tokenizer
) -> None:
    prompt = _build(builder, [_user()], enable_thinking=True)
    assert _turn_from_end(prompt) == 2
    assert tokenizer.decode(prompt.token_ids[:-2]).endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize("enable_thinking", [False, True])
def test_preserved_thinking_moves_it_to_the_last_token(
    builder: PromptBuilder, enable_thinking: bool
) -> None:
    prompt = _build(builder, [_user()], enable_thinking=enable_thinking, preserve_thinking=True)
    assert _turn_from_end(prompt) == 1


def test_behind_an_assistant_message_it_lies_back_at_that_message(builder: PromptBuilder) -> None:
    before = _build(builder, [_user()])
    prompt = _build(builder, [_user(), _assistant("Rest.")])
    assert prompt.boundary.turn == before.boundary.turn


def test_a_continued_message_has_the_boundary_of_its_beginning(builder: PromptBuilder) -> None:
    before = _build(builder, [_user()])
    prompt = _build(builder, [_user(), _assistant("We could")], continue_final_message=True)
    assert prompt.boundary.turn == before.boundary.turn


def test_a_continued_message_of_a_faithful_template_is_stable_to_its_end(
    builder_of: BuilderOf,
) -> None:
    messages = [_user(), _assistant("We could")]
    prompt = _build(builder_of("chatml"), messages, continue_final_message=True)
    assert _turn_from_end(prompt) == 1


@pytest.mark.parametrize(
    "name", ["chatml", "no_generation_prompt", "no_system_role", "alternating_roles"]
)
def test_a_template_that_keeps_the_past_is_stable_to_the_last_token(
    builder_of: BuilderOf, name: str
) -> None:
    assert _turn_from_end(_build(builder_of(name), [_user()])) == 1


@pytest.mark.parametrize("name", _FORGIVING)
@pytest.mark.parametrize("text", ["What now?", "Go on then", "4 more please", ""])
def test_a_prompt_with_its_last_message_edited_repeats_everything_before_it(
    builder_of: BuilderOf, name: str, text: str
) -> None:
    history = [_user("Apples?"), _assistant("Red.")]
    prompt = _build(builder_of(name), [*history, _user(text)])
    edited = _build(builder_of(name), [*history, _user("something else")])
    message = prompt.boundary.message
    assert message is not None
    assert prompt.token_ids[:message] == edited.token_ids[:message]
    assert message > (_build(builder_of(name), history[:1]).boundary.turn or 0)


@pytest.mark.parametrize("last", [_tool_round(1), [_assistant("We could")]])
def test_only_the_message_of_a_user_is_expected_to_be_edited(
    builder: PromptBuilder, last: list[Message]
) -> None:
    prompt = _build(builder, [_user(), *last], continue_final_message=len(last) == 1)
    assert prompt.boundary.message is None


def test_a_template_that_forgets_the_past_has_only_its_common_head(builder_of: BuilderOf) -> None:
    prompt = _build(builder_of("only_last_message"), [_user("Apples?")])
    assert prompt.boundary.turn == len(["<|im_start|>", "user", "\n"])


def test_a_template_that_changes_its_first_token_has_none(builder_of: BuilderOf) -> None:
    boundary = _build(builder_of("counts_messages"), [_user()]).boundary
    assert (boundary.turn, boundary.round) == (None, None)


@pytest.mark.parametrize("phrase", ["Quite", "Quite so", "77", "77 of them", "Sure, "])
def test_a_phrase_that_only_the_prompt_has_is_not_stable(
    tokenizer: Tokenizer, template_of: TemplateOf, phrase: str
) -> None:
    source = template_of("chatml").source
    template = ChatTemplate(f"{source}{{% if add_generation_prompt %}}{phrase}{{% endif %}}")
    prompt = _build(PromptBuilder(tokenizer, template, EchoIndex(tokenizer)), [_user()])
    stable = tokenizer.decode(prompt.token_ids[: prompt.boundary.turn])
    assert stable.endswith("<|im_start|>assistant\n")


def test_a_refused_probe_means_none_and_no_error(builder_of: BuilderOf) -> None:
    # The next answer would follow an assistant message, which this template rejects.
    prompt = _build(builder_of("alternating_roles"), [_user(), _assistant("Rest.")])
    assert prompt.boundary.turn is None


def test_a_template_without_system_role_has_one_for_the_others(builder_of: BuilderOf) -> None:
    builder = builder_of("no_system_role")
    assert _build(builder, [_user()]).boundary.turn is not None
    with pytest.raises(InvalidRequest, match="System role not supported") as caught:
        _build(builder, [{"role": "system", "content": "Be kind."}, _user()])
    assert caught.value.param == "messages"


@pytest.mark.parametrize("switches", _SWITCHES)
def test_the_round_advances_in_a_tool_loop(
    builder: PromptBuilder, switches: dict[str, object]
) -> None:
    messages = [_user()]
    rounds = []
    for number in range(4):
        messages += _tool_round(number)
        rounds.append(_build(builder, messages, **switches).boundary.round)
    assert None not in rounds
    assert rounds == sorted(set(rounds))


def test_the_turn_stays_at_the_first_opener_of_a_tool_loop(builder: PromptBuilder) -> None:
    first = _build(builder, [_user()]).boundary.turn
    messages = [_user(), *_tool_round(0), *_tool_round(1)]
    assert _build(builder, messages).boundary.turn == first


def test_the_round_is_stable_to_the_end_without_thinking(builder: PromptBuilder) -> None:
    prompt = _build(builder, [_user(), *_tool_round(0)], enable_thinking=False)
    assert prompt.boundary.round == len(prompt.token_ids) - 1


@pytest.mark.parametrize("last", [_user(), _assistant("Rest."), {"role": "system", "content": ""}])
def test_there_is_no_round_outside_a_tool_loop(builder: PromptBuilder, last: Message) -> None:
    assert _build(builder, [_user(), last]).boundary.round is None


_WORDS = st.text("ab 12\n", max_size=8)
_ANSWER = st.text("ab12", min_size=1, max_size=2).flatmap(lambda a: _WORDS.map(a.__add__))
_EXCHANGE = st.one_of(
    st.tuples(_WORDS, _ANSWER).map(lambda e: [_user(e[0]), _assistant(e[1])]),
    st.tuples(_WORDS, st.integers(0, 3)).map(
        lambda e: [_user(e[0]), *_tool_round(e[1]), _assistant("Done.")]
    ),
)
_HISTORY = st.lists(_EXCHANGE, max_size=3).map(lambda parts: list(itertools.chain(*parts)))


@given(history=_HISTORY, answer=_ANSWER, question=_WORDS, switches=st.sampled_from(_SWITCHES))
@pytest.mark.parametrize("name", _FORGIVING)
def test_the_next_turn_repeats_the_prompt_up_to_the_turn(
    builder_of: BuilderOf,
    name: str,
    history: list[Message],
    answer: str,
    question: str,
    switches: dict[str, object],
) -> None:
    builder = builder_of(name)
    messages = [*history, _user()]
    prompt = _build(builder, messages, **switches)
    following = _build(builder, [*messages, _assistant(answer), _user(question)], **switches)
    position = prompt.boundary.turn
    assert position is not None
    assert following.token_ids[:position] == prompt.token_ids[:position]


@given(history=_HISTORY, content=_ANSWER | st.just(""), switches=st.sampled_from(_SWITCHES))
def test_the_next_round_repeats_the_prompt_up_to_the_round(
    builder: PromptBuilder, history: list[Message], content: str, switches: dict[str, object]
) -> None:
    messages = [*history, _user(), *_tool_round(0)]
    prompt = _build(builder, messages, **switches)
    following = _build(builder, [*messages, *_tool_round(1, content)], **switches)
    position = prompt.boundary.round
    assert position is not None
    assert following.token_ids[:position] == prompt.token_ids[:position]

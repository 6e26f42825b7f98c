"""Heads are what other conversations repeat, and contain what these share."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreg_service.chat.conversation import Conversation
from kvreg_service.chat.echo.echo_index import EchoIndex
from kvreg_service.chat.echo.generated_texts import GeneratedAnswer
from kvreg_service.chat.prompt.builder import ChatPrompt, PromptBuilder
from kvreg_service.chat.prompt.template import ChatTemplate
from kvreg_service.chat.tokens.tokenizer import Tokenizer
from kvreg_service.chat.tool_calls.parser import parse_answer
from kvreg_service.core.requests.request import Head

BuilderOf = Callable[[str], PromptBuilder]
TemplateOf = Callable[[str], ChatTemplate]
Message = dict[str, object]

# These render the tools, if any, and the system message before all other messages.
_IN_ORDER = ["reference", "chatml", "no_generation_prompt", "plain_text", "default_system"]
_FORGIVING = [
    *_IN_ORDER,
    "tools_before_first_user",
    "tools_before_last_user",
    "only_last_message",
]
_SWITCHES = [
    {"enable_thinking": thinking, "preserve_thinking": preserve}
    for thinking in (None, False, True)
    for preserve in (False, True)
]


def _tool(name: str = "look_up") -> Message:
    function = {"name": name, "description": "Turns a page.", "parameters": {"type": "object"}}
    return {"type": "function", "function": function}


def _system(text: str = "You are brief.") -> Message:
    return {"role": "system", "content": text}


def _user(text: str = "What now?") -> Message:
    return {"role": "user", "content": text}


def _assistant(text: str, **fields: object) -> Message:
    return {"role": "assistant", "content": text, **fields}


def _tool_round(number: int, text: str = "") -> list[Message]:
    function = {"name": "look_up", "arguments": f'{{"page": {number}}}'}
    call = {"id": f"call{number:05}", "type": "function", "function": function}
    result = {"role": "tool", "tool_call_id": call["id"], "content": text}
    return [_assistant("", tool_calls=[call]), result]


def _build(builder: PromptBuilder, messages: list[Message], **fields: object) -> ChatPrompt:
    return builder.build(Conversation(messages, **fields))


def _marked(builder: PromptBuilder, messages: list[Message], *marks: int) -> ChatPrompt:
    return _build(builder, messages, marked_messages=frozenset(marks))


def _texts(tokenizer: Tokenizer, prompt: ChatPrompt) -> list[str]:
    return [tokenizer.decode(prompt.token_ids[: head.num_tokens]) for head in prompt.heads]


_LONG = [
    _system(),
    *itertools.chain(*([_user(f"{i}?"), _assistant(f"{i}!")] for i in range(10))),
    _user(),
]


# The head without a mark


@pytest.mark.parametrize("tools", [None, [_tool()]])
@pytest.mark.parametrize("name", [*_IN_ORDER, "tools_before_first_user"])
def test_the_head_holds_the_system_message_and_nothing_of_the_user(
    builder_of: BuilderOf, tokenizer: Tokenizer, name: str, tools: list[Message] | None
) -> None:
    prompt = _build(builder_of(name), [_system(), _user("Apples?")], tools=tools)
    (text,) = _texts(tokenizer, prompt)
    assert "You are brief." in text
    assert "Apples" not in text


@pytest.mark.parametrize("name", ["reference", "tools_before_first_user"])
def test_the_head_holds_the_tools(builder_of: BuilderOf, tokenizer: Tokenizer, name: str) -> None:
    prompt = _build(builder_of(name), [_user()], tools=[_tool(), _tool("count")])
    (text,) = _texts(tokenizer, prompt)
    assert '"count"' in text


def test_the_head_holds_all_leading_system_messages(
    builder: PromptBuilder, tokenizer: Tokenizer
) -> None:
    developer = {"role": "developer", "content": "Be kind."}
    (text,) = _texts(tokenizer, _build(builder, [_system(), developer, _user(), _system("No.")]))
    assert "Be kind." in text
    assert "No." not in text


def test_the_head_holds_a_system_message_that_the_template_invents(
    builder_of: BuilderOf, tokenizer: Tokenizer
) -> None:
    (text,) = _texts(tokenizer, _build(builder_of("default_system"), [_user()]))
    assert "You are a helpful assistant." in text


def test_without_tools_and_system_message_it_is_the_opener_of_the_user(
    builder: PromptBuilder, tokenizer: Tokenizer
) -> None:
    assert _texts(tokenizer, _build(builder, [_user()])) == ["<|im_start|>user"]


def test_other_tools_are_another_head(builder: PromptBuilder) -> None:
    first = _build(builder, [_system(), _user()], tools=[_tool()])
    second = _build(builder, [_system(), _user()], tools=[_tool("count")])
    num_tokens = first.heads[0].num_tokens
    assert first.token_ids[:num_tokens] != second.token_ids[:num_tokens]


@pytest.mark.parametrize("switches", _SWITCHES, ids=str)
def test_thinking_makes_no_difference(builder: PromptBuilder, switches: dict[str, object]) -> None:
    messages = [_system(), _user(), *_tool_round(1)]
    assert _build(builder, messages, **switches).heads == _build(builder, messages).heads


def test_a_continued_message_makes_no_difference(builder: PromptBuilder) -> None:
    messages = [_system(), _user(), _assistant("We could")]
    continued = _build(builder, messages, continue_final_message=True)
    assert continued.heads == _build(builder, messages).heads


@pytest.mark.parametrize("question", ["Go on", "4 more", "Go on, 4 more"])
def test_a_user_message_equal_to_a_placeholder_has_the_same_head(
    builder: PromptBuilder, question: str
) -> None:
    assert _build(builder, [_system(), _user(question)]).heads == (
        _build(builder, [_system(), _user()]).heads
    )


def test_a_system_message_alone_has_a_head(builder: PromptBuilder) -> None:
    (head,) = _build(builder, [_system()]).heads
    assert head.num_tokens > 0


def test_of_a_prompt_that_is_all_head_one_token_is_left(tokenizer: Tokenizer) -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content + '<|im_end|>' }}{% endfor %}")
    prompt = _build(PromptBuilder(tokenizer, template, EchoIndex(tokenizer)), [_system()])
    assert prompt.heads == (Head(len(prompt.token_ids) - 1),)


def test_a_template_that_changes_its_first_token_has_none(builder_of: BuilderOf) -> None:
    assert _marked(builder_of("counts_messages"), _LONG, 0, 4).heads == ()


def test_a_refused_probe_means_none_and_no_error(
    tokenizer: Tokenizer, template_of: TemplateOf
) -> None:
    source = "{% if messages | length == 1 %}{{ raise_exception('Too few') }}{% endif %}"
    template = ChatTemplate(source + template_of("chatml").source)
    builder = PromptBuilder(tokenizer, template, EchoIndex(tokenizer))
    assert _build(builder, [_user(), _assistant("Yes."), _user()]).heads == ()


_WORDS = st.text("ab 12\n.'é", max_size=8)
_EXCHANGE = st.one_of(
    st.tuples(_WORDS, _WORDS).map(lambda e: [_user(e[0]), _assistant(e[1])]),
    st.tuples(_WORDS, st.integers(0, 3), _WORDS).map(
        lambda e: [_user(e[0]), *_tool_round(e[1], e[2]), _assistant("Done.")]
    ),
)
_HISTORY = st.lists(_EXCHANGE, max_size=3).map(lambda parts: list(itertools.chain(*parts)))
_TALK = st.tuples(_HISTORY, _WORDS).map(lambda t: [*t[0], _user(t[1])])
_SYSTEMS = st.lists(_WORDS.map(_system), max_size=2)
_TOOLS = st.sampled_from([None, [_tool()], [_tool(), _tool("count")]])


@given(systems=_SYSTEMS, tools=_TOOLS, talk=_TALK, other=_TALK, switches=st.sampled_from(_SWITCHES))
@pytest.mark.parametrize("name", _FORGIVING)
def test_other_conversations_repeat_the_head(
    builder_of: BuilderOf,
    name: str,
    systems: list[Message],
    tools: list[Message] | None,
    talk: list[Message],
    other: list[Message],
    switches: dict[str, object],
) -> None:
    builder = builder_of(name)
    prompt = _build(builder, [*systems, *talk], tools=tools, **switches)
    following = _build(builder, [*systems, *other], tools=tools, **switches)
    for head in prompt.heads:
        assert following.token_ids[: head.num_tokens] == prompt.token_ids[: head.num_tokens]


@given(systems=_SYSTEMS, tools=_TOOLS, talk=_TALK, other=_TALK)
@pytest.mark.parametrize("name", _IN_ORDER)
def test_other_conversations_have_the_same_head(
    builder_of: BuilderOf,
    name: str,
    systems: list[Message],
    tools: list[Message] | None,
    talk: list[Message],
    other: list[Message],
) -> None:
    builder = builder_of(name)
    first, second = (_build(builder, [*systems, *t], tools=tools) for t in (talk, other))
    assert first.heads == second.heads


@given(system=st.text("ab 12\n.'é<", min_size=1, max_size=40), tools=_TOOLS, talk=_TALK)
@pytest.mark.parametrize("name", _IN_ORDER)
def test_the_head_holds_all_tokens_of_the_system_message(
    builder_of: BuilderOf,
    tokenizer: Tokenizer,
    name: str,
    system: str,
    tools: list[Message] | None,
    talk: list[Message],
) -> None:
    # The text that follows prevents a merge with the last tokens.
    system += "end"
    prompt = _build(builder_of(name), [_system(system), *talk], tools=tools)
    assert system in _texts(tokenizer, prompt)[0]


# The heads that the client marks


def test_a_mark_adds_a_head_right_behind_its_message(
    builder: PromptBuilder, tokenizer: Tokenizer
) -> None:
    prompt = _marked(builder, [_system(), _user("A?"), _assistant("B."), _user("C?")], 1, 2)
    assert [head.is_marked for head in prompt.heads] == [False, True, True]
    _, behind_user, behind_assistant = _texts(tokenizer, prompt)
    assert behind_user.endswith("A?<|im_end|>\n<|im_start|>assistant")
    assert behind_assistant.endswith("B.<|im_end|>\n<|im_start|>user")


@pytest.mark.parametrize("marks", [{"marked_messages": frozenset({0})}, {"marks_tools": True}])
def test_a_mark_on_what_the_first_head_holds_marks_that_head(
    builder: PromptBuilder, marks: dict[str, object]
) -> None:
    messages, tools = [_system(), _user()], [_tool()]
    (head,) = _build(builder, messages, tools=tools).heads
    assert _build(builder, messages, tools=tools, **marks).heads == (Head(head.num_tokens, True),)


def test_a_mark_on_a_later_system_message_adds_a_head(
    builder: PromptBuilder, tokenizer: Tokenizer
) -> None:
    prompt = _marked(builder, [_system(), _user(), _system("No."), _user()], 2)
    assert _texts(tokenizer, prompt)[1].endswith("No.<|im_end|>\n<|im_start|>user")


@pytest.mark.parametrize("last", [_user(), _assistant("Rest."), *_tool_round(1)[1:]])
def test_a_mark_on_the_last_message_adds_none(builder: PromptBuilder, last: Message) -> None:
    messages = [_system(), _user(), last]
    assert _marked(builder, messages, 2).heads == _build(builder, messages).heads


@pytest.mark.parametrize("index", [-1, 22, 1000])
def test_a_mark_on_no_message_adds_none(builder: PromptBuilder, index: int) -> None:
    assert _marked(builder, _LONG, index).heads == _build(builder, _LONG).heads


def test_of_too_many_marks_the_last_four_count(builder: PromptBuilder) -> None:
    assert (
        _marked(builder, _LONG, *range(1, 21)).heads
        == _marked(builder, _LONG, *range(17, 21)).heads
    )
    assert len(_marked(builder, _LONG, *range(1, 21)).heads) == 5


def test_heads_of_one_length_are_one(builder_of: BuilderOf) -> None:
    (head,) = _marked(builder_of("only_last_message"), _LONG, 4, 5).heads
    assert head.is_marked


def test_a_call_is_followed_by_its_result_where_the_template_wants_one(
    tokenizer: Tokenizer, template_of: TemplateOf
) -> None:
    source = """\
{%- for m in messages if m.tool_calls %}
    {%- set result = messages[messages.index(m) + 1] %}
    {%- if result.tool_call_id != m.tool_calls[0].id %}{{ raise_exception('No result') }}{% endif %}
{%- endfor %}"""
    template = ChatTemplate(source + template_of("json_calls").source)
    builder = PromptBuilder(tokenizer, template, EchoIndex(tokenizer))
    prompt = _marked(builder, [_system(), _user(), *_tool_round(1), _user()], 2)
    assert _texts(tokenizer, prompt)[1].endswith("<|im_start|>tool")


def test_a_strict_order_of_roles_is_kept_behind_a_user(builder_of: BuilderOf) -> None:
    messages = [_user("A?"), _assistant("B."), _user("C?")]
    prompt = _marked(builder_of("alternating_roles"), messages, 0, 1)
    assert [head.is_marked for head in prompt.heads] == [False, True, True]


def _fork(history: list[Message], text: str, talk: list[Message]) -> list[Message]:
    """The history, the messages that must follow its last one, and a conversation."""
    last = history[-1]
    if "tool_calls" in last:
        return [*history, *_tool_round(0, text)[1:], _assistant(text), *talk]
    if last["role"] in ("user", "tool"):
        return [*history, _assistant(text), *talk]
    return [*history, *talk]


@given(
    systems=_SYSTEMS,
    talk=_TALK,
    mark=st.integers(0, 16),
    text=_WORDS,
    other=_TALK,
    switches=st.sampled_from(_SWITCHES),
)
@pytest.mark.parametrize("name", _FORGIVING)
def test_a_conversation_that_forks_behind_a_mark_repeats_the_head(
    builder_of: BuilderOf,
    name: str,
    systems: list[Message],
    talk: list[Message],
    mark: int,
    text: str,
    other: list[Message],
    switches: dict[str, object],
) -> None:
    messages = [*systems, *talk]
    # There is no head after a system message that other system messages follow.
    mark = max(mark % len(messages), len(systems) - 1)
    builder = builder_of(name)
    prompt = _build(builder, messages, marked_messages=frozenset({mark}), **switches)
    fork = _build(builder, _fork(messages[: mark + 1], text, other), **switches)
    for head in prompt.heads:
        assert fork.token_ids[: head.num_tokens] == prompt.token_ids[: head.num_tokens]


@given(
    systems=_SYSTEMS,
    talk=_TALK,
    marks=st.frozensets(st.integers(-2, 20), max_size=12),
    marks_tools=st.booleans(),
)
@pytest.mark.parametrize("name", ["reference", "plain_text", "only_last_message"])
def test_heads_are_few_and_in_order(
    builder_of: BuilderOf,
    name: str,
    systems: list[Message],
    talk: list[Message],
    marks: frozenset[int],
    marks_tools: bool,
) -> None:
    messages = [*systems, *talk]
    prompt = _build(builder_of(name), messages, marked_messages=marks, marks_tools=marks_tools)
    positions = [head.num_tokens for head in prompt.heads]
    assert len(positions) <= 5
    assert positions == sorted(set(positions))
    assert all(0 < position < len(prompt.token_ids) for position in positions)


# Generated text


def test_a_head_with_an_answer_has_the_tokens_of_the_model(
    tokenizer: Tokenizer, template_of: TemplateOf
) -> None:
    echo = EchoIndex(tokenizer)
    builder = PromptBuilder(tokenizer, template_of("reference"), echo)
    unusual = [i for letter in "Noted: Monday." for i in tokenizer.encode(letter)]
    asked = _build(builder, [_user()], preserve_thinking=True)
    echo.record(asked.token_ids, unusual)
    messages = [_user(), _assistant("Noted: Monday."), _user("And?")]
    prompt = _build(builder, messages, preserve_thinking=True, marked_messages=frozenset({1}))
    ledger = asked.token_ids + array("i", unusual)
    assert prompt.token_ids[: len(ledger)] == ledger
    assert prompt.heads[-1].num_tokens > len(ledger)


def test_a_head_with_a_tool_call_has_the_generated_text(builder_of: BuilderOf) -> None:
    builder, tools = builder_of("reference"), [_tool()]
    asked = _build(builder, [_user()], tools=tools)
    generated = '<tool_call>\n{"arguments":{"page":1},"name":"look_up"}\n</tool_call>'
    content, calls = parse_answer(generated, tools)
    builder.remember(asked, GeneratedAnswer(content, calls, generated))
    messages = [_user(), *_tool_round(1, "blue")]
    prompt = _build(
        builder,
        [*messages, _assistant("Blue."), _user()],
        tools=tools,
        marked_messages=frozenset({1, 2}),
    )
    fork = _build(builder, [*messages, _assistant("Sky."), _user()], tools=tools)
    *_, behind_call, behind_result = prompt.heads
    assert behind_call.num_tokens < behind_result.num_tokens
    num_tokens = behind_result.num_tokens
    assert prompt.token_ids[:num_tokens] == fork.token_ids[:num_tokens]


# Cost


class CountingTemplate(ChatTemplate):
    """Counts the messages that are rendered."""

    num_messages = 0

    def render(self, messages: Sequence[Message], **arguments: object) -> str:  # type: ignore[override]
        self.num_messages += len(messages)
        return super().render(messages, **arguments)  # type: ignore[arg-type]


class CountingTokenizer(Tokenizer):
    """Counts the characters that are encoded, cached or not."""

    num_characters = 0

    def encode_segment(self, segment: str, tenant: str = "default") -> array[int]:
        self.num_characters += len(segment)
        return super().encode_segment(segment, tenant)


@pytest.fixture
def counting_template(template_of: TemplateOf) -> CountingTemplate:
    return CountingTemplate(template_of("reference").source)


def test_counting_probes_nothing(tokenizer: Tokenizer, counting_template: CountingTemplate) -> None:
    builder = PromptBuilder(tokenizer, counting_template, EchoIndex(tokenizer))
    builder.count(Conversation(_LONG, marked_messages=frozenset({0, 4})))
    assert counting_template.num_messages == len(_LONG)


def test_the_first_head_renders_only_what_it_holds(
    tokenizer: Tokenizer, counting_template: CountingTemplate
) -> None:
    builder = PromptBuilder(tokenizer, counting_template, EchoIndex(tokenizer))
    builder.build(Conversation(_LONG))
    # The prompt, two next turns, two edits of the last message, and twice the system message with
    # a placeholder.
    assert counting_template.num_messages == 3 * len(_LONG) + 2 * (len(_LONG) + 2) + 2 + 4


def test_heads_encode_only_what_the_prompt_lacks(model_path: Path, template_of: TemplateOf) -> None:
    tokenizer = CountingTokenizer.from_path(model_path)
    assert isinstance(tokenizer, CountingTokenizer)
    builder = PromptBuilder(tokenizer, template_of("reference"), EchoIndex(tokenizer))
    texts = [{"role": r, "content": "word " * 500} for r in ("user", "assistant") * 10]
    messages = [_system("word " * 500), *texts, _user()]
    tokenizer.num_characters = 0
    _marked(builder, messages, 0, 3, 6, 9, 12)
    assert tokenizer.num_characters < 1.02 * sum(len(str(m["content"])) for m in messages)


@pytest.mark.parametrize("template", _FORGIVING)
def test_a_mark_inside_a_message_is_a_head_that_other_questions_share(
    builder_of: BuilderOf, template: str
) -> None:
    document = "The store opens at nine. " * 20
    builder = builder_of(template)
    prompts = [
        _build(
            builder,
            [_system(), _user(document + question)],
            marked_texts=frozenset({(1, len(document))}),
        )
        for question in ("When?", "Until when is it open?")
    ]
    heads = [next(head for head in prompt.heads if head.is_marked) for prompt in prompts]
    assert heads[0] == heads[1]
    first, second = (prompt.token_ids[: heads[0].num_tokens] for prompt in prompts)
    assert first == second
    assert heads[0].num_tokens > len(prompts[0].token_ids) // 2


@pytest.mark.parametrize("end", [0, 9, 99])
def test_a_mark_outside_of_the_text_of_a_message_is_no_head_of_its_own(
    builder_of: BuilderOf, end: int
) -> None:
    prompt = _build(
        builder_of("reference"), [_system(), _user("What now?")], marked_texts=frozenset({(1, end)})
    )
    assert not any(
        head.is_marked and head.num_tokens >= len(prompt.token_ids) - 1 for head in prompt.heads
    )

"""Tool calls are found for any division of the text into pieces, and no text is lost."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreg_service.chat.tool_calls.parser import Part, ToolCallParser, parse_answer
from kvreg_service.chat.tool_calls.tool_call import ToolCall

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {
                "type": "object",
                "properties": {"at": {"type": "string"}, "days": {"type": "integer"}},
            },
        },
    }
]

TAGS = (
    "<tool_call>\n<function=look>\n<parameter=at>\nthe sky\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
)
JSON = '<tool_call>\n{"name": "look", "arguments": {"at": "the sky", "days": 3}}\n</tool_call>'
CALL = ToolCall("look", {"at": "the sky", "days": 3})


def tags(value: str, key: str = "at") -> str:
    """A call with one argument, as the template of the reference model writes it."""
    return (
        f"<tool_call>\n<function=look>\n<parameter={key}>\n{value}\n</parameter>\n"
        "</function>\n</tool_call>"
    )


def merged(parts: Iterable[Part]) -> list[Part]:
    """Parts with adjacent texts joined."""
    result: list[Part] = []
    for part in parts:
        if isinstance(part, str) and result and isinstance(result[-1], str):
            result[-1] += part
        else:
            result.append(part)
    return result


def parse(pieces: Sequence[str], tools: Sequence[dict[str, object]] = TOOLS) -> list[Part]:
    parser = ToolCallParser(tools)
    parts = [part for piece in pieces for part in parser.push(piece)]
    return merged([*parts, *parser.flush()])


@pytest.mark.parametrize("call", [TAGS, JSON], ids=["tags", "json"])
@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("", "", [CALL]),
        ("Let me look.\n\n", "", ["Let me look.", CALL]),
        ("Let me look.\n", "\n", ["Let me look.", CALL]),
        ("Let me look. ", "", ["Let me look. ", CALL]),
        ("\n\n", "\n\n", [CALL]),
        ("", "\nDone.", [CALL, "Done."]),
        ("A\n\n", "\n\nB\n", ["A", CALL, "\n\nB\n"]),
    ],
)
def test_line_breaks_around_a_call_belong_to_it(
    call: str, before: str, after: str, expected: list[Part]
) -> None:
    assert parse([before + call + after]) == expected


@pytest.mark.parametrize("between", ["", "\n", "\n\n"])
def test_several_calls_come_in_their_order(between: str) -> None:
    assert parse([TAGS + between + JSON]) == [CALL, CALL]


def test_a_call_may_have_no_arguments() -> None:
    whole = "<tool_call>\n<function=now>\n</function>\n</tool_call>"
    short = '<tool_call>{"name": "now"}</tool_call>'
    assert parse([whole, short]) == [ToolCall("now", {}), ToolCall("now", {})]


def test_a_call_of_an_unknown_tool_is_a_call() -> None:
    text = "<tool_call>\n<function=fly>\n<parameter=to>\n3\n</parameter>\n</function>\n</tool_call>"
    assert parse([text]) == [ToolCall("fly", {"to": "3"})]


MALFORMED = {
    "explanation": "A call begins with <tool_call> and ends with </tool_call>.",
    "no function": "<tool_call>\nlook at the sky\n</tool_call>",
    "no name": "<tool_call>\n<function=>\n</function>\n</tool_call>",
    "no end of the function": "<tool_call>\n<function=look>\n</tool_call>",
    "no end of a parameter": TAGS.replace("\n</parameter>", "", 1),
    "text between parameters": TAGS.replace("</parameter>\n<", "</parameter>\nand\n<"),
    "a parameter twice": TAGS.replace("=days", "=at"),
    "text behind the function": TAGS.replace("</function>\n", "</function>\nok\n"),
    "no JSON": '<tool_call>\n{"name": "look", "arguments": {at: 3}}\n</tool_call>',
    "two objects": '<tool_call>\n{"name": "a"}\n{"name": "b"}\n</tool_call>',
    "a list": '<tool_call>\n[{"name": "look"}]\n</tool_call>',
    "arguments that are no object": '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
    "arguments as text": '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>',
    "a name that is no text": '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
    "an empty name": '<tool_call>{"name": "", "arguments": {}}</tool_call>',
    "other keys": '<tool_call>{"name": "f", "parameters": {}}</tool_call>',
    "not a number": '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
    "half a character": '<tool_call>{"name": "f", "arguments": {"a": "\\ud800"}}</tool_call>',
    "too deep": '<tool_call>{"name": "f", "arguments": {"a": ' + "[" * 5000 + "</tool_call>",
    "an end only": "</tool_call>",
    "a beginning only": "<tool_call>",
}


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED)
@pytest.mark.parametrize("around", ["{}", "So:\n\n{}\n\nSee?\n"])
def test_text_that_is_not_a_call_stays_text(text: str, around: str) -> None:
    whole = around.replace("{}", text)
    assert parse([whole]) == [whole]


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED)
def test_a_call_after_text_that_is_not_one_is_found(text: str) -> None:
    # Inside an open value, all text is part of the value until the answer ends.
    parts = parse([f"{text}\n\n{TAGS}"])
    assert parts == [text, CALL]


@given(length=st.integers(0, len(TAGS) - 1), form=st.sampled_from([TAGS, JSON]))
def test_a_call_that_is_cut_stays_text(length: int, form: str) -> None:
    text = f"Let me look.\n\n{form[: min(length, len(form) - 1)]}"
    assert parse([text]) == [text]


@given(data=st.data())
def test_a_cut_answer_keeps_its_whole_calls(data: st.DataObject) -> None:
    rest = TAGS[: data.draw(st.integers(1, len(TAGS) - 1))]
    assert parse([f"{JSON}\n{rest}"]) == [CALL, rest]


@given(
    data=st.data(),
    text=st.sampled_from(
        [f"A\n\n{TAGS}\n{JSON}\n\nB", f"A{12 * chr(10)}{TAGS}{12 * chr(10)}B", *MALFORMED.values()]
    ),
)
def test_the_cutting_of_the_stream_makes_no_difference(data: st.DataObject, text: str) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parse(pieces) == parse([text])


@given(
    parts=st.lists(
        st.sampled_from([TAGS, JSON, "<tool_call>", "</tool_call>", "\n", " ", "a", '"', "{"]),
        max_size=8,
    )
)
def test_no_text_is_lost(parts: list[str]) -> None:
    text = "".join(parts)
    found = [part for part in parse([text]) if isinstance(part, ToolCall)]
    content = "".join(part for part in parse([text]) if isinstance(part, str))
    rest = text.replace(TAGS, "").replace(JSON, "") if found else text
    assert content.replace("\n", "") in (rest.replace("\n", ""), text.replace("\n", ""))


def test_text_leaves_at_once() -> None:
    parser = ToolCallParser(TOOLS)
    assert [parser.push(piece) for piece in ("Hello", ", ", "you <b>")] == [
        ["Hello"], [", "], ["you <b>"],
    ]  # fmt: skip


def test_only_what_may_begin_a_call_is_held_back() -> None:
    parser = ToolCallParser(TOOLS)
    pieces = ("Hm.\n\n<tool", "s>", "<tool_call> is", " a tag")
    assert [merged(parser.push(piece)) for piece in pieces] == [
        ["Hm."], ["\n\n<tools>"], ["<tool_call> is"], [" a tag"],
    ]  # fmt: skip


def test_line_breaks_without_an_end_are_not_waited_for() -> None:
    parser = ToolCallParser(TOOLS)
    pieces = [piece for _ in range(20) for piece in parser.push("\n")]
    assert pieces == ["\n"] * 12


def test_a_call_leaves_with_its_last_character() -> None:
    parser = ToolCallParser(TOOLS)
    assert parser.push(TAGS[:-1]) == []
    assert parser.push(TAGS[-1]) == [CALL]


@pytest.mark.parametrize(
    "value",
    [
        "",
        " indented",
        "two\nlines\n",
        "\n",
        "a < b && c > d",
        "</tool_call>",
        "<tool_call>\n</tool_call>",
        "the tag </parameter> ends one",
        "</function>",
        'a "quoted" \\ text',
        "Grüße, 世界",
    ],
)
def test_a_value_of_text_is_taken_as_it_is(value: str) -> None:
    assert parse([tags(value)]) == [ToolCall("look", {"at": value})]
    call = json.dumps({"name": "look", "arguments": {"at": value}}, ensure_ascii=False)
    assert parse([f"<tool_call>\n{call}\n</tool_call>"]) == [ToolCall("look", {"at": value})]


def test_a_value_without_lines_of_its_own_is_taken_too() -> None:
    text = "<tool_call><function=look><parameter=at>here</parameter></function></tool_call>"
    assert parse([text]) == [ToolCall("look", {"at": "here"})]


@given(
    arguments=st.dictionaries(
        st.text(st.characters(categories=["L"]), min_size=1, max_size=5),
        st.text(max_size=20),
        max_size=4,
    )
)
def test_the_pieces_of_the_arguments_make_up_their_json(arguments: dict[str, object]) -> None:
    call = ToolCall("look", arguments)
    assert json.loads("".join(call.argument_pieces())) == arguments
    assert call.arguments_json == json.dumps(arguments, ensure_ascii=False)


def test_a_whole_answer_is_its_content_and_its_calls() -> None:
    assert parse_answer(f"A\n\n{TAGS}\n\nB", TOOLS) == ("A\n\nB", [CALL])

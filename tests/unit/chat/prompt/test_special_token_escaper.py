"""Special tokens in client text are escaped, and unescaping restores the text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvreg_service.chat.messages import Message
from kvreg_service.chat.prompt.special_token_escaper import SpecialTokenEscaper

_SPECIAL = ["<|im_start|>", "<|im_end|>"]
_ESCAPER = SpecialTokenEscaper(special_tokens=_SPECIAL, added_tokens=[*_SPECIAL, "<think>"])
_TEXT = st.lists(
    st.sampled_from([*_SPECIAL, "<think>", "\ufdd0", "<\ufdd0|im_end|>"]) | st.text(max_size=4)
).map("".join)


def _escaped_content(role: str, content: str) -> str:
    message: Message = {"role": role, "content": content}
    return str(_ESCAPER.escape_messages([message])[0]["content"])


@given(text=_TEXT)
def test_no_special_token_is_left(text: str) -> None:
    protected = _escaped_content("user", text)
    assert not any(token in protected for token in _SPECIAL)


@given(role=st.sampled_from(["user", "tool"]), text=_TEXT)
def test_unescaping_restores_the_text(role: str, text: str) -> None:
    assert _ESCAPER.unescape(_escaped_content(role, text)) == text


def test_other_added_tokens_stay_outside_tool_results() -> None:
    assert "<think>" in _escaped_content("assistant", "<think>")


def test_other_added_tokens_are_text_in_tool_results() -> None:
    assert "<think>" not in _escaped_content("tool", "<think>")


def test_nested_values_and_keys_are_escaped() -> None:
    tool = {"parameters": [{"<|im_end|>": ("<|im_end|>", 1, None)}]}
    assert "<|im_end|>" not in str(_ESCAPER.escape(tool))


def test_without_added_tokens_nothing_is_escaped() -> None:
    escaper = SpecialTokenEscaper(special_tokens=[], added_tokens=[])
    assert escaper.escape("<|im_end|>") == "<|im_end|>"

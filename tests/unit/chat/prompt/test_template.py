"""Templates render as in transformers, and errors give the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreg_service.chat.prompt.template import ChatTemplate
from kvreg_service.core.errors import CheckpointError, InvalidRequest

_TOOLS = [{"type": "function", "function": {"name": "f", "description": "<b> & 'é'"}}]

_TEXT = st.text(max_size=12)
_CALL = st.builds(
    lambda name, arguments: {
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    },
    _TEXT,
    st.dictionaries(_TEXT, _TEXT | st.integers() | st.lists(_TEXT, max_size=2), max_size=2),
)
_MESSAGE = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "tool"]), "content": _TEXT}),
    st.fixed_dictionaries(
        {
            "role": st.just("assistant"),
            "content": _TEXT | st.just("<think>\nwhy\n</think>\n\nso"),
        },
        optional={"reasoning_content": _TEXT, "tool_calls": st.lists(_CALL, max_size=2)},
    ),
)


@pytest.fixture(scope="module")
def reference(template_of: Callable[[str], ChatTemplate]) -> ChatTemplate:
    return template_of("reference")


@given(
    messages=st.lists(_MESSAGE, min_size=1, max_size=6),
    tools=st.sampled_from([None, _TOOLS]),
    add_generation_prompt=st.booleans(),
    variables=st.dictionaries(
        st.sampled_from(["enable_thinking", "preserve_thinking"]), st.booleans()
    ),
)
def test_rendering_equals_that_of_transformers(
    reference: ChatTemplate,
    oracle: Any,
    messages: list[dict[str, object]],
    tools: list[dict[str, object]] | None,
    add_generation_prompt: bool,
    variables: dict[str, bool],
) -> None:
    rendered = reference.render(
        messages, tools=tools, add_generation_prompt=add_generation_prompt, variables=variables
    )
    assert rendered == oracle.apply_chat_template(
        messages,
        tools=tools,
        add_generation_prompt=add_generation_prompt,
        tokenize=False,
        **variables,
    )


@pytest.mark.parametrize(
    "source",
    [
        "{{ bos_token }}{% if documents is none %}no documents{% endif %}",
        "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}a{% endfor %}",
        "{% for m in messages %}\n  {% generation %}{{ m.role }}{% endgeneration %}\n{% endfor %}",
        "{{ messages | tojson(indent=2) }}",
        "{% if true %}\n  kept{% endif %}\n",
    ],
)
def test_the_environment_equals_that_of_transformers(oracle: Any, source: str) -> None:
    messages = [{"role": "user", "content": "<é>"}, {"role": "assistant", "content": "b"}]
    tokens = {"bos_token": "<|im_start|>"}
    rendered = ChatTemplate(source, special_tokens=tokens).render(
        messages, add_generation_prompt=False
    )
    assert rendered == oracle.apply_chat_template(
        messages, chat_template=source, tokenize=False, **tokens
    )


def test_the_clock_of_a_template_is_an_argument() -> None:
    template = ChatTemplate(
        "{{ strftime_now('%Y-%m-%d') }}", now=lambda: datetime(2024, 2, 29, 12, 0, 0)
    )
    assert template.render([], add_generation_prompt=True) == "2024-02-29"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('Only user and assistant roles are supported') }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages[5].content.missing }}",
        "{{ messages[0].content.split('') }}",
        "{{ 1 // 0 }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    ],
)
def test_a_template_that_fails_refuses_the_messages(source: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ChatTemplate(source).render([{"role": "user", "content": "a"}], add_generation_prompt=True)
    assert caught.value.param == "messages"


def test_variables_cannot_replace_the_messages() -> None:
    template = ChatTemplate("{{ messages[0].content }}")
    variables = {"messages": [{"role": "user", "content": "forged"}]}
    messages = [{"role": "user", "content": "sent"}]
    assert template.render(messages, add_generation_prompt=True, variables=variables) == "sent"


def test_a_syntax_error_is_found_at_start() -> None:
    with pytest.raises(CheckpointError, match="does not compile"):
        ChatTemplate("{% if %}")


def test_a_folder_without_a_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no chat template"):
        ChatTemplate.from_path(tmp_path)


@pytest.mark.parametrize("value", ["T", [{"name": "default", "template": "T"}]])
def test_a_template_within_the_tokenizer_config_is_found(tmp_path: Path, value: object) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": value}))
    assert ChatTemplate.from_path(tmp_path).render([], add_generation_prompt=True) == "T"


def test_the_digest_covers_the_special_tokens() -> None:
    with_token = ChatTemplate("{{ bos_token }}", special_tokens={"bos_token": "<s>"})
    assert with_token.digest != ChatTemplate("{{ bos_token }}").digest

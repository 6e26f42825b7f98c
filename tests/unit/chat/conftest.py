"""The reference model's tokenizer, and templates with known difficulties."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import kvreg_service.reference_model
from kvreg_service.chat.echo.echo_index import EchoIndex
from kvreg_service.chat.prompt.builder import PromptBuilder
from kvreg_service.chat.prompt.template import ChatTemplate
from kvreg_service.chat.tokens.tokenizer import Tokenizer

# On a busy machine only the time limit of pytest applies.
settings.register_profile("chat", deadline=None, max_examples=50)
settings.load_profile("chat")

_CHATML = """\
{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endfor %}"""

_GENERATION_PROMPT = """
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""

_TEMPLATES = {
    "chatml": _CHATML + _GENERATION_PROMPT,
    "no_generation_prompt": _CHATML,
    "no_system_role": """\
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
"""
    + _CHATML
    + _GENERATION_PROMPT,
    "alternating_roles": """\
{%- for m in messages %}
    {%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/...') }}
    {%- endif %}
    {{- '<|im_start|>' + m.role + '\\n' + m.content | trim + '<|im_end|>\\n' }}
{%- endfor %}"""
    + _GENERATION_PROMPT,
    "plain_text": """\
{%- for m in messages %}{{- m.role + ': ' + m.content + '\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{- 'assistant:' }}{% endif %}""",
    "only_last_message": """\
{{- '<|im_start|>' + messages[-1].role + '\\n' + messages[-1].content + '<|im_end|>\\n' }}"""
    + _GENERATION_PROMPT,
    "json_calls": """\
{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\\n' + m.content }}
    {%- for call in m.tool_calls or [] %}
        {{- ('\\n' if m.content or not loop.first else '') + '<tool_call>\\n' }}
        {{- {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}
        {{- '\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}"""
    + _GENERATION_PROMPT,
    "python_calls": """\
{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\\n' + m.content }}
    {%- for call in m.tool_calls or [] %}{{ call.function.name + '()' }}{% endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}"""
    + _GENERATION_PROMPT,
    "default_system": """\
{%- if messages[0].role != 'system' %}
    {{- '<|im_start|>system\\n' + 'You are a helpful assistant.' + '<|im_end|>\\n' }}
{%- endif %}
"""
    + _CHATML
    + _GENERATION_PROMPT,
    "tools_before_first_user": """\
{%- set system = messages[0].content | trim if messages[0].role == 'system' else '' %}
{{- '<|im_start|>system\\n' + 'Knowledge ends: December 2023\\n\\n' + system + '<|im_end|>\\n' }}
{%- set ns = namespace(tools=tools) %}
{%- for m in (messages[1:] if messages[0].role == 'system' else messages) %}
    {{- '<|im_start|>' + m.role + '\\n' }}
    {%- if ns.tools and m.role == 'user' %}
        {%- for tool in ns.tools %}{{- tool | tojson(indent=4) + '\\n\\n' }}{% endfor %}
        {%- set ns.tools = none %}
    {%- endif %}
    {{- m.content | trim + '<|im_end|>' }}
{%- endfor %}"""
    + _GENERATION_PROMPT,
    "tools_before_last_user": """\
{{- bos_token }}
{%- for m in messages %}
    {%- if loop.last and tools %}{{- '[TOOLS]' + tools | tojson + '[/TOOLS]' }}{% endif %}
    {%- if m.role == 'system' %}
        {{- '[SYSTEM_PROMPT]' + m.content + '[/SYSTEM_PROMPT]' }}
    {%- elif m.role == 'user' %}
        {{- '[INST]' + m.content + '[/INST]' }}
    {%- else %}
        {{- m.content }}
    {%- endif %}
{%- endfor %}""",
    "counts_messages": """\
{{- messages | length }}"""
    + _CHATML
    + _GENERATION_PROMPT,
}

BuilderOf = Callable[[str], PromptBuilder]


@pytest.fixture(scope="session")
def model_path() -> Path:
    return Path(kvreg_service.reference_model.__file__).parent


@pytest.fixture(scope="session")
def oracle(model_path: Path) -> Any:
    """The tokenizer and template as transformers reads them."""
    # Imported only for the tests that need it: it takes seconds.
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_path)


@pytest.fixture(scope="session")
def tokenizer(model_path: Path) -> Tokenizer:
    return Tokenizer.from_path(model_path)


@pytest.fixture(scope="session")
def template_of(model_path: Path) -> Callable[[str], ChatTemplate]:
    """Templates by name; ``reference`` is that of the bundled model."""

    def find(name: str) -> ChatTemplate:
        if name == "reference":
            return ChatTemplate.from_path(model_path)
        return ChatTemplate(_TEMPLATES[name])

    return find


@pytest.fixture(scope="session")
def builder_of(tokenizer: Tokenizer, template_of: Callable[[str], ChatTemplate]) -> BuilderOf:
    """Prompt builders by template name, each with an echo index of its own."""

    def build(name: str) -> PromptBuilder:
        return PromptBuilder(tokenizer, template_of(name), EchoIndex(tokenizer))

    return build


@pytest.fixture(scope="session")
def builder(builder_of: BuilderOf) -> PromptBuilder:
    """The builder of the reference model; nothing is ever recorded in its echo index."""
    return builder_of("reference")

"""The chat template of a model, which renders messages to the text of a prompt.

Owns the compiled template and its Jinja environment, which matches the one of transformers. It does
not validate messages, does not tokenize, and makes no assumptions about a template.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from pathlib import Path

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kvreg_service.core.errors import CheckpointError, InvalidRequest

_SPECIAL_TOKEN_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)

# What the expressions of a template can raise on messages that its author did not anticipate.
_TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class ChatTemplate:
    """One compiled template. Thread-safe, as rendering has no side effects."""

    def __init__(
        self,
        source: str,
        *,
        special_tokens: Mapping[str, str] | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Compile ``source``; ``special_tokens`` are the variables such as ``bos_token``.

        Raises:
            CheckpointError: The template has a syntax error.
        """
        self.source = source
        self._special_tokens = dict(special_tokens or {})
        identity = json.dumps([source, sorted(self._special_tokens.items())])
        self.digest = sha256(identity.encode()).hexdigest()
        try:
            self._template = _environment(now).from_string(source)
        except jinja2.TemplateError as err:
            raise CheckpointError(f"the chat template does not compile: {err}") from err

    @classmethod
    def from_path(cls, path: Path | str) -> ChatTemplate:
        """Read ``chat_template.jinja``, or else the template in ``tokenizer_config.json``.

        Raises:
            CheckpointError: There is no template, or it has a syntax error.
        """
        folder = Path(path)
        config: dict[str, object] = {}
        try:
            if (folder / "tokenizer_config.json").exists():
                config = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
            if (folder / "chat_template.jinja").exists():
                source: object = (folder / "chat_template.jinja").read_text("utf-8")
            else:
                source = _default_template(config.get("chat_template"))
        except (OSError, ValueError) as err:
            raise CheckpointError(f"the chat template in {folder} is unreadable: {err}") from err
        if not isinstance(source, str):
            raise CheckpointError(
                f"there is no chat template in {folder}: neither chat_template.jinja nor "
                "a chat_template in tokenizer_config.json",
                path=str(folder),
            )
        tokens = {name: _token_text(config.get(name)) for name in _SPECIAL_TOKEN_NAMES}
        return cls(source, special_tokens={k: v for k, v in tokens.items() if v is not None})

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """Render ``messages``. ``variables`` cannot override the other arguments.

        Raises:
            InvalidRequest: The template rejects these messages or fails on them.
        """
        context = {
            **self._special_tokens,
            **(variables or {}),
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template.render(context)
        except _TEMPLATE_ERRORS as err:
            raise InvalidRequest(
                f"the chat template of this model refuses the conversation: {err}",
                param="messages",
            ) from err


class _GenerationTag(Extension):
    """Accepts ``{% generation %}``, which marks the assistant's text for training."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it as an instance variable)

    def parse(self, parser: Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )

    def strftime_now(form: str) -> str:
        return now().strftime(form)

    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters, which no model was trained on.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _default_template(value: object) -> object:
    if not isinstance(value, list):
        return value
    named = {entry["name"]: entry["template"] for entry in value if isinstance(entry, dict)}
    return named.get("default")


def _token_text(token: object) -> str | None:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None

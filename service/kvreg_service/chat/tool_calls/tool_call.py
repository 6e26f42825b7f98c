"""A tool call of a model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ToolCall:
    """The name of a tool and its arguments as JSON values."""

    name: str
    arguments: Mapping[str, object]

    @property
    def arguments_json(self) -> str:
        """The arguments as JSON text."""
        return "".join(self.argument_pieces())

    def argument_pieces(self) -> Iterator[str]:
        """Yield the JSON text of the arguments, one argument at a time."""
        opener = "{"
        for key, value in self.arguments.items():
            yield f"{opener}{_dump(key)}: {_dump(value)}"
            opener = ", "
        yield "}" if self.arguments else "{}"


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)

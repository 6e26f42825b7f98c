"""One call of a tool, as a model asks for it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ToolCall:
    """The name of a tool and its arguments, which are JSON values."""

    name: str
    arguments: Mapping[str, object]

    @property
    def arguments_json(self) -> str:
        """The arguments as the text of a JSON object."""
        return "".join(self.argument_pieces())

    def argument_pieces(self) -> Iterator[str]:
        """The text of the arguments, cut behind each of them."""
        opener = "{"
        for key, value in self.arguments.items():
            yield f"{opener}{_dump(key)}: {_dump(value)}"
            opener = ", "
        yield "}" if self.arguments else "{}"


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)

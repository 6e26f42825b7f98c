"""One answer while it grows: engine events in, typed pieces of text and the final numbers out.

Owns what has been generated so far for one request. Streamed and whole answers are folded by the
same code, so they cannot differ in text, in finish reason or in counts. It knows no HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvreg_service.chat.reasoning import Kind, ReasoningSplitter
from kvreg_service.engine.interface import Finished, GenerationEvent, Started, TextDelta


@dataclass(frozen=True)
class Piece:
    """Some more text of one kind."""

    kind: Kind
    text: str


class ChatAnswer:
    """Folds the events of one request. ``push`` changes it; the properties only read."""

    def __init__(self, *, starts_in_reasoning: bool) -> None:
        self._splitter = ReasoningSplitter(starts_in_reasoning)
        self._is_in_reasoning = starts_in_reasoning
        self._texts: dict[Kind, list[str]] = {"reasoning": [], "content": []}
        self.started: Started | None = None
        self.finished: Finished | None = None
        self.completion_tokens = 0
        self.reasoning_tokens = 0

    def push(self, event: GenerationEvent) -> list[Piece]:
        """Take the next event; return the text that it made certain, in order."""
        match event:
            case Started():
                self.started = event
                return []
            case TextDelta():
                self.completion_tokens += event.num_tokens
                if self._is_in_reasoning:
                    self.reasoning_tokens += event.num_tokens
                return self._take(self._splitter.push(event.text))
            case Finished():
                self.finished = event
                self.completion_tokens = event.completion_tokens
                return self._take(self._splitter.flush())

    def _take(self, parts: list[tuple[Kind, str]]) -> list[Piece]:
        for kind, text in parts:
            self._texts[kind].append(text)
            self._is_in_reasoning = kind == "reasoning"
        return [Piece(kind, text) for kind, text in parts]

    @property
    def content(self) -> str:
        """The answer without its reasoning."""
        return "".join(self._texts["content"])

    @property
    def reasoning(self) -> str | None:
        """The reasoning, or None when there was none."""
        return "".join(self._texts["reasoning"]) or None

    def usage(self) -> dict[str, Any]:
        """Build the ``usage`` of the response. Every number is an integer, also on a miss."""
        started = self.started
        assert started is not None, "usage is asked for after the first event only"
        return {
            "prompt_tokens": started.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": started.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": started.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "kvreg": {
                "reuse_path": started.reuse_path,
                "attach": started.attach,
                "computed_tokens": started.computed_tokens,
            },
        }

    def timings(self) -> dict[str, float]:
        """Build the ``timings`` of the response, in seconds."""
        assert self.finished is not None, "timings are asked for after the last event only"
        timings = self.finished.timings
        return {
            "queue_s": timings.queue_s,
            "attach_s": timings.attach_s,
            "prefill_s": timings.prefill_s,
            "decode_s": timings.decode_s,
            "ttft_s": timings.ttft_s,
        }

"""One answer while it grows: engine events in, typed pieces out, and what they add up to.

Owns what has been generated so far for one request, and the order in which it is taken apart:
reasoning first, then tool calls within what is left. Streamed and whole answers are folded by the
same code, so they cannot differ in text, in calls or in counts. It knows no HTTP and no API.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvreg_service.chat.echo.generated_texts import SpelledAnswer
from kvreg_service.chat.output.reasoning import Kind, ReasoningSplitter
from kvreg_service.chat.tool_calls.parser import Part, ToolCallParser
from kvreg_service.chat.tool_calls.tool_call import ToolCall
from kvreg_service.engine.interface import (
    Finished,
    GenerationEvent,
    Started,
    TextDelta,
    TokenReport,
)


@dataclass(frozen=True)
class TextPiece:
    """Some more text of one kind, and the reports of tokens that came with it."""

    kind: Kind
    text: str
    reports: tuple[TokenReport, ...] = ()


@dataclass(frozen=True)
class CallPiece:
    """One more tool call. ``index`` counts the calls of the answer, ``call_id`` is unique."""

    index: int
    call_id: str
    call: ToolCall


Piece = TextPiece | CallPiece


class ChatAnswer:
    """Folds the events of one request. ``push`` changes it; the properties only read.

    Tool calls are looked for when ``tools`` is not empty.
    """

    def __init__(
        self, *, starts_in_reasoning: bool, tools: Sequence[Mapping[str, object]] = ()
    ) -> None:
        self._splitter = ReasoningSplitter(starts_in_reasoning)
        self._parser = ToolCallParser(tools) if tools else None
        self._spelling: list[str] = []
        self.reports: list[TokenReport] = []
        self._num_reports_given = 0
        self.pieces: list[Piece] = []
        self.calls: list[CallPiece] = []
        self.started: Started | None = None
        self.finished: Finished | None = None
        self.completion_tokens = 0
        self.reasoning_tokens = 0

    def push(self, event: GenerationEvent) -> list[Piece]:
        """Take the next event; return what it made certain, in order."""
        match event:
            case Started():
                self.started = event
                return []
            case TextDelta():
                self.completion_tokens += event.num_tokens
                if self._splitter.is_in_reasoning:
                    self.reasoning_tokens += event.num_tokens
                else:
                    self.reports += event.reports
                return self._take(self._splitter.push(event.text))
            case Finished():
                self.finished = event
                self.completion_tokens = event.completion_tokens
                pieces = self._take(self._splitter.flush())
                return pieces + self._take_parts(self._parser.flush() if self._parser else [])

    def _take(self, texts: list[tuple[Kind, str]]) -> list[Piece]:
        pieces: list[Piece] = []
        for kind, text in texts:
            if kind == "reasoning":
                pieces.append(TextPiece(kind, text))
                self.pieces.append(pieces[-1])
            else:
                self._spelling.append(text)
                pieces += self._take_parts(self._parser.push(text) if self._parser else [text])
        return pieces

    def _take_parts(self, parts: Sequence[Part]) -> list[Piece]:
        pieces: list[Piece] = []
        for part in parts:
            if isinstance(part, str):
                pieces.append(TextPiece("content", part, self.take_reports()))
            else:
                call = CallPiece(len(self.calls), uuid.uuid4().hex[:24], part)
                self.calls.append(call)
                pieces.append(call)
        self.pieces += pieces
        return pieces

    def take_reports(self) -> tuple[TokenReport, ...]:
        """The reports of tokens since the last piece of content, so that each is given once.

        Tokens of reasoning have none, those of tool calls do.
        """
        reports = tuple(self.reports[self._num_reports_given :])
        self._num_reports_given = len(self.reports)
        return reports

    def _text_of(self, kind: Kind) -> str:
        texts = (piece for piece in self.pieces if isinstance(piece, TextPiece))
        return "".join(piece.text for piece in texts if piece.kind == kind)

    @property
    def content(self) -> str:
        """The text of the answer, without its reasoning and its tool calls."""
        return self._text_of("content")

    @property
    def reasoning(self) -> str | None:
        """The reasoning, or None when there was none."""
        return self._text_of("reasoning") or None

    def spelled(self) -> SpelledAnswer:
        """The answer beside the text that the model wrote for it."""
        calls = [piece.call for piece in self.calls]
        return SpelledAnswer(self.content, calls, "".join(self._spelling))

    def timings(self) -> dict[str, float]:
        """Build the ``timings`` of a response, in seconds."""
        assert self.finished is not None, "timings are asked for after the last event only"
        timings = self.finished.timings
        return {
            "queue_s": timings.queue_s,
            "attach_s": timings.attach_s,
            "prefill_s": timings.prefill_s,
            "decode_s": timings.decode_s,
            "ttft_s": timings.ttft_s,
        }

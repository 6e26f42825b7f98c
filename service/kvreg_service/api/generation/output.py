"""The output of one request while it is generated: engine events in, typed parts out.

Owns the order in which text is split: reasoning first, then tool calls in the rest. Streamed and
whole responses use the same code, so their text, calls and counts are equal. Independent of HTTP
and of the API.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvreg_service.chat.echo.generated_texts import GeneratedAnswer
from kvreg_service.chat.output.reasoning import Kind, ReasoningSplitter
from kvreg_service.chat.tool_calls.parser import Part, ToolCallParser
from kvreg_service.chat.tool_calls.tool_call import ToolCall
from kvreg_service.core.requests.request import Admission
from kvreg_service.engine.interface.generation import (
    Finished,
    GenerationEvent,
    Started,
    TextDelta,
    TokenReport,
)


@dataclass(frozen=True)
class TextPart:
    """Text of one kind, with the log probabilities of its tokens."""

    kind: Kind
    text: str
    reports: tuple[TokenReport, ...] = ()


@dataclass(frozen=True)
class ToolCallPart:
    """A tool call. ``index`` counts the calls of the response; ``call_id`` is unique."""

    index: int
    call_id: str
    call: ToolCall


OutputPart = TextPart | ToolCallPart


class GenerationOutput:
    """Accumulates the events of one request. Only ``push`` and ``take_reports`` mutate it.

    Text is parsed for tool calls only if ``tools`` is not empty.
    """

    def __init__(
        self, *, starts_in_reasoning: bool, tools: Sequence[Mapping[str, object]] = ()
    ) -> None:
        self._splitter = ReasoningSplitter(starts_in_reasoning)
        self._parser = ToolCallParser(tools) if tools else None
        self._raw_texts: list[str] = []
        self.reports: list[TokenReport] = []
        self._num_reports_taken = 0
        self.parts: list[OutputPart] = []
        self.calls: list[ToolCallPart] = []
        self.admission: Admission | None = None
        self.finished: Finished | None = None
        self.completion_tokens = 0
        self.reasoning_tokens = 0

    def push(self, event: GenerationEvent) -> list[OutputPart]:
        """Take the next event and return the parts that it completes, in order."""
        match event:
            case Started():
                self.admission = event.admission
                return []
            case TextDelta():
                self.completion_tokens += event.num_tokens
                if self._splitter.is_in_reasoning:
                    self.reasoning_tokens += event.num_tokens
                else:
                    self.reports += event.reports
                return self._split_reasoning(self._splitter.push(event.text))
            case Finished():
                self.finished = event
                self.completion_tokens = event.completion_tokens
                parts = self._split_reasoning(self._splitter.flush())
                return parts + self._split_calls(self._parser.flush() if self._parser else [])

    def _split_reasoning(self, texts: list[tuple[Kind, str]]) -> list[OutputPart]:
        parts: list[OutputPart] = []
        for kind, text in texts:
            if kind == "reasoning":
                parts.append(TextPart(kind, text))
                self.parts.append(parts[-1])
            else:
                self._raw_texts.append(text)
                parts += self._split_calls(self._parser.push(text) if self._parser else [text])
        return parts

    def _split_calls(self, spans: Sequence[Part]) -> list[OutputPart]:
        parts: list[OutputPart] = []
        for span in spans:
            if isinstance(span, str):
                parts.append(TextPart("content", span, self.take_reports()))
            else:
                call = ToolCallPart(len(self.calls), uuid.uuid4().hex[:24], span)
                self.calls.append(call)
                parts.append(call)
        self.parts += parts
        return parts

    def take_reports(self) -> tuple[TokenReport, ...]:
        """Return the token reports since the last content part, each of them once.

        Tokens of reasoning have no reports; tokens of tool calls do.
        """
        reports = tuple(self.reports[self._num_reports_taken :])
        self._num_reports_taken = len(self.reports)
        return reports

    def _text_of(self, kind: Kind) -> str:
        texts = (part for part in self.parts if isinstance(part, TextPart))
        return "".join(part.text for part in texts if part.kind == kind)

    @property
    def content(self) -> str:
        """The text without reasoning and tool calls."""
        return self._text_of("content")

    @property
    def reasoning(self) -> str | None:
        """The reasoning; None if there is none."""
        return self._text_of("reasoning") or None

    def generated_answer(self) -> GeneratedAnswer:
        """Return content and calls with the text that the model generated for them."""
        calls = [part.call for part in self.calls]
        return GeneratedAnswer(self.content, calls, "".join(self._raw_texts))

    def timings(self) -> dict[str, float]:
        """Build the ``timings`` of a response, in seconds."""
        assert self.finished is not None, "the timings are known after the last event"
        timings = self.finished.timings
        return {
            "queue_s": timings.queue_s,
            "attach_s": timings.attach_s,
            "prefill_s": timings.prefill_s,
            "decode_s": timings.decode_s,
            "ttft_s": timings.ttft_s,
        }

"""Runs a story against an engine and records what each request reused.

Owns the path from the messages of a step to its row. ``verdict`` compares rows with expectations.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from kvreg_service.chat.conversation import Conversation
from kvreg_service.chat.prompt.builder import PromptBuilder
from kvreg_service.core.errors import InvariantBroken
from kvreg_service.core.labels import Attach, ReusePath
from kvreg_service.core.requests.request import Admission
from kvreg_service.demo.story import AnswerTo, Message, Step, Story
from kvreg_service.engine.interface.generation import (
    Finished,
    GenerationRequest,
    Started,
    TextDelta,
)
from kvreg_service.engine.interface.protocol import EngineProtocol

MAX_ANSWER_TOKENS = 48
"""Correct answers of the bundled model are shorter; longer ones are cut."""


@dataclass(frozen=True)
class Row:
    """The reuse and the answer of one request."""

    step: str
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    path: ReusePath
    attach: Attach
    ttft_s: float
    completion_tokens: int
    text: str

    @property
    def sha256(self) -> str:
        """The digest of the answer, as hex."""
        return hashlib.sha256(self.text.encode()).hexdigest()


async def play(story: Story, engine: EngineProtocol, builder: PromptBuilder) -> tuple[Row, ...]:
    """Run the requests of a story in order and return a row for each."""
    rows: list[Row] = []
    for step in story.steps:
        answers = {row.step: row.text for row in rows}
        messages = [_as_sent(message, answers) for message in step.messages]
        prompt = builder.build(Conversation(messages))
        request = GenerationRequest(f"{story.name}/{step.name}", prompt, MAX_ANSWER_TOKENS)
        rows.append(await _ask(step, engine, request))
    return tuple(rows)


def _as_sent(message: Message, answers: dict[str, str]) -> dict[str, str]:
    if isinstance(message, AnswerTo):
        return {"role": "assistant", "content": answers[message.step]}
    return {"role": message.role, "content": message.text}


async def _ask(step: Step, engine: EngineProtocol, request: GenerationRequest) -> Row:
    admission: Admission | None = None
    finished: Finished | None = None
    text = ""
    async for event in engine.generate(request):
        match event:
            case Started():
                admission = event.admission
            case TextDelta():
                text += event.text
            case Finished():
                finished = event
    if admission is None or finished is None:
        raise InvariantBroken(f"request {request.request_id} ended without its first or last event")
    return Row(
        step=step.name,
        prompt_tokens=admission.prompt_tokens,
        cached_tokens=admission.cached_tokens,
        computed_tokens=admission.computed_tokens,
        path=admission.reuse_path,
        attach=admission.attach,
        ttft_s=finished.timings.ttft_s,
        completion_tokens=finished.completion_tokens,
        text=text,
    )

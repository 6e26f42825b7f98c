"""Cases 4 and 43: tool calls with side requests in between.

The bundled model is not trained to call tools. A teacher replaces each sampled token by the next
token of a given call. The model computes as usual, so that states, pages and ledgers are real.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from tests.api.taught_engine import Teacher
from tests.cases.profiles import WITH_REGISTRY, Profile, few_with_registry
from tests.cases.server import MODEL, Message, Serve, Server
from tests.cases.session import SLACK_TOKENS

from kvreg_service.core.requests.request import Request
from kvreg_service.core.scheduling.step import StepPlan, StepResult
from kvreg_service.engine.build import LoadedModel
from kvreg_service.engine.loop.runner import ModelRunner

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {
                "type": "object",
                "properties": {"at": {"type": "string"}, "page": {"type": "integer"}},
            },
        },
    }
]
SYSTEM: Message = {
    "role": "system",
    "content": "Ticket 4. You are a helpful assistant. "
    + "The notes are updated once a week. Keep the tone friendly. " * 6,
}


@pytest.fixture
def teacher(loaded_model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> Teacher:
    """Dictates the answers to the next requests of every engine in this test."""
    teacher = Teacher(loaded_model)
    begin, execute = ModelRunner.begin, ModelRunner.execute

    def begin_taught(runner: ModelRunner, request: Request) -> None:
        begin(runner, request)
        teacher.begin(request)

    def execute_taught(runner: ModelRunner, plan: StepPlan) -> StepResult:
        result = execute(runner, plan)
        teacher.correct(result)
        return result

    monkeypatch.setattr(ModelRunner, "begin", begin_taught)
    monkeypatch.setattr(ModelRunner, "execute", execute_taught)
    return teacher


def _call_text(page: int) -> str:
    return (
        "<tool_call>\n<function=look>\n<parameter=at>\nthe log\n</parameter>\n"
        f"<parameter=page>\n{page}\n</parameter>\n</function>\n</tool_call>"
    )


@dataclass(frozen=True)
class Step:
    """One answer of a tool loop: its token counts and its message."""

    prompt_tokens: int
    cached: int
    path: str
    message: Message

    @property
    def arguments(self) -> Any:
        """The arguments of the only tool call."""
        (call,) = self.message["tool_calls"]
        assert call["function"]["name"] == "look"
        return json.loads(call["function"]["arguments"])


def _ask(server: Server, messages: list[Message]) -> Step:
    body = {"model": MODEL, "messages": messages, "tools": TOOLS, "temperature": 0}
    answer = server.post_raw(json.dumps(body)).raise_for_status().json()
    usage = answer["usage"]
    return Step(
        prompt_tokens=usage["prompt_tokens"],
        cached=usage["prompt_tokens_details"]["cached_tokens"],
        path=usage["kvreg"]["reuse_path"],
        message=answer["choices"][0]["message"],
    )


def _result(step: Step) -> Message:
    (call,) = step.message["tool_calls"]
    page = step.arguments["page"]
    text = f"Page {page}: the nightly run took {page} minutes."
    return {"role": "tool", "tool_call_id": call["id"], "content": text}


def _send_title_request(server: Server, messages: list[Message]) -> None:
    """Send a side request whose text contains the end of the transcript."""
    lines = [f"{message['role']}: {message.get('content') or ''}" for message in messages[-4:]]
    transcript = "Write a title for this conversation:\n\n" + "\n".join(lines)
    server.ask([{"role": "user", "content": transcript}], max_tokens=64)


def _loop(
    server: Server, teacher: Teacher, messages: list[Message], pages: range
) -> tuple[list[Step], list[Message]]:
    """Play one tool call per page, each followed by a side request."""
    steps: list[Step] = []
    for page in pages:
        teacher.answers = [_call_text(page)]
        step = _ask(server, messages)
        steps.append(step)
        messages = [*messages, step.message, _result(step)]
        _send_title_request(server, messages)
    return steps, messages


def _opening(text: str) -> list[Message]:
    return [SYSTEM, {"role": "user", "content": text}]


@few_with_registry
def test_case_4_each_of_20_steps_hits_after_a_side_request(
    serve: Serve, teacher: Teacher, profile: Profile
) -> None:
    server = serve(profile)
    with server.one_lane_left():
        steps, _ = _loop(server, teacher, _opening("What does the log say?"), range(1, 22))
    for previous, step in pairwise(steps):
        assert step.cached >= previous.prompt_tokens - SLACK_TOKENS, step


def test_case_4_steps_append_with_keep(serve: Serve, teacher: Teacher) -> None:
    steps, _ = _loop(serve(), teacher, _opening("What does the log say?"), range(1, 5))
    assert {step.path for step in steps[1:]} == {"append_frontier"}


def test_case_4_steps_miss_without_a_registry(serve: Serve, teacher: Teacher) -> None:
    server = serve(Profile(entries=0))
    steps, _ = _loop(server, teacher, _opening("What does the log say?"), range(1, 4))
    assert {step.path for step in steps} == {"full_reset"}


@few_with_registry
def test_case_43_tool_calls_of_six_turns_are_well_formed_between_side_requests(
    serve: Serve, teacher: Teacher, profile: Profile
) -> None:
    server = serve(profile)
    messages = _opening("What does the log say?")
    for page in range(1, 7):
        steps, messages = _loop(server, teacher, messages, range(page, page + 1))
        assert [step.arguments for step in steps] == [{"at": "the log", "page": page}]
        answer = server.ask(messages, tools=TOOLS)
        messages = [*messages, answer.echo, {"role": "user", "content": "What comes next?"}]


# With drop, the tool loop moves the only checkpoint away from the start of the turn.
@pytest.mark.parametrize(
    "profile", [p for p in WITH_REGISTRY if p.current_state == "keep"], ids=str
)
def test_case_43_turns_with_tool_calls_hit_between_side_requests(
    serve: Serve, teacher: Teacher, profile: Profile
) -> None:
    server = serve(profile)
    messages = _opening("What does the log say?")
    firsts = []
    for page in range(1, 5):
        steps, messages = _loop(server, teacher, messages, range(page, page + 1))
        firsts += steps
        answer = server.ask(messages, tools=TOOLS)
        messages = [*messages, answer.echo, {"role": "user", "content": "What comes next?"}]
        _send_title_request(server, messages)
    for previous, step in pairwise(firsts):
        assert step.cached >= previous.prompt_tokens - SLACK_TOKENS, step

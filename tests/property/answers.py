"""Every request and its answer, which must equal that of a cold run and end exactly once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kvreg_service.core import events
from kvreg_service.core.errors import KvregError, QueueTimeout
from kvreg_service.core.ids import RequestId
from kvreg_service.core.requests.request import Request
from kvreg_service.core.scheduling.step import StepPlan, StepResult
from kvreg_service.testing.fake_runner import Prefix

STOP_TOKENS = frozenset({4, 5})


def next_token(prefix: Prefix) -> int:
    """Return a token that depends on the whole prefix; 3 in 100 are stop tokens."""
    token = hash(prefix) % 100
    return 4 + token % 2 if token < 3 else 10 + token % 90


class Answers:
    """Requests as they were accepted. ``on_answer`` gets every full output."""

    def __init__(
        self, context_tokens: int, on_answer: Callable[[RequestId, list[int]], None]
    ) -> None:
        self._context_tokens = context_tokens
        self._on_answer = on_answer
        self.requests: dict[str, Request] = {}
        self.terminals: dict[str, events.Terminal] = {}
        self.outputs: dict[str, list[int]] = {}
        self._computed: dict[str, int] = {}
        self._cached: dict[str, int] = {}
        self._errors: dict[str, KvregError] = {}
        """By request: the error that was injected into its last step."""

    def submitted(self, request: Request) -> Request:
        """Note a request; return it as the scheduler must treat it."""
        room = self._context_tokens - request.prompt_tokens
        request = replace(request, max_tokens=min(request.max_tokens, room))
        self.requests[request.request_id] = request
        self.outputs[request.request_id] = []
        return request

    def open_requests(self) -> list[str]:
        return [one for one in self.requests if one not in self.terminals]

    def admitted(self, event: events.Admitted) -> None:
        self._cached[event.request_id] = event.admission.cached_tokens
        self._computed[event.request_id] = 0

    def reuse_failed(self, event: events.ReuseFailed) -> None:
        """The same request is queued again, without reuse."""
        request = self.requests[event.request_id]
        assert request.cache_policy.may_reuse, "a request without reuse failed to reuse"
        assert event.error is self._errors[event.request_id]
        cold = replace(request.cache_policy, may_reuse=False)
        self.requests[event.request_id] = replace(request, cache_policy=cold)

    def computed(self, plan: StepPlan, result: StepResult) -> None:
        """Note what a step computed of prompts."""
        self._errors = dict(result.failed)
        for work in plan.work:
            if work.request_id not in result.failed:
                end = min(work.end, self.requests[work.request_id].prompt_tokens)
                self._computed[work.request_id] += max(0, end - work.start)

    def sampled(self, event: events.TokenSampled) -> bool:
        """Note a token; return whether it is the last one."""
        request, output = self.requests[event.request_id], self.outputs[event.request_id]
        cold = next_token((*request.prompt.tokens, *output))
        assert event.token == cold, "the output differs from that of a cold run"
        output.append(event.token)
        return event.token in STOP_TOKENS or len(output) == request.max_tokens

    def ended(self, event: events.Terminal) -> None:
        """Note the end of a request and check its cause."""
        assert event.request_id not in self.terminals, f"{event.request_id} ended twice"
        self.terminals[event.request_id] = event
        output = self.outputs[event.request_id]
        match event:
            case events.Finished():
                self._check_finished(event, output)
                self._on_answer(event.request_id, output)
            case events.Cancelled():
                assert event.completion_tokens == len(output)
            case events.Failed() if not isinstance(event.error, QueueTimeout):
                assert event.error is self._errors.get(event.request_id), event.error

    def _check_finished(self, event: events.Finished, output: list[int]) -> None:
        request = self.requests[event.request_id]
        cached, computed = self._cached[event.request_id], self._computed[event.request_id]
        assert cached + computed == request.prompt_tokens
        assert event.completion_tokens == len(output) <= request.max_tokens
        assert request.prompt_tokens + len(output) <= self._context_tokens
        assert event.reason == ("stop" if output[-1] in STOP_TOKENS else "length")

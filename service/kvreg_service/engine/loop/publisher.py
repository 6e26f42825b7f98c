"""Tells everybody what the scheduler's events mean for them: readers, counters, observers, the log.

Owns the answers in flight and the counts. It decides nothing. Called on the step loop's thread or
under the engine's lock.
"""

from __future__ import annotations

import logging
from collections import defaultdict

from kvreg_service.chat.echo.echo_index import EchoIndex
from kvreg_service.chat.tokens.tokenizer import Tokenizer
from kvreg_service.core import events
from kvreg_service.core.errors import KvregError, wrap_failure
from kvreg_service.core.ids import RequestId
from kvreg_service.core.step import StepPlan, StepResult
from kvreg_service.engine.interface.snapshot import Totals
from kvreg_service.engine.loop.runner import Runner
from kvreg_service.engine.output.answer import Answer
from kvreg_service.engine.reporting.observers import Observers
from kvreg_service.engine.reporting.totals import Tally

logger = logging.getLogger(__name__)

_REGISTRY_EVENTS = (
    events.Detached,
    events.Attached,
    events.Forked,
    events.Evicted,
    events.AnchorCaptured,
    events.PinEnded,
)


class Publisher:
    """Turns events into what others see of them."""

    def __init__(
        self, runner: Runner, tokenizer: Tokenizer, echo: EchoIndex, observers: Observers
    ) -> None:
        self.answers: dict[RequestId, Answer] = {}
        self._runner = runner
        self._tokenizer = tokenizer
        self._echo = echo
        self._observers = observers
        self._finished: list[Answer] = []
        self._tallies: defaultdict[str | None, Tally] = defaultdict(Tally)

    def totals(self, tenant: str | None) -> Totals:
        """Return the counts of one tenant, or of all together."""
        return self._tallies[tenant].totals()

    def send_texts(self) -> None:
        """Tell all readers of what has been sampled since the last time."""
        for answer in self.answers.values():
            answer.send_text()

    def fail_all(self, error: KvregError) -> None:
        """Tell all readers that there will be no more."""
        for answer in self.answers.values():
            answer.fail(error)
        self.answers.clear()

    def remember_spellings(self) -> None:
        """Note how the answers that have finished were spelled, for those who echo them.

        Takes a while for long answers: called without the lock, on the step loop's thread.
        """
        for answer in self._finished:
            try:
                self._remember_spelling(answer)
            except Exception:
                # Its echo is tokenised anew then, and may reuse less.
                logger.exception("the spelling of an answer is not remembered")
        self._finished.clear()

    def publish(
        self,
        happened: list[events.Event],
        plan: StepPlan | None = None,
        result: StepResult | None = None,
    ) -> None:
        """Tell everybody what happened; with the step that it happened in, if it was one."""
        self._tell_of_moves(happened, plan, result)
        for event in happened:
            if isinstance(event, _REGISTRY_EVENTS):
                self._observers.registry_changed(event)
            match event:
                case events.Admitted():
                    attach_s = result.prepare_s if plan and result else 0.0
                    self.answers[event.request_id].admit(event.admission, attach_s)
                case events.TokenSampled():
                    answer = self.answers[event.request_id]
                    gap_s = answer.take_token()
                    if gap_s is not None:
                        self._observers.token_followed(gap_s)
                    # Readers tell tokens of reasoning from others by the delta they came in.
                    if self._tokenizer.is_added(event.token):
                        answer.send_text()
                case events.Finished():
                    answer = self.answers[event.request_id]
                    try:
                        answer.finish(event)
                        self._finished.append(answer)
                    except Exception as error:  # noqa: BLE001 - contained to this answer
                        answer.fail(wrap_failure("finishing an answer", error))
                    self._end(event)
                case events.ReuseFailed():
                    logger.warning(
                        "request %s could not reuse what was kept and is computed from nothing: %s",
                        event.request_id,
                        event.error,
                        exc_info=event.error.__cause__,
                    )
                case events.Failed():
                    logger.warning(
                        "request %s failed: %s",
                        event.request_id,
                        event.error,
                        exc_info=event.error.__cause__,
                    )
                    self.answers[event.request_id].fail(event.error)
                    self._end(event)
                case events.Cancelled():
                    self.answers[event.request_id].end_silently()
                    self._end(event)
                case events.Evicted():
                    for tally in self._tallies_of(event.tenant):
                        tally.evictions[event.reason] += 1
                    logger.info(
                        "evicted sequence %d (%d tokens, %d bytes): %s",
                        event.sequence_id, event.tokens, event.held_bytes, event.reason,
                    )  # fmt: skip
                case events.UpkeepFailed():
                    logger.error(
                        "keeping the books failed: %s", event.error, exc_info=event.error.__cause__
                    )
                case events.PinEnded():
                    logger.warning(
                        "the pin of sequence %d has ended: it left too little for others",
                        event.sequence_id,
                    )
                case _:
                    logger.debug("%s", event)

    def _end(self, event: events.Terminal) -> None:
        """Forget a request whose reader has been told."""
        self._runner.forget(event.request_id)
        answer = self.answers.pop(event.request_id)
        for tally in self._tallies_of(answer.asked.tenant):
            tally.count_end(event, answer.admission, len(answer.output_ids))
        if self._observers:
            self._observers.request_ended(answer.record(event))

    def _tell_of_moves(
        self, happened: list[events.Event], plan: StepPlan | None, result: StepResult | None
    ) -> None:
        if plan is None or result is None or plan.preparation is None or not result.is_prepared:
            return
        is_attach = any(isinstance(event, events.Attached) for event in happened)
        is_detach = any(isinstance(event, events.Detached) for event in happened)
        self._observers.states_moved(result.prepare_s, is_attach=is_attach, is_detach=is_detach)

    def _tallies_of(self, tenant: str) -> tuple[Tally, Tally]:
        """The counts of all tenants together, and of one."""
        return self._tallies[None], self._tallies[tenant]

    def _remember_spelling(self, answer: Answer) -> None:
        output = answer.output_ids
        if output and output[-1] in answer.request.stop_token_ids:
            output = output[:-1]
        asked = answer.asked
        self._echo.record(asked.prompt.token_ids, output, asked.tenant)

"""kvreg's engine in this process, without HTTP."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, field

from answer import Answer, Messages, decode_rate

from kvreg_service.chat.conversation import Conversation
from kvreg_service.core.requests.request import Admission, CachePolicy
from kvreg_service.engine.build import LoadedModel, build_engine
from kvreg_service.engine.interface.generation import (
    Finished,
    GenerationRequest,
    Started,
    TextDelta,
)
from kvreg_service.engine.options import EngineOptions


@dataclass
class Stream:
    """The events of one request, with the client's time of each token."""

    start_s: float
    token_times_s: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    admission: Admission | None = None
    finished: Finished | None = None

    def answer(self) -> Answer:
        """Return the measurements of a stream that has ended."""
        assert self.admission is not None, "the stream has not started"
        assert self.finished is not None, "the stream has not ended"
        timings = self.finished.timings
        num_tokens = self.finished.completion_tokens
        client_s = self.token_times_s[-1] - self.token_times_s[0]
        return Answer(
            text="".join(self.texts),
            prompt_tokens=self.admission.prompt_tokens,
            computed_tokens=self.admission.computed_tokens,
            completion_tokens=num_tokens,
            ttft_s=self.token_times_s[0] - self.start_s,
            prefill_tokens_per_s=self.admission.computed_tokens / timings.prefill_s,
            decode_tokens_per_s=decode_rate(num_tokens, timings.decode_s),
            client_decode_tokens_per_s=decode_rate(num_tokens, client_s),
        )


class InProcess:
    """An engine and the event loop that reads from it. Close it after use."""

    name = "kvreg in process"

    def __init__(self, options: EngineOptions, loaded: LoadedModel | None = None) -> None:
        self._engine, self._prompts = build_engine(options, loaded)
        self._runner = asyncio.Runner()
        self._numbers = itertools.count()

    def close(self) -> None:
        """Stop the step loop."""
        self._engine.close()
        self._runner.close()

    def complete(self, messages: Messages, max_tokens: int) -> Answer:
        """Generate greedily and without thinking."""
        return self.complete_all([messages], max_tokens)[0].answer()

    def reset_cache(self) -> None:
        """Drop all kept sequences of lanes and entries."""
        snapshot = self._engine.snapshot()
        for place in (*snapshot.lanes, *snapshot.entries):
            if place.sequence_id is not None:
                self._engine.drop_sequence(place.sequence_id)

    def complete_all(self, conversations: list[Messages], max_tokens: int) -> list[Stream]:
        """Run all requests concurrently and wait for the last one."""

        async def gather() -> list[Stream]:
            return await asyncio.gather(*(self._stream(one, max_tokens) for one in conversations))

        return self._runner.run(gather())

    async def _stream(self, messages: Messages, max_tokens: int, retain: bool = True) -> Stream:
        stream = Stream(time.perf_counter())
        prompt = self._prompts.build(Conversation(messages=messages))
        request = GenerationRequest(
            f"bench-{next(self._numbers)}",
            prompt,
            max_tokens,
            cache_policy=CachePolicy(retain=retain),
        )
        async for event in self._engine.generate(request):
            match event:
                case Started():
                    stream.admission = event.admission
                case TextDelta():
                    stream.texts.append(event.text)
                    stream.token_times_s += [time.perf_counter()] * event.num_tokens
                case Finished():
                    stream.finished = event
        return stream

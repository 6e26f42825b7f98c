"""A soak from the first operation to an engine at rest.

Owns the engine, the clients and the order of the checks at the end: wait until the engine is idle,
compare the totals, repeat doubtful and some other answers cold, drop everything kept, check that
the engine is empty.
"""

from __future__ import annotations

import asyncio
import gc
import resource
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from random import Random

from tests.soak.client import Client
from tests.soak.door import Door, EngineDoor
from tests.soak.faults import Faults
from tests.soak.judge import Judge
from tests.soak.operations import Operation, draw_operations, of_client

from kvreg_service.chat.prompt.builder import PromptBuilder
from kvreg_service.core.requests.request import CachePolicy
from kvreg_service.core.states.kept_state import KeptState, Session
from kvreg_service.engine.build import LoadedModel, build_engine
from kvreg_service.engine.engine import Engine
from kvreg_service.engine.interface.snapshot import RegistrySnapshot
from kvreg_service.engine.options import EngineOptions
from kvreg_service.engine.output.stream import OutputStream
from kvreg_service.model.sampling import Sampler
from kvreg_service.reference_model import REFERENCE_MODEL_PATH

NUM_CLIENTS = 6
IDLE_TIMEOUT_S = 60.0
MAX_CONTROLS = 200
MAX_GROWTH_BYTES = 48 << 20
"""How much the peak memory of the process may grow in the second half of a long soak."""

OPTIONS = EngineOptions(
    REFERENCE_MODEL_PATH,
    "reference",
    lanes=4,
    entries=4,
    max_context_tokens=1536,
    # Too few for eight conversations at rest and four that run.
    num_pages=64,
    prefill_chunk_tokens=128,
    queue_limit=4,
    queue_timeout_s=600.0,
)

COLD = CachePolicy(retain=False, may_reuse=False)

OnProgress = Callable[[Operation], None]
OpenDoor = Callable[[Engine, PromptBuilder], AbstractContextManager[Door]]


@contextmanager
def open_engine_door(engine: Engine, builder: PromptBuilder) -> Iterator[Door]:
    """Return the door within the process."""
    yield EngineDoor(engine, builder)


@dataclass
class Outcome:
    """The result of a soak."""

    judge: Judge
    faults: Faults
    operations: tuple[Operation, ...]
    last: RegistrySnapshot
    growth_bytes: int
    num_controls: int


class Soak:
    """Runs the operations of one seed on an engine of its own."""

    def __init__(
        self,
        loaded: LoadedModel,
        seed: int,
        num_operations: int,
        *,
        fault_rate: float = 0.01,
        on_progress: OnProgress = lambda _: None,
    ) -> None:
        self.operations = draw_operations(seed, num_operations, NUM_CLIENTS)
        self._loaded = loaded
        self._seed = seed
        self._faults = Faults(seed, fault_rate)
        self._judge = Judge()
        self._on_progress = on_progress
        self._num_done = 0
        self._peak_at_half_bytes = 0

    def run(self, open_door: OpenDoor = open_engine_door) -> Outcome:
        """Run all operations and checks; return the outcome."""
        before = _remaining()
        with self._faults.installed():
            engine, builder = build_engine(OPTIONS, self._loaded)
            try:
                with open_door(engine, builder) as door:
                    outcome = asyncio.run(self._play(engine, door))
            finally:
                engine.close()
        remaining = _remaining() - before
        if remaining:
            self._judge.find(f"leaked objects: {dict(remaining)}")
        return outcome

    async def _play(self, engine: Engine, door: Door) -> Outcome:
        await asyncio.gather(
            *(self._play_client(engine, door, client) for client in range(NUM_CLIENTS))
        )
        if not await engine.wait_idle(IDLE_TIMEOUT_S):
            self._judge.find("the engine did not become idle")
        growth_bytes = _peak_bytes() - self._peak_at_half_bytes
        if growth_bytes > MAX_GROWTH_BYTES:
            self._judge.find(f"the process grew by {growth_bytes >> 20} MiB in the second half")
        last = engine.snapshot()
        self._judge.check_snapshot(None, last)
        self._judge.check_totals(last)
        for tenant, quota in self._judge.quotas.items():
            self._judge.check_quota(engine.snapshot(tenant), quota)
        num_controls = await self._control(door)
        await engine.wait_idle(IDLE_TIMEOUT_S)
        self._drop_everything(engine)
        self._judge.check_empty(engine.snapshot())
        await door.close()
        return Outcome(self._judge, self._faults, self.operations, last, growth_bytes, num_controls)

    async def _play_client(self, engine: Engine, door: Door, number: int) -> None:
        client = Client(door, engine, self._judge)
        for operation in of_client(self.operations, number):
            if not engine.is_alive:
                self._judge.find("the step loop has ended", operation.number)
                return
            try:
                await client.carry_out(operation)
            except AssertionError as error:
                self._judge.find(str(error), operation.number)
            self._num_done += 1
            if self._num_done == len(self.operations) // 2:
                self._peak_at_half_bytes = _peak_bytes()
            self._on_progress(operation)

    async def _control(self, door: Door) -> int:
        """Repeat claimed answers without faults and without reuse; return their number."""
        self._faults.is_on = False
        doubtful = [claim for claim in self._judge.claims if claim.doubt is not None]
        others = [claim for claim in self._judge.claims if claim.doubt is None]
        chosen = Random(self._seed).sample(others, min(len(others), MAX_CONTROLS))
        for index, claim in enumerate([*doubtful, *chosen]):
            options = replace(claim.spec.options, cache_policy=COLD, is_controlled=True)
            spec = replace(claim.spec, name=f"control {index}", options=options)
            self._judge.confirm(claim, await door.send(spec, claim.reply.prompt))
        return len(doubtful) + len(chosen)

    def _drop_everything(self, engine: Engine) -> None:
        for session in engine.snapshot().sessions:
            engine.drop_session(session.session_id)


def _remaining() -> Counter[str]:
    """Count the objects of requests, sessions and states that are still referenced."""
    gc.collect()
    kinds = {OutputStream, Session, KeptState, Sampler}
    return Counter(type(one).__name__ for one in gc.get_objects() if type(one) in kinds)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

"""Injects faults into the runner at random, and checks the invariants of the core after each step.

Owns the patches. A fault is raised before or after the patched call, so that the effects of the
call are absent or present.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any
from unittest.mock import patch

from kvreg_service.core.scheduling.scheduler import Scheduler
from kvreg_service.model.cache import KVPages, StateSlots
from kvreg_service.model.hybrid import HybridModel
from kvreg_service.model.sampling import Sampler

_FAULT_POINTS: tuple[tuple[type, str], ...] = (
    (StateSlots, "copy"),
    (KVPages, "copy_page"),
    (HybridModel, "prefill"),
    (HybridModel, "decode"),
    (Sampler, "sample"),
)
_RATE_FACTORS = {"decode": 0.1, "sample": 0.1}
"""Calls that run once per token fail at this fraction of the rate of the others."""

INJECTED = "injected fault"


class InjectedFault(RuntimeError):
    """An injected fault."""


class Faults:
    """Makes each patched call fail with a probability. Which calls fail depends on timing too."""

    def __init__(self, seed: int, rate: float) -> None:
        self._rng = Random(seed)
        self._rate = rate
        self.is_on = True
        self.injected: Counter[str] = Counter()
        self.num_steps = 0

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Patch every engine of this process inside the block."""
        with ExitStack() as stack:
            for owner, name in _FAULT_POINTS:
                method = getattr(owner, name)
                stack.enter_context(patch.object(owner, name, self._failing(name, method)))
            stack.enter_context(patch.object(Scheduler, "commit", self._checked_commit()))
            yield

    def _failing(self, name: str, method: Any) -> Any:
        rate = self._rate * _RATE_FACTORS.get(name, 1.0)

        def call(*arguments: Any, **options: Any) -> Any:
            must_fail = self.is_on and self._rng.random() < rate
            if not must_fail:
                return method(*arguments, **options)
            self.injected[name] += 1
            if self._rng.random() < 0.5:
                method(*arguments, **options)
            raise InjectedFault(f"{INJECTED} in {name}")

        return call

    def _checked_commit(self) -> Any:
        commit = Scheduler.commit

        def checked(scheduler: Scheduler, *arguments: Any) -> Any:
            happened = commit(scheduler, *arguments)
            scheduler.check_invariants()
            self.num_steps += 1
            return happened

        return checked

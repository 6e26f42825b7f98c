"""Breaks the runner now and then, and checks the bookkeeping after each step.

Owns what is patched and for how long. A fault is raised before a move or a piece of work is done or
after it, so that its effects are there or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any
from unittest.mock import patch

from kvreg_service.core.scheduler import Scheduler
from kvreg_service.model.cache import KVPages, StateSlots
from kvreg_service.model.hybrid import HybridModel
from kvreg_service.model.sampling import Sampler

_BREAKABLE: tuple[tuple[type, str], ...] = (
    (StateSlots, "copy"),
    (StateSlots, "swap"),
    (KVPages, "copy_page"),
    (HybridModel, "prefill"),
    (HybridModel, "decode"),
    (Sampler, "sample"),
)
_SELDOM = {"decode": 0.1, "sample": 0.1}
"""What happens with each token breaks at this part of the rate of what happens with a request."""

INJECTED = "injected fault"


class InjectedFault(RuntimeError):
    """What nobody expects."""


class Faults:
    """Breaks each call with a probability. Which calls that are also depends on the timing."""

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
            for owner, name in _BREAKABLE:
                method = getattr(owner, name)
                stack.enter_context(patch.object(owner, name, self._breaking(name, method)))
            stack.enter_context(patch.object(Scheduler, "commit", self._checked_commit()))
            yield

    def _breaking(self, name: str, method: Any) -> Any:
        rate = self._rate * _SELDOM.get(name, 1.0)

        def call(*arguments: Any, **options: Any) -> Any:
            is_broken = self.is_on and self._rng.random() < rate
            if not is_broken:
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

"""Counts since the start of the engine, by tenant."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from kvreg_service.core.labels import EvictionReason, Outcome, ReusePath
from kvreg_service.engine.interface.record import RequestRecord
from kvreg_service.engine.interface.snapshot import Totals


@dataclass
class Tally:
    """The counts of one tenant, or of all together."""

    ends: Counter[Outcome] = field(default_factory=Counter)
    paths: Counter[ReusePath] = field(default_factory=Counter)
    never_started: int = 0
    evictions: Counter[EvictionReason] = field(default_factory=Counter)
    cached_tokens: int = 0
    computed_tokens: int = 0
    completion_tokens: int = 0

    def count(self, record: RequestRecord) -> None:
        """Count a request that has ended."""
        self.ends[record.outcome] += 1
        self.completion_tokens += len(record.output_ids)
        admission = record.admission
        if admission is None:
            self.never_started += 1
            return
        self.paths[admission.reuse_path] += 1
        self.cached_tokens += admission.cached_tokens
        self.computed_tokens += admission.computed_tokens

    def totals(self) -> Totals:
        """Return the counts as they are now."""
        return Totals(
            requests_by_path={path: self.paths[path] for path in ReusePath},
            never_started=self.never_started,
            finished=self.ends[Outcome.FINISHED],
            failed=self.ends[Outcome.FAILED],
            cancelled=self.ends[Outcome.CANCELLED],
            cached_tokens=self.cached_tokens,
            computed_tokens=self.computed_tokens,
            completion_tokens=self.completion_tokens,
            evictions_by_reason=dict(self.evictions),
        )

"""Decides where a request runs and what happens to whom for it. Pure: nothing is changed here.

The result is one immutable `AdmissionPlan`; `placement` only carries it out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from kvreg_service.core.events import Attach, ReusePath
from kvreg_service.core.ids import PAGE_TOKENS, EntryId, LaneId
from kvreg_service.core.lane import Lane, hits_by_id
from kvreg_service.core.registry import Registry
from kvreg_service.core.request import Request
from kvreg_service.core.sequence import CheckpointKind, Sequence
from kvreg_service.core.value import EvictionPolicy, Rank, rank


@dataclass(frozen=True)
class Resume:
    """The kept sequence that a prompt continues, and from where.

    ``lane`` or ``entry`` says where it is; exactly one is set.
    """

    sequence: Sequence
    position: int
    path: ReusePath
    lane: LaneId | None = None
    entry: EntryId | None = None

    @property
    def at_checkpoint(self) -> bool:
        """True when the state comes from the checkpoint rather than from the frontier."""
        return self.path is not ReusePath.APPEND_FRONTIER


class Fate(Enum):
    """What becomes of the sequence at rest on the chosen lane."""

    DETACH = "detach"
    """It goes to an empty entry, or to one that is emptied for it."""
    EXCHANGE = "exchange"
    """It goes to the entry that the attached sequence leaves."""
    DROP = "drop"
    """It is the least valuable, or there is no place for it."""


@dataclass(frozen=True)
class Displacement:
    """The fate of a displaced sequence; ``entry`` is its new place unless it is dropped."""

    fate: Fate
    entry: EntryId | None = None


@dataclass(frozen=True)
class AdmissionPlan:
    """Everything that admitting one request will do."""

    request: Request
    lane: LaneId
    resume: Resume | None
    displacement: Displacement | None
    fork_to: EntryId | None
    """Where a copy of the resumed sequence stays, so that its present position is not lost."""
    capture_at: int | None
    diverged_at: int | None
    regret_tokens: int

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that need no computing."""
        return self.resume.position if self.resume else 0

    @property
    def reuse_path(self) -> ReusePath:
        """The log name of where the computation starts."""
        return self.resume.path if self.resume else ReusePath.FULL_RESET

    @property
    def attach(self) -> Attach:
        """Whether the sequence comes from the registry."""
        has_entry = self.resume is not None and self.resume.entry is not None
        return Attach.REGISTRY if has_entry else Attach.NONE


@dataclass(frozen=True)
class AdmissionRules:
    """The settings that admission obeys."""

    policy: EvictionPolicy
    exchange: bool = True
    prefix_reuse: bool = True


class AdmissionPlanner:
    """Plans one admission against the state of lanes, registry and pages at one moment."""

    def __init__(
        self,
        lanes: list[Lane],
        registry: Registry,
        rules: AdmissionRules,
        num_free_pages: int,
        now_s: float,
    ) -> None:
        self._lanes = lanes
        self._registry = registry
        self._rules = rules
        self._num_free_pages = num_free_pages
        self._now_s = now_s
        self._alive = hits_by_id(lanes, [sequence for _, sequence in registry])

    def plan(self, request: Request) -> AdmissionPlan | None:
        """Return the plan for a request, or None while every lane is busy."""
        idle = [lane for lane in self._lanes if not lane.is_busy]
        if not idle:
            return None
        resume = self._find_resume(request)
        lane, displacement = self._choose_lane(idle, resume)
        position = resume.position if resume else 0
        capture_at = request.boundary if request.retain else None
        if capture_at is not None and not position < capture_at < request.prompt_tokens:
            capture_at = None
        return AdmissionPlan(
            request=request,
            lane=lane.lane_id,
            resume=resume,
            displacement=displacement,
            fork_to=self._choose_fork(request, resume, displacement, capture_at),
            capture_at=capture_at,
            diverged_at=None if resume else self._diverged_at(request),
            regret_tokens=self._regret(request, resume) if resume else 0,
        )

    # Which kept sequence the prompt continues.

    def _find_resume(self, request: Request) -> Resume | None:
        """Return the longest reuse; ties go to append, then to a lane, then to the last used."""
        if not self._rules.prefix_reuse or not request.may_reuse:
            return None
        candidates = sorted(
            self._candidates(request),
            key=lambda c: (
                -c.position,
                c.at_checkpoint,
                c.entry is not None,
                -c.sequence.last_used_s,
            ),
        )
        for candidate in candidates:
            if request.prompt.starts_with(candidate.sequence.ledger, candidate.position):
                return candidate
        return None

    def _candidates(self, request: Request) -> Iterator[Resume]:
        for sequence, lane, entry in self._kept():
            positions = []
            if sequence.has_current:
                positions.append((sequence.frontier, ReusePath.APPEND_FRONTIER))
            if sequence.checkpoint:
                positions.append((sequence.checkpoint.position, _restore_path(sequence)))
            for position, path in positions:
                # One token must be left to compute, or there are no logits to choose from.
                if 0 < position < request.prompt_tokens and request.prompt.may_start_with(
                    sequence.ledger, position
                ):
                    yield Resume(sequence, position, path, lane=lane, entry=entry)

    def _kept(self) -> Iterator[tuple[Sequence, LaneId | None, EntryId | None]]:
        for lane in self._lanes:
            if lane.kept is not None:
                yield lane.kept, lane.lane_id, None
        for entry, sequence in self._registry:
            yield sequence, None, entry

    def _diverged_at(self, request: Request) -> int | None:
        longest: int | None = None
        for sequence, _, _ in self._kept():
            if longest is None or request.prompt.agrees_up_to(sequence.ledger, longest + 1):
                longest = request.prompt.common_prefix(sequence.ledger)
        return longest

    def _regret(self, request: Request, resume: Resume) -> int:
        sequence = resume.sequence
        would_append = (
            not sequence.has_current
            and sequence.frontier < request.prompt_tokens
            and request.prompt.starts_with(sequence.ledger, sequence.frontier)
        )
        return sequence.frontier - resume.position if would_append else 0

    # Which lane runs it, and who has to move.

    def _choose_lane(
        self, idle: list[Lane], resume: Resume | None
    ) -> tuple[Lane, Displacement | None]:
        if resume is not None and resume.lane is not None:
            return self._lanes[resume.lane], None
        for lane in idle:
            if lane.sequence is None:
                return lane, None
        lane = min(idle, key=lambda one: self._rank(_sequence_of(one)))
        return lane, self._displace(_sequence_of(lane), resume)

    def _displace(self, displaced: Sequence, resume: Resume | None) -> Displacement:
        if not self._registry.can_keep(displaced):
            return Displacement(Fate.DROP)
        if resume is not None and resume.entry is not None and self._rules.exchange:
            return Displacement(Fate.EXCHANGE, resume.entry)
        empty = self._registry.empty_entries()
        if empty:
            return Displacement(Fate.DETACH, empty[0])
        if self._rules.policy.evicts_for_detach:
            leaving = resume.sequence if resume else None
            others = [(e, s) for e, s in self._registry if s is not leaving]
            if others:
                entry, victim = min(others, key=lambda one: self._rank(one[1]))
                if self._rank(victim) < self._rank(displaced):
                    return Displacement(Fate.DETACH, entry)
        return Displacement(Fate.DROP)

    def _choose_fork(
        self,
        request: Request,
        resume: Resume | None,
        displacement: Displacement | None,
        capture_at: int | None,
    ) -> EntryId | None:
        """Return where to keep a copy of what the request is about to overwrite, if anywhere.

        A prompt that continues a sequence may be its next turn, or a side request that shares its
        history. The copy survives either; it never costs an unrelated sequence its entry. A request
        that is not to be retained only borrows, and the copy is what is left of it.
        """
        if resume is None or not self._rules.policy.evicts_for_detach:
            return None
        if capture_at is None and request.retain:
            return None
        origin = resume.sequence
        num_copies = len(origin.pages) - resume.position // PAGE_TOKENS
        if not self._registry.can_keep(origin) or num_copies > self._num_free_pages:
            return None
        taken = displacement.entry if displacement else None
        if resume.entry is not None and resume.entry != taken:
            return resume.entry
        empty = [entry for entry in self._registry.empty_entries() if entry != taken]
        if empty:
            return empty[0]
        replaceable = [
            (entry, sequence)
            for entry, sequence in self._registry
            if entry != taken
            and (self._is_superseded(sequence) or sequence.family == origin.family)
            and self._value(sequence) < self._value(origin)
        ]
        if not replaceable:
            return None
        return min(replaceable, key=lambda one: self._rank(one[1]))[0]

    def _is_superseded(self, sequence: Sequence) -> bool:
        return not self._rank(sequence).is_needed

    def _value(self, sequence: Sequence) -> float:
        return self._rules.policy.value(sequence, self._now_s)

    def _rank(self, sequence: Sequence) -> Rank:
        return rank(sequence, self._rules.policy, self._alive, self._now_s)


def _restore_path(sequence: Sequence) -> ReusePath:
    if sequence.checkpoint and sequence.checkpoint.kind is CheckpointKind.RESPONSE:
        return ReusePath.RESTORE_RESPONSE_CHECKPOINT
    return ReusePath.RESTORE_TURN_CHECKPOINT


def _sequence_of(lane: Lane) -> Sequence:
    assert lane.sequence is not None, "an idle lane that is not empty holds a sequence"
    return lane.sequence

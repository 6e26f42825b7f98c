"""Plans admissions: the lane of a request, what it reuses, and which sequence is displaced. Pure.

The result is one immutable `AdmissionPlan`, which `placement` applies.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kvreg_service.core.anchors import aligned
from kvreg_service.core.holdings import Holdings
from kvreg_service.core.ids import PAGE_TOKENS, EntryId, LaneId
from kvreg_service.core.labels import Attach, ReusePath
from kvreg_service.core.lane import Lane
from kvreg_service.core.policies import EvictionPolicy
from kvreg_service.core.request import Head, Request
from kvreg_service.core.reuse import Resume, ReuseFinder
from kvreg_service.core.sequence import Sequence


class Fate(Enum):
    """What happens to the sequence at rest on the chosen lane."""

    DETACH = "detach"
    """It moves to an empty entry, or to one that is evicted for it."""
    EXCHANGE = "exchange"
    """It moves to the entry that the attached sequence leaves."""
    DROP = "drop"
    """It is evicted: it is the least valuable, or no entry can hold it."""


@dataclass(frozen=True)
class Displacement:
    """The fate of a displaced sequence. ``entry`` is its new entry unless it is dropped."""

    fate: Fate
    entry: EntryId | None = None


@dataclass(frozen=True)
class AdmissionPlan:
    """Everything that admitting one request changes."""

    request: Request
    lane: LaneId
    resume: Resume | None
    displacement: Displacement | None
    fork_to: EntryId | None
    """The entry that keeps a copy of the resumed sequence at its present position."""
    capture_at: int | None
    heads: tuple[Head, ...]
    """The heads that prefill passes and that may become anchors."""
    diverged_at: int | None
    regret_tokens: int

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that are not computed."""
        return self.resume.position if self.resume else 0

    @property
    def reuse_path(self) -> ReusePath:
        """Where the computation starts."""
        return self.resume.path if self.resume else ReusePath.FULL_RESET

    @property
    def attach(self) -> Attach:
        """Where the reused state comes from."""
        if self.resume is None or self.resume.lane is not None:
            return Attach.NONE
        return Attach.REGISTRY if self.resume.entry is not None else Attach.ANCHOR


@dataclass(frozen=True)
class AdmissionRules:
    """The settings of admission."""

    policy: EvictionPolicy
    exchange: bool = True
    prefix_reuse: bool = True


REWORDED_TOKENS = 16
"""How many tokens beyond the fork a prompt shares with a branch if it is that branch with a changed
end. More than the opener of a message, which all branches share."""


class AdmissionPlanner:
    """Plans one admission from the holdings at one moment."""

    def __init__(self, holdings: Holdings, rules: AdmissionRules, now_s: float) -> None:
        self._lanes = holdings.lanes
        self._registry = holdings.registry
        self._anchors = holdings.anchors
        self._num_free_pages = holdings.pages.num_free
        self._quotas = holdings.quotas
        self._order = holdings.order(now_s)
        self._finder = ReuseFinder(holdings)
        self._rules = rules
        self._now_s = now_s

    def plan(self, request: Request) -> AdmissionPlan | None:
        """Return the plan for a request, or None while every lane is busy."""
        idle = [lane for lane in self._lanes if not lane.is_busy]
        if not idle:
            return None
        may_reuse = self._rules.prefix_reuse and request.cache_policy.may_reuse
        resume = self._finder.find(request) if may_reuse else None
        plan = self._plan(request, idle, resume)
        if resume is not None and self._loses_pin(plan, resume):
            plan = self._plan(request, idle, None)
        return plan

    def _plan(self, request: Request, idle: list[Lane], resume: Resume | None) -> AdmissionPlan:
        lane, displacement = self._choose_lane(idle, resume)
        position = resume.position if resume else 0
        capture_at = request.boundary if request.cache_policy.retain else None
        if capture_at is not None and not position < capture_at < request.prompt_tokens:
            capture_at = None
        if resume is not None and displacement is not None and capture_at is not None:
            displaced = lane.require_sequence()
            displacement = self._leave_fork(request, resume, displaced, displacement)
        return AdmissionPlan(
            request=request,
            lane=lane.lane_id,
            resume=resume,
            displacement=displacement,
            fork_to=self._choose_fork(request, resume, lane.kept, displacement, capture_at),
            capture_at=capture_at,
            heads=self._heads(request, position),
            diverged_at=None if resume else self._finder.diverged_at(request),
            regret_tokens=self._finder.regret_tokens(request, resume) if resume else 0,
        )

    def _loses_pin(self, plan: AdmissionPlan, resume: Resume) -> bool:
        """Whether a request without retention would overwrite a pinned sequence without a copy."""
        origin = resume.sequence
        return (
            not plan.request.cache_policy.retain
            and plan.fork_to is None
            and resume.anchor is None
            and origin.checkpoint is None
            and origin.is_pinned(self._now_s)
        )

    def _heads(self, request: Request, position: int) -> tuple[Head, ...]:
        """Return the heads that prefill passes and that are not kept yet."""
        retains = request.cache_policy.retain and self._rules.prefix_reuse
        if not retains or not self._anchors.num_places:
            return ()
        heads = aligned(request.heads, after=position, before=request.prompt_tokens)
        return tuple(
            head
            for head in heads
            if self._anchors.find_head(request.prompt, head.num_tokens) is None
        )

    # The lane, and the sequence that is displaced from it.

    def _choose_lane(
        self, idle: list[Lane], resume: Resume | None
    ) -> tuple[Lane, Displacement | None]:
        if resume is not None and resume.lane is not None:
            return self._lanes[resume.lane], None
        for lane in idle:
            if lane.sequence is None:
                return lane, None
        lane = min(idle, key=lambda one: self._order.rank(one.require_sequence()))
        return lane, self._displace(lane.require_sequence(), resume)

    def _displace(self, displaced: Sequence, resume: Resume | None) -> Displacement:
        if not self._registry.can_keep(displaced):
            return Displacement(Fate.DROP)
        is_pinned = displaced.is_pinned(self._now_s)
        leaving = resume if resume is not None and resume.entry is not None else None
        rivals = self._rivals(displaced, leaving)
        if rivals is not None:
            return self._replace(displaced, rivals, must_keep=is_pinned)
        if leaving is not None and (self._rules.exchange or is_pinned):
            return Displacement(Fate.EXCHANGE, leaving.entry)
        empty = self._registry.empty_entries()
        if empty:
            return Displacement(Fate.DETACH, empty[0])
        others = [
            one for _, one in self._registry if leaving is None or one is not leaving.sequence
        ]
        if displaced.tenant not in self._quotas:
            return self._replace(displaced, others, must_keep=is_pinned)
        # Within its quota a tenant is guaranteed an entry, whatever the values of the others.
        foreign = [one for one in others if one.tenant != displaced.tenant]
        return self._replace(displaced, foreign or others, must_keep=True)

    def _replace(
        self, displaced: Sequence, rivals: list[Sequence], *, must_keep: bool
    ) -> Displacement:
        """Evict the least valuable rival for the displaced sequence, if that one is worth more."""
        if not self._rules.policy.evicts_for_detach and not must_keep:
            return Displacement(Fate.DROP)
        victim = self._order.first(rivals, displaced.tenant)
        if victim is None:
            return Displacement(Fate.DROP)
        if must_keep or self._order.rank(victim) < self._order.rank(displaced):
            return Displacement(Fate.DETACH, self._registry.find_entry(victim))
        return Displacement(Fate.DROP)

    def _rivals(self, newcomer: Sequence, leaving: Resume | None) -> list[Sequence] | None:
        """Return the sequences whose entry the newcomer may take; None if it may take any.

        A tenant that has as many entries as its quota allows replaces one of its own.
        """
        quota = self._quotas.get(newcomer.tenant)
        if quota is None:
            return None
        own = [
            one
            for _, one in self._registry
            if one.tenant == newcomer.tenant and (leaving is None or one is not leaving.sequence)
        ]
        return own if len(own) >= quota.entries else None

    def _leave_fork(
        self,
        request: Request,
        resume: Resume,
        displaced: Sequence,
        displacement: Displacement,
    ) -> Displacement:
        """Leave a fork in its entry if the request repeats a branch of it with a changed end.

        Otherwise a prompt whose end changes with every request evicts the only state that serves
        it: each branch, which is not resumed again, would take the entry of the fork.
        """
        fork = resume.sequence
        if displacement.fate is not Fate.EXCHANGE or not self._rewords(request, displaced, fork):
            return displacement
        if not self._rules.policy.evicts_for_detach or displaced.is_pinned(self._now_s):
            return displacement
        has_quota = displaced.tenant in self._quotas
        empty = self._registry.empty_entries()
        if empty and not has_quota:
            return Displacement(Fate.DETACH, empty[0])
        # With a quota it may only replace an entry of its own tenant, so that none is added.
        others = [
            one
            for _, one in self._registry
            if one is not fork and (not has_quota or one.tenant == displaced.tenant)
        ]
        return self._replace(displaced, others, must_keep=False)

    def _rewords(self, request: Request, branch: Sequence, fork: Sequence) -> bool:
        """Whether the request repeats ``branch`` with a changed end.

        Then the branch is not resumed again. Two branches that only start at the same fork may both
        be resumed. A branch that was continued twice is the session, and its fork an old state.
        """
        if fork.superseded_by is None or branch.family != fork.family:
            return False
        if self._order.is_superseded(fork):
            return False
        # All branches repeat the fork's answer, maybe in other tokens. It ends near the frontier.
        known = max(fork.frontier, request.prompt.common_prefix(fork.ledger))
        return request.prompt.common_prefix(branch.ledger) - known >= REWORDED_TOKENS

    def _choose_fork(
        self,
        request: Request,
        resume: Resume | None,
        displaced: Sequence | None,
        displacement: Displacement | None,
        capture_at: int | None,
    ) -> EntryId | None:
        """Return the entry for a copy of the sequence that the request overwrites, or None.

        A prompt that continues a sequence is its next turn, or a side request that shares its
        history. The copy serves both cases, and never evicts an unrelated sequence. If the request
        is not retained, the copy is what remains of the sequence.
        """
        if resume is None or resume.anchor is not None:
            return None
        if not self._rules.policy.evicts_for_detach:
            return None
        if capture_at is None and request.cache_policy.retain:
            return None
        origin = resume.sequence
        num_copies = len(origin.pages) - resume.position // PAGE_TOKENS
        if not self._registry.can_keep(origin) or num_copies > self._num_free_pages:
            return None
        taken = displacement.entry if displacement else None
        is_at_quota = self._is_at_quota_beside(origin, resume, displaced, displacement)
        if resume.entry is not None and resume.entry != taken and not is_at_quota:
            return resume.entry
        empty = [entry for entry in self._registry.empty_entries() if entry != taken]
        if empty and not is_at_quota:
            return empty[0]
        replaceable = [
            one
            for entry, one in self._registry
            if entry != taken
            and one is not origin
            and (self._order.is_superseded(one) or one.family == origin.family)
            and (
                self._order.worth(one) < self._order.worth(origin)
                or (capture_at is not None and self._rewords(request, one, origin))
            )
            and (one.tenant == origin.tenant or not is_at_quota)
        ]
        victim = self._order.first(replaceable, origin.tenant)
        return self._registry.find_entry(victim) if victim is not None else None

    def _is_at_quota_beside(
        self,
        origin: Sequence,
        resume: Resume,
        displaced: Sequence | None,
        displacement: Displacement | None,
    ) -> bool:
        """Whether the tenant of ``origin`` is at its quota of entries after the plan."""
        quota = self._quotas.get(origin.tenant)
        if quota is None:
            return False
        entry = displacement.entry if displacement else None
        owners = [one.tenant for at, one in self._registry if at not in (resume.entry, entry)]
        if entry is not None and displaced is not None:
            owners.append(displaced.tenant)
        return owners.count(origin.tenant) >= quota.entries

"""Checks which heads become anchors and which anchors they evict, by comparing token lists."""

from __future__ import annotations

from event_mirror import Mirror
from ranking import Profile, Ranking
from seen import Seen

from kvreg_service.core import events
from kvreg_service.core.requests.request import Request
from kvreg_service.core.scheduling.step import StepPlan, Work


class AnchorOracle:
    """Follows one mirror. ``first_slot`` is the first state slot of the anchors."""

    def __init__(self, mirror: Mirror, profile: Profile, first_slot: int) -> None:
        self._mirror = mirror
        self._profile = profile
        self._first_slot = first_slot
        self._times_seen: dict[tuple[str, tuple[int, ...]], int] = {}
        self._heads: dict[str, dict[int, bool]] = {}
        """By request: the end of each head that it computes, and whether the head is marked."""
        self._plan = StepPlan()

    def note_admission(self, emitted: list[events.Event]) -> None:
        """Count each head that the admitted request computes. Call before the mirror is updated."""
        for event in emitted:
            if isinstance(event, events.Admitted):
                request = self._mirror.requests[event.request_id]
                heads = self._heads_to_compute(request, event.admission.cached_tokens)
                self._heads[event.request_id] = heads
                for end in heads if request.cache_policy.may_reuse else ():
                    key = request.tenant, tuple(request.prompt.tokens[:end])
                    self._times_seen[key] = self._times_seen.get(key, 0) + 1

    def _heads_to_compute(self, request: Request, position: int) -> dict[int, bool]:
        found: dict[int, bool] = {}
        if not request.cache_policy.retain or not self._profile.anchors:
            return found
        for head in request.heads:
            end = head.num_tokens - head.num_tokens % 64
            if position < end < request.prompt_tokens and not self._find(request, end):
                found[end] = found.get(end, False) or head.is_marked
        return found

    def _find(self, request: Request, end: int) -> Seen | None:
        head = list(request.prompt.tokens[:end])
        for seen in self._mirror.anchors():
            if (seen.tenant, seen.tokens) == (request.tenant, head):
                return seen
        return None

    # Captures and evictions.

    def begin_step(self, plan: StepPlan) -> None:
        """Take ``plan`` as the cause of the evictions that follow."""
        self._plan = plan

    def check_victim(self, victim: Seen, now_s: float) -> None:
        """Check that an evicted anchor is the one that the captured head must replace."""
        (work,) = (w for w in self._plan.work if self._place_of(w) == victim.anchor)
        expected = self._expected_victim(work, now_s)
        assert expected is victim, f"{victim} was evicted instead of {expected}"

    def check_plan(self, plan: StepPlan, emitted: list[events.Event], now_s: float) -> None:
        """Check that every head that must be captured is. Call when `schedule` is mirrored."""
        lost = any(isinstance(e, events.Evicted) and e.anchor is not None for e in emitted)
        for work in plan.work:
            place, heads = self._place_of(work), self._heads[work.request_id]
            assert not any(work.start < end < work.end for end in heads), (
                "a chunk crosses the end of a head"
            )
            if place is not None:
                assert work.end in heads, "an anchor is captured where no head ends"
                assert all(seen.anchor != place for seen in self._mirror.anchors())
            elif self._may_capture(work) and not lost:
                assert self._expected_victim(work, now_s) is None, "a head was not captured"

    def _place_of(self, work: Work) -> int | None:
        if work.capture_to is None or work.capture_to < self._first_slot:
            return None
        return work.capture_to - self._first_slot

    def _may_capture(self, work: Work) -> bool:
        request = self._mirror.requests[work.request_id]
        is_boundary = request.cache_policy.retain and request.boundary == work.end
        if (
            is_boundary
            or work.end not in self._heads[work.request_id]
            or self._find(request, work.end)
        ):
            return False
        head = work.end, list(request.prompt.tokens[: work.end])
        others = [self._mirror.requests[one.request_id] for one in self._captured_before(work)]
        return all(
            (other.tenant, list(other.prompt.tokens[: work.end])) != (request.tenant, head[1])
            for other in others
        )

    def _captured_before(self, work: Work) -> list[Work]:
        before = self._plan.work[: self._plan.work.index(work)]
        return [one for one in before if self._place_of(one) is not None]

    def _expected_victim(self, work: Work, now_s: float) -> Seen | bool | None:
        """Return the anchor to replace; True for an empty place, None for no capture."""
        request = self._mirror.requests[work.request_id]
        tenant, head = request.tenant, tuple(request.prompt.tokens[: work.end])
        anchors, before = self._mirror.anchors(), self._captured_before(work)
        own = [seen for seen in anchors if seen.tenant == tenant]
        own_before = [w for w in before if self._mirror.requests[w.request_id].tenant == tenant]
        quota = self._mirror.quotas.get(tenant)
        is_at_quota = quota is not None and len(own) + len(own_before) >= quota.anchors
        if not is_at_quota and len(anchors) + len(before) < self._profile.anchors:
            return True
        is_wanted = (
            self._heads[work.request_id][work.end] or self._times_seen.get((tenant, head), 0) > 1
        )
        is_within_quota = quota is not None and not is_at_quota
        candidates = [
            seen
            for seen in (own if is_at_quota else anchors)
            if is_wanted or is_within_quota or not (seen.is_marked or seen.num_hits)
        ]
        if is_within_quota:
            candidates = [seen for seen in candidates if seen.tenant != tenant]
        ranking = Ranking(self._mirror, self._profile, now_s)
        victim = ranking.first_victim(candidates, tenant)
        if victim is None:
            return None
        new = Seen(
            sequence_id=10**9,
            tenant=tenant,
            tokens=list(head),
            frontier=work.end,
            has_current=False,
            checkpoint=work.end,
            checkpoint_kind="anchor",
            num_hits=0,
            created_s=now_s,
            last_used_s=now_s,
            lane=None,
            entry=None,
            request=None,
            superseded_by=None,
            family=None,
            pages=list(range(work.end // 64)),
        )
        is_better = is_within_quota or ranking.eviction_key(victim) < ranking.eviction_key(new)
        return victim if is_better else None

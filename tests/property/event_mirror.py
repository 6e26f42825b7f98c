"""A mirror of the scheduler's state, rebuilt from requests, step plans and events alone.

Owns a second record of every running and kept sequence and of the pages that they share. If it
differs from the scheduler's, either the scheduler's bookkeeping or its events are wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count

from seen import Seen

from kvreg_service.core import events
from kvreg_service.core.labels import Attach, EvictionReason
from kvreg_service.core.states.quota import Quota
from kvreg_service.core.requests.request import Admission, Request
from kvreg_service.core.scheduling.step import StepPlan, StepResult


class Mirror:
    """All sequences, updated by events.

    ``before_eviction`` is called while the victim is still recorded, and ``after_change`` with the
    tenant whose running or kept sequences have changed.
    """

    def __init__(
        self,
        keep_current: bool,
        num_pages: int,
        before_eviction: Callable[[Seen, EvictionReason, float], None],
        after_change: Callable[[str, float], None],
    ) -> None:
        self.keep_current = keep_current
        self.num_pages = num_pages
        self.quotas: dict[str, Quota] = {}
        self._before_eviction = before_eviction
        self._after_change = after_change
        self.sequences: dict[int, Seen] = {}
        self.queue: list[str] = []
        self.requests: dict[str, Request] = {}
        self.terminals: dict[str, events.Terminal] = {}
        self.outputs: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}
        self.cached: dict[str, int] = {}
        self._page_numbers = count()
        self._new_fork: Seen | None = None
        self._tail_copy_of: Seen | None = None
        self._changed_tenant: str | None = None
        self._forks_in_place_of: dict[str, int] = {}
        self._captured_s = 0.0

    def kept(self) -> list[Seen]:
        return [seen for seen in self.sequences.values() if seen.request is None]

    def running(self) -> list[Seen]:
        return [seen for seen in self.sequences.values() if seen.request is not None]

    def anchors(self) -> list[Seen]:
        return [seen for seen in self.sequences.values() if seen.anchor is not None]

    def of_request(self, request_id: str) -> Seen | None:
        for seen in self.running():
            if seen.request is not None and seen.request.request_id == request_id:
                return seen
        return None

    def submitted(self, request: Request) -> None:
        self.requests[request.request_id] = request
        self.queue.append(request.request_id)
        self.outputs[request.request_id] = []
        self.computed[request.request_id] = 0

    # Pages.

    def num_references(self, page: int) -> int:
        return sum(page in seen.pages for seen in self.sequences.values())

    def frees_a_page(self, seen: Seen) -> bool:
        return any(self.num_references(page) == 1 for page in reversed(seen.pages))

    @property
    def num_free_pages(self) -> int:
        held = {page for seen in self.sequences.values() for page in seen.pages}
        return self.num_pages - len(held)

    def _new_pages(self, number: int) -> list[int]:
        return [next(self._page_numbers) for _ in range(number)]

    def _copy_shared_tail_page(self) -> None:
        """Copy the partly filled last page if another sequence shares it."""
        seen, self._tail_copy_of = self._tail_copy_of, None
        if seen is not None and seen.frontier % 64 and self.num_references(seen.pages[-1]) > 1:
            seen.pages[-1:] = self._new_pages(1)

    def _evicts_for_tail_copy(self) -> bool:
        """Whether the eviction makes room for the copy of a shared last page."""
        seen = self._tail_copy_of
        return (
            seen is not None
            and seen.frontier % 64 > 0
            and self.num_references(seen.pages[-1]) > 1
            and self.num_free_pages == 0
        )

    # Steps.

    def end_pins(self, now_s: float) -> None:
        """Clear expired pins of kept sequences."""
        for seen in self.kept():
            if not seen.is_pinned(now_s):
                seen.pinned_until_s = None

    def apply_planned(self, emitted: Iterable[events.Event], schedule_s: float) -> None:
        """Apply the events of `schedule`."""
        for event in emitted:
            self.apply(event, schedule_s)
        self.settle(schedule_s)

    def apply_result(
        self,
        plan: StepPlan,
        result: StepResult,
        emitted: list[events.Event],
        first_anchor_slot: int,
        schedule_s: float,
        commit_s: float,
    ) -> None:
        """Apply the computed work of the step, then the events of `commit`."""
        for work in plan.work:
            seen = self.of_request(work.request_id)
            if seen is None or work.request_id in result.failed:
                if seen is not None and (work.capture_to or first_anchor_slot) < first_anchor_slot:
                    seen.checkpoint = None
                continue
            seen.frontier = work.end
            seen.pages += self._new_pages((work.end + 63) // 64 - len(seen.pages))
            prompt_tokens = self.requests[work.request_id].prompt_tokens
            self.computed[work.request_id] += max(0, min(work.end, prompt_tokens) - work.start)
        self._captured_s = schedule_s
        for event in terminals_first(emitted):
            self.apply(event, commit_s)
        self.settle(commit_s)

    def settle(self, now_s: float) -> None:
        """Complete the pending change before an event of another sequence."""
        self._copy_shared_tail_page()
        tenant, self._changed_tenant = self._changed_tenant, None
        if tenant is not None:
            self._after_change(tenant, now_s)

    def apply(self, event: events.Event, now_s: float) -> None:
        is_consequence = isinstance(event, events.PinEnded) or (
            isinstance(event, events.Evicted) and event.reason is EvictionReason.QUOTA
        )
        is_for_tail_copy = (
            isinstance(event, events.Evicted)
            and event.reason is EvictionReason.PAGES_NEEDED
            and self._evicts_for_tail_copy()
        )
        if is_consequence:
            self._copy_shared_tail_page()
        elif not is_for_tail_copy and not isinstance(event, events.Attached):
            self.settle(now_s)
        match event:
            case events.Forked():
                self._forked(event, now_s)
            case events.Detached():
                seen = self.sequences[event.sequence_id]
                assert seen.lane == event.lane
                seen.lane, seen.entry = None, event.entry
                seen.has_current = seen.has_current and self.keep_current
                seen.cut_pages(seen.reusable)
            case events.Admitted():
                self._admitted(event, now_s)
            case events.ReuseFailed():
                request = self.requests[event.request_id]
                assert request.cache_policy.may_reuse, "a request without reuse failed to reuse"
                cold = replace(request.cache_policy, may_reuse=False)
                self.requests[event.request_id] = replace(request, cache_policy=cold)
                self.queue.insert(0, event.request_id)
                self._new_fork = None
            case events.Attached():
                assert self.sequences[event.sequence_id].lane == event.lane
            case events.Evicted():
                seen = self.sequences[event.sequence_id]
                assert seen.tenant == event.tenant
                self._before_eviction(seen, event.reason, now_s)
                del self.sequences[event.sequence_id]
                for one in self.sequences.values():
                    if one.anchored_by == event.sequence_id:
                        one.anchored_by, one.anchored_tokens = None, 0
                assert (seen.lane, seen.entry, seen.anchor) == (
                    event.lane,
                    event.entry,
                    event.anchor,
                )
            case events.CheckpointCaptured():
                seen = self._running(event.request_id)
                assert seen.frontier == event.position
                seen.checkpoint = event.position
                seen.checkpoint_kind = event.kind
            case events.AnchorCaptured():
                self._anchor_captured(event)
            case events.PinEnded():
                seen = self.sequences[event.sequence_id]
                assert seen.is_pinned(now_s), "PinEnded for a sequence that is not pinned"
                seen.pinned_until_s = None
            case events.TokenSampled():
                seen = self._running(event.request_id)
                assert len(seen.tokens) == seen.frontier
                seen.tokens.append(event.token)
                self.outputs[event.request_id].append(event.token)
            case events.Terminal():
                self._ended(event, now_s)
            case _:
                raise AssertionError(f"unknown event: {event}")

    def _running(self, request_id: str) -> Seen:
        seen = self.of_request(request_id)
        assert seen is not None, f"request {request_id} has no lane"
        return seen

    def _forked(self, event: events.Forked, now_s: float) -> None:
        origin = self.sequences[event.origin_id]
        self._new_fork = self.sequences[event.sequence_id] = replace(
            origin,
            sequence_id=event.sequence_id,
            tokens=list(origin.tokens),
            created_s=now_s,
            has_current=origin.has_current and self.keep_current,
            lane=None,
            entry=event.entry,
            superseded_by=event.origin_id,
            pinned_until_s=None,
            is_lent=False,
            pages=list(origin.pages),
        )
        self._new_fork.cut_pages(self._new_fork.reusable)

    def _admitted(self, event: events.Admitted, now_s: float) -> None:
        request, admission = self.requests[event.request_id], event.admission
        self.queue.remove(event.request_id)
        self.cached[event.request_id] = admission.cached_tokens
        seen = self.sequences.get(admission.sequence_id)
        if seen is None:
            seen = self._new_sequence(admission, request, now_s)
        else:
            seen.num_hits += 1
            if admission.cached_tokens < seen.anchored_tokens:
                seen.anchored_by, seen.anchored_tokens = None, 0
        seen.tokens = list(request.prompt.tokens)
        seen.frontier = admission.cached_tokens
        seen.cut_pages(admission.cached_tokens)
        seen.has_current = True
        seen.is_lent = False
        seen.last_used_s = now_s
        if request.cache_policy.retain:
            seen.priority = request.cache_policy.priority
            self._mark_anchors(request)
        seen.lane, seen.entry = admission.lane, None
        seen.request = request
        seen.superseded_by = None
        self._note_fork(seen, request, now_s)
        self._tail_copy_of = seen
        self._changed_tenant = seen.tenant

    def _new_sequence(self, admission: Admission, request: Request, now_s: float) -> Seen:
        """Record a new sequence, with the pages of its anchor if it resumes from one."""
        seen = self.sequences[admission.sequence_id] = Seen(
            sequence_id=admission.sequence_id,
            tenant=request.tenant,
            tokens=[],
            frontier=0,
            has_current=True,
            checkpoint=None,
            checkpoint_kind=None,
            num_hits=0,
            created_s=now_s,
            last_used_s=now_s,
            lane=None,
            entry=None,
            request=None,
            superseded_by=None,
            family=admission.sequence_id,
        )
        is_anchored = admission.attach is Attach.ANCHOR
        assert is_anchored == (admission.cached_tokens > 0), "cached tokens without a source"
        if is_anchored:
            head = list(request.prompt.tokens[: admission.cached_tokens])
            (anchor,) = (
                one for one in self.anchors() if (one.tenant, one.tokens) == (request.tenant, head)
            )
            seen.pages = list(anchor.pages)
            seen.anchored_by, seen.anchored_tokens = anchor.sequence_id, admission.cached_tokens
            anchor.num_hits += 1
            anchor.last_used_s = now_s
        return seen

    def _mark_anchors(self, request: Request) -> None:
        """Mark the existing anchors of the request's marked heads."""
        for head in request.heads:
            end = head.num_tokens // 64 * 64
            tokens = list(request.prompt.tokens[:end])
            for anchor in self.anchors() if head.is_marked and end < request.prompt_tokens else ():
                if (anchor.tenant, anchor.tokens) == (request.tenant, tokens):
                    anchor.is_marked = True

    def _note_fork(self, seen: Seen, request: Request, now_s: float) -> None:
        fork, self._new_fork = self._new_fork, None
        if fork is None:
            return
        # The fork gets copies of the pages that the request may overwrite.
        first = seen.frontier // 64
        fork.pages[first:] = self._new_pages(len(fork.pages) - first)
        if not request.cache_policy.retain:
            fork.superseded_by = None
            fork.last_used_s = now_s
            fork.pinned_until_s, seen.pinned_until_s = seen.pinned_until_s, None
            self._forks_in_place_of[request.request_id] = fork.sequence_id

    def _anchor_captured(self, event: events.AnchorCaptured) -> None:
        running = self._running(event.request_id)
        assert running.frontier == event.position
        assert event.position % 64 == 0
        assert all(one.anchor != event.anchor for one in self.anchors())
        running.anchored_by, running.anchored_tokens = event.sequence_id, event.position
        self.sequences[event.sequence_id] = Seen(
            sequence_id=event.sequence_id,
            tenant=running.tenant,
            tokens=running.tokens[: event.position],
            frontier=event.position,
            has_current=False,
            checkpoint=event.position,
            checkpoint_kind="anchor",
            num_hits=0,
            created_s=self._captured_s,
            last_used_s=self._captured_s,
            lane=None,
            entry=None,
            request=None,
            superseded_by=None,
            family=None,
            anchor=event.anchor,
            is_marked=event.is_marked,
            pages=running.pages[: event.position // 64],
        )
        self._changed_tenant = running.tenant

    def _ended(self, event: events.Terminal, now_s: float) -> None:
        assert event.request_id not in self.terminals, f"{event.request_id} ended twice"
        self.terminals[event.request_id] = event
        if event.request_id in self.queue:
            self.queue.remove(event.request_id)
        seen = self.of_request(event.request_id)
        if seen is None:
            return
        self._changed_tenant = seen.tenant
        request = self.requests[event.request_id]
        fork = self.sequences.get(self._forks_in_place_of.get(event.request_id))
        if fork is not None and fork.request is None:
            del self.sequences[seen.sequence_id]
            return
        if isinstance(event, events.Failed) or not request.cache_policy.retain:
            seen.frontier = seen.checkpoint or 0
            seen.has_current = False
        seen.request = None
        seen.last_used_s = now_s
        if request.cache_policy.retain:
            ttl_s = request.cache_policy.ttl_s
            seen.expires_s = now_s + ttl_s if ttl_s is not None else None
        del seen.tokens[seen.frontier :]
        seen.cut_pages(seen.reusable)
        if seen.reusable < seen.anchored_tokens:
            seen.anchored_by, seen.anchored_tokens = None, 0
        if seen.reusable == 0:
            is_failed = isinstance(event, events.Failed)
            assert is_failed or not seen.is_pinned(now_s), "a pinned sequence lost all its state"
            del self.sequences[seen.sequence_id]


def terminals_first(emitted: list[events.Event]) -> Iterable[events.Event]:
    """Yield each terminal event before the evictions and ended pins that it causes.

    The scheduler emits those first.
    """
    consequences: list[events.Event] = []
    for event in emitted:
        if isinstance(event, events.PinEnded) or (
            isinstance(event, events.Evicted) and event.reason is EvictionReason.QUOTA
        ):
            consequences.append(event)
            continue
        if isinstance(event, events.Terminal):
            yield event
        yield from consequences
        consequences.clear()
        if not isinstance(event, events.Terminal):
            yield event
    yield from consequences

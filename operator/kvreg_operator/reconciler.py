"""One pass over one target: look, plan, write the status, act, tell.

Owns the order. The status goes first, on condition that the profile is still the one that was
looked at: a profile that was edited meanwhile is looked at again before anything is touched, and
an operator that dies after it has written down less waiting than there was, never more. Everything
after that may be cut off anywhere; the next look goes on from what it finds.
"""

from __future__ import annotations

from collections.abc import Callable

from kvreg_operator.cluster_api import PROFILES, ClusterApi
from kvreg_operator.engine_directory import EngineDirectory
from kvreg_operator.errors import PermanentError
from kvreg_operator.event_recorder import EventRecorder
from kvreg_operator.execution import Execution
from kvreg_operator.metrics import OperatorMetrics
from kvreg_operator.observer import Look, Observer
from kvreg_operator.plan import Event, Plan, plan, tell_action
from kvreg_operator.profile import KVRegistryProfile, ProfileStatus
from kvreg_operator.rendering import Manifest
from kvreg_operator.targets import TargetKey

# What was done shows at once, and a drain in no event at all.
AFTER_ACTION_S = 1.0
# Engines send no events; this is how late an idle one is noticed.
WHILE_WAITING_S = 3.0
_WAITS_FOR_PEOPLE = frozenset({"Paused", "Canary", "OnDelete"})


class Reconciler:
    """Makes passes. ``clock`` returns seconds since the epoch."""

    def __init__(
        self,
        api: ClusterApi,
        engines: EngineDirectory,
        recorder: EventRecorder,
        metrics: OperatorMetrics,
        clock: Callable[[], float],
    ) -> None:
        self._api = api
        self._engines = engines
        self._observer = Observer(api, engines)
        self._recorder = recorder
        self._metrics = metrics
        self._clock = clock
        self._statuses: dict[TargetKey, list[ProfileStatus]] = {}

    async def reconcile(self, target: TargetKey) -> float | None:
        """Make one pass; return when to look again, or None where an event will tell.

        Raises:
            OperatorError: Something could not be read or done; the pass ended there.
        """
        looks = await self._observer.look(target)
        planned = [(look, plan(look.profile, look.observed, self._clock())) for look in looks]
        self._show(target, [each.status for _, each in planned])
        delays = [await self._carry_out(look, each) for look, each in planned]
        return min((delay for delay in delays if delay is not None), default=None)

    async def _carry_out(self, look: Look, planned: Plan) -> float | None:
        profile = look.profile
        is_changed = planned.status != profile.status
        if is_changed and not await self._write_status(profile, planned.status):
            return None
        for event in planned.events:
            await self._recorder.record(profile, event)
        execution = Execution(self._api, self._engines, profile)
        for action in planned.actions:
            try:
                await execution.carry_out(action)
            except PermanentError as err:
                failed = Event("Warning", "ActionFailed", f"{type(action).__name__}: {err}")
                await self._recorder.record(profile, failed)
                raise
            if (event_told := tell_action(action)) is not None:
                await self._recorder.record(profile, event_told, was_done=True)
        self._metrics.reconciled("changed" if is_changed or planned.actions else "unchanged")
        return _look_again_s(planned)

    async def _write_status(self, profile: KVRegistryProfile, status: ProfileStatus) -> bool:
        """Write the status and count what it means; return False for a profile that is gone."""
        metadata = profile.metadata
        patched = await self._api.merge_patch(
            PROFILES,
            metadata.namespace,
            metadata.name,
            build_status_patch(profile, status),
            subresource="status",
        )
        if patched is None:
            return False
        self._metrics.count_change(profile.status, status)
        return True

    def _show(self, target: TargetKey, statuses: list[ProfileStatus]) -> None:
        self._statuses.pop(target, None)
        if statuses:
            self._statuses[target] = statuses
        everything = [status for each in self._statuses.values() for status in each]
        self._metrics.show_profiles(everything)


def build_status_patch(profile: KVRegistryProfile, status: ProfileStatus) -> Manifest:
    """Build the merge patch that makes the status so, and removes what it does not have."""
    return {
        "metadata": {"resourceVersion": profile.metadata.resource_version},
        "status": status.model_dump(mode="json", by_alias=True),
    }


def _look_again_s(planned: Plan) -> float | None:
    if planned.actions:
        return AFTER_ACTION_S
    waiting = planned.status.waiting_for
    if waiting is not None and waiting.reason not in _WAITS_FOR_PEOPLE:
        return WHILE_WAITING_S
    return None

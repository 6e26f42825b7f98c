"""One pass over one target: look, plan, write the status, act, tell.

Owns the order. The status goes first, on condition that the profile is still the one that was
looked at, also where it stays the same and something is to be done: a profile that was edited
meanwhile is looked at again before anything is touched, and an operator that dies after it has
written down less waiting than there was, never more. Everything after that may be cut off anywhere;
the next look goes on from what it finds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from kvreg_operator.clients.api_server import PROFILES, ClusterApi
from kvreg_operator.clients.errors import PermanentError, TemporaryError
from kvreg_operator.crd.profile import KVRegistryProfile, ProfileStatus
from kvreg_operator.manifests.rendering import Manifest
from kvreg_operator.observe.engine_directory import EngineDirectory
from kvreg_operator.observe.observer import Look, Observer
from kvreg_operator.observe.targets import TargetKey
from kvreg_operator.plan.actions import DeleteFitJob, RunFitJob
from kvreg_operator.plan.observation import FitJob
from kvreg_operator.plan.planning import Event, Plan, plan, tell_action
from kvreg_operator.reconcile.event_recorder import EventRecorder
from kvreg_operator.reconcile.execution import Execution
from kvreg_operator.reconcile.metrics import OperatorMetrics

# Several times what a slow API server and the slowest engines take together.
LOOK_TIMEOUT_S = 120.0
# What was done shows at once, and a drain in no event at all.
AFTER_ACTION_S = 1.0
# Engines send no events; this is how late an idle one is noticed.
WHILE_WAITING_S = 3.0
_WAITS_FOR_PEOPLE = frozenset({"Paused", "Canary", "OnDelete"})


class Reconciler:
    """Makes passes. ``clock`` returns seconds since the epoch.

    It remembers the last Job of each target that the API server refused for good: such a Job counts
    as one that has ended without an answer, until it would be deleted.
    """

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
        self._observer = Observer(api, engines, recorder)
        self._recorder = recorder
        self._metrics = metrics
        self._clock = clock
        self._statuses: dict[TargetKey, list[ProfileStatus]] = {}
        self._refused_jobs: dict[TargetKey, FitJob] = {}

    async def reconcile(self, target: TargetKey) -> float | None:
        """Make one pass; return when to look again, or None where an event will tell.

        Raises:
            OperatorError: Something could not be read or done; the pass ended there.
        """
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                looks = await self._observer.look(target)
        except TimeoutError as err:
            message = f"the look at {target} took longer than {LOOK_TIMEOUT_S:.0f} s"
            raise TemporaryError(message, delay_s=AFTER_ACTION_S) from err
        if not looks:
            self._refused_jobs.pop(target, None)
        looks = tuple(self._with_refused_job(target, look) for look in looks)
        planned = [(look, plan(look.profile, look.observed, self._clock())) for look in looks]
        self._show(target, [each.status for _, each in planned])
        delays = [await self._carry_out(target, look, each) for look, each in planned]
        return min((delay for delay in delays if delay is not None), default=None)

    def _with_refused_job(self, target: TargetKey, look: Look) -> Look:
        refused, jobs = self._refused_jobs.get(target), look.observed.fit_jobs
        if refused is None or refused.name in {job.name for job in jobs}:
            return look
        return replace(look, observed=replace(look.observed, fit_jobs=(*jobs, refused)))

    async def _carry_out(self, target: TargetKey, look: Look, planned: Plan) -> float | None:
        profile = look.profile
        is_changed = planned.status != profile.status or bool(planned.actions)
        if is_changed and not await self._write_status(profile, planned.status):
            return None
        for event in planned.events:
            await self._recorder.record(profile.metadata, event)
        execution = Execution(self._api, self._engines, profile)
        for action in planned.actions:
            if isinstance(action, DeleteFitJob) and self._forget_refused_job(target, action.name):
                # It was never made. What has its name is somebody else's.
                continue
            try:
                await execution.carry_out(action)
            except PermanentError as err:
                if isinstance(action, RunFitJob):
                    self._refused_jobs[target] = FitJob(action.name, None, str(err))
                failed = Event("Warning", "ActionFailed", f"{type(action).__name__}: {err}")
                await self._recorder.record(profile.metadata, failed)
                raise
            if (event_told := tell_action(action)) is not None:
                await self._recorder.record(profile.metadata, event_told, was_done=True)
        self._metrics.reconciled("changed" if is_changed else "unchanged")
        return _look_again_s(planned)

    def _forget_refused_job(self, target: TargetKey, name: str) -> bool:
        refused = self._refused_jobs.get(target)
        if refused is None or refused.name != name:
            return False
        del self._refused_jobs[target]
        return True

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

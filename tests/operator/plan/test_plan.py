"""The plan of each situation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.operator.objects import (
    NOW_S,
    TARGET,
    TOO_LARGE,
    busy_pod,
    hash_of,
    make_engine,
    make_pod,
    make_profile,
    make_target,
    observe,
    plan_for,
    statuses,
    unstarted_pod,
)

from kvreg_operator.crd.profile import KVRegistryProfile
from kvreg_operator.manifests.config_map import config_map_name
from kvreg_operator.plan.actions import (
    ApplyConfigMap,
    DeleteConfigMap,
    DeletePod,
    DrainPod,
    PatchTemplate,
    SetUpdateStrategy,
    describe_action,
)
from kvreg_operator.plan.observation import Observation, Pod
from kvreg_operator.plan.planning import Plan

OLD = make_profile(registryEntries=1)
NEW = make_profile(generation=2, registryEntries=4)


def asked(**spec: Any) -> KVRegistryProfile:
    return make_profile(**{"generation": 2, "registryEntries": 4, **spec})


def kinds(planned: Plan) -> list[type]:
    return [type(action) for action in planned.actions]


def drained(ordinal: int, served: KVRegistryProfile, **changes: Any) -> Pod:
    return make_pod(ordinal, served, engine=make_engine(served, is_draining=True), **changes)


def test_served_profile_plans_nothing() -> None:
    planned = plan_for(NEW, observe(NEW, make_pod(0, NEW)), NOW_S)
    assert planned.actions == ()
    assert statuses(planned.status)["Ready"] == ("True", "Served")


def test_status_of_a_served_profile_does_not_change_with_time() -> None:
    observed = observe(NEW, make_pod(0, NEW))
    status = plan_for(NEW, observed, NOW_S).status
    later = plan_for(
        make_profile(generation=2, registryEntries=4, status=status), observed, NOW_S + 99
    )
    assert later.status == status
    assert later.events == ()


def test_traffic_does_not_change_the_status_of_a_served_profile() -> None:
    idle = plan_for(NEW, observe(NEW, make_pod(0, NEW)), NOW_S).status
    assert plan_for(NEW, observe(NEW, busy_pod(0, NEW)), NOW_S).status == idle


def test_idle_target_gets_settings_then_template() -> None:
    assert kinds(plan_for(NEW, observe(OLD, make_pod(0, OLD)), NOW_S)) == [
        ApplyConfigMap,
        PatchTemplate,
    ]


def test_update_strategy_is_taken_over_before_the_template_is_patched() -> None:
    observed = observe(
        None, make_pod(0, OLD), target=make_target(None, 1, strategy="RollingUpdate")
    )
    assert kinds(plan_for(NEW, observed, NOW_S)) == [
        ApplyConfigMap,
        SetUpdateStrategy,
        PatchTemplate,
    ]


def test_busy_target_is_not_touched() -> None:
    planned = plan_for(NEW, observe(OLD, busy_pod(0, OLD)), NOW_S)
    assert planned.actions == ()
    assert statuses(planned.status)["RolloutDeferred"] == ("True", "Busy")


def test_queued_request_makes_an_engine_busy() -> None:
    pod = make_pod(0, OLD, engine=make_engine(OLD, queued=1))
    assert plan_for(NEW, observe(OLD, pod), NOW_S).actions == ()


def test_one_idle_engine_of_several_is_enough_to_begin() -> None:
    observed = observe(OLD, make_pod(0, OLD), busy_pod(1, OLD))
    assert PatchTemplate in kinds(plan_for(NEW, observed, NOW_S))


def test_idle_engine_is_drained_before_its_pod_is_deleted() -> None:
    planned = plan_for(NEW, observe(NEW, make_pod(0, OLD)), NOW_S)
    assert planned.actions == (DrainPod(f"{TARGET}-0", "uid-0"),)


def test_drained_idle_pod_is_deleted() -> None:
    planned = plan_for(NEW, observe(NEW, drained(0, OLD)), NOW_S)
    assert planned.actions == (DeletePod(f"{TARGET}-0", "uid-0"),)


def test_drained_pod_stays_until_its_service_does_not_route_to_it() -> None:
    planned = plan_for(NEW, observe(NEW, drained(0, OLD, is_ready=True)), NOW_S)
    assert planned.actions == ()
    assert planned.status.waiting_for is not None
    assert planned.status.waiting_for.reason == "Draining"


def test_drained_pod_that_stays_ready_is_deleted_after_the_timeout() -> None:
    pod = drained(0, OLD, is_ready=True)
    waiting = plan_for(NEW, observe(NEW, pod), NOW_S).status
    later_s = NOW_S + NEW.spec.rollout.idle_timeout_seconds
    planned = plan_for(NEW.model_copy(update={"status": waiting}), observe(NEW, pod), later_s)
    assert planned.actions == (DeletePod(f"{TARGET}-0", "uid-0"),)


def test_request_that_came_before_the_drain_is_waited_for() -> None:
    pod = make_pod(0, OLD, engine=make_engine(OLD, running=1, is_draining=True))
    planned = plan_for(NEW, observe(NEW, pod), NOW_S)
    assert planned.actions == ()
    assert planned.status.waiting_for is not None
    assert planned.status.waiting_for.reason == "Draining"


def test_idle_pod_goes_before_a_busy_one() -> None:
    planned = plan_for(NEW, observe(NEW, make_pod(0, OLD), busy_pod(1, OLD)), NOW_S)
    assert planned.actions == (DrainPod(f"{TARGET}-0", "uid-0"),)


def test_highest_ordinal_goes_first_among_equals() -> None:
    planned = plan_for(NEW, observe(NEW, make_pod(0, OLD), make_pod(1, OLD)), NOW_S)
    assert planned.actions == (DrainPod(f"{TARGET}-1", "uid-1"),)


def test_next_pod_waits_until_the_replaced_one_is_ready() -> None:
    loading = unstarted_pod(1, NEW)
    planned = plan_for(NEW, observe(NEW, make_pod(0, OLD), loading), NOW_S)
    assert planned.actions == ()
    assert planned.status.waiting_for is not None
    assert planned.status.waiting_for.pods == (f"{TARGET}-1",)


def test_next_pod_waits_until_the_replaced_one_exists() -> None:
    observed = observe(NEW, make_pod(0, OLD), target=make_target(NEW, 2))
    assert plan_for(NEW, observed, NOW_S).actions == ()


def test_dead_pod_is_replaced_although_another_is_not_ready() -> None:
    dead = unstarted_pod(0, OLD)
    loading = unstarted_pod(1, NEW)
    planned = plan_for(NEW, observe(NEW, dead, loading), NOW_S)
    assert planned.actions == (DeletePod(f"{TARGET}-0", "uid-0"),)


def test_started_pod_that_is_neither_ready_nor_answers_may_finish_a_request() -> None:
    silent = make_pod(0, OLD, is_ready=False, engine=None)
    planned = plan_for(NEW, observe(NEW, silent), NOW_S)
    assert planned.actions == ()
    assert statuses(planned.status)["RolloutDeferred"] == ("True", "EngineUnreachable")


def test_pods_that_are_numbered_from_one_are_all_rolled() -> None:
    pods = (make_pod(1, NEW), make_pod(2, OLD))
    observed = observe(NEW, *pods, target=make_target(NEW, 2, first_ordinal=1))
    assert plan_for(NEW, observed, NOW_S).actions == (DrainPod(f"{TARGET}-2", "uid-2"),)


def test_pods_beyond_the_replicas_are_left_alone() -> None:
    observed = observe(NEW, make_pod(0, NEW), make_pod(1, OLD), target=make_target(NEW, 1))
    assert plan_for(NEW, observed, NOW_S).actions == ()


def test_pod_is_not_deleted_before_the_controller_has_seen_the_template() -> None:
    observed = observe(NEW, make_pod(0, OLD), target=make_target(NEW, 1, observed_generation=3))
    planned = plan_for(NEW, observed, NOW_S)
    assert planned.actions == ()
    assert planned.status.waiting_for is not None
    assert planned.status.waiting_for.reason == "TemplateNotSeen"


def test_without_wait_for_idle_a_busy_pod_is_deleted() -> None:
    profile = asked(rollout={"waitForIdle": False})
    assert kinds(plan_for(profile, observe(profile, busy_pod(0, OLD)), NOW_S)) == [DeletePod]


def late(profile: KVRegistryProfile, observed: Observation) -> Plan:
    """Plan, wait for longer than the timeout, and plan again."""
    status = plan_for(profile, observed, NOW_S).status
    waited = profile.model_copy(update={"status": status})
    return plan_for(waited, observed, NOW_S + profile.spec.rollout.idle_timeout_seconds + 1)


def test_timeout_without_force_fails_closed_and_is_reported() -> None:
    planned = late(NEW, observe(OLD, busy_pod(0, OLD)))
    assert planned.actions == ()
    assert statuses(planned.status)["RolloutDeferred"] == ("True", "IdleTimeout")
    assert statuses(planned.status)["Degraded"] == ("True", "IdleTimeout")


def test_since_survives_the_timeout() -> None:
    observed = observe(OLD, busy_pod(0, OLD))
    first = plan_for(NEW, observed, NOW_S).status.waiting_for
    then = late(NEW, observed).status.waiting_for
    assert first is not None
    assert then is not None
    assert then.since == first.since


def test_timeout_with_force_replaces_a_busy_pod() -> None:
    profile = asked(rollout={"force": True})
    assert kinds(late(profile, observe(profile, busy_pod(0, OLD)))) == [DeletePod]


def test_force_waits_for_the_timeout_first() -> None:
    profile = asked(rollout={"force": True})
    assert plan_for(profile, observe(profile, busy_pod(0, OLD)), NOW_S).actions == ()


def test_forced_wait_continues_through_the_patch_that_it_led_to() -> None:
    profile = asked(rollout={"force": True})
    observed = observe(OLD, busy_pod(0, OLD))
    patched = late(profile, observed)
    assert PatchTemplate in kinds(patched)
    now_s = NOW_S + profile.spec.rollout.idle_timeout_seconds + 2
    waited = profile.model_copy(update={"status": patched.status})
    unseen = make_target(profile, 1, observed_generation=3)
    between = plan_for(waited, observe(profile, busy_pod(0, OLD), target=unseen), now_s)
    assert between.actions == ()
    waited = profile.model_copy(update={"status": between.status})
    assert kinds(plan_for(waited, observe(profile, busy_pod(0, OLD)), now_s + 1)) == [DeletePod]


def test_wait_for_one_pod_does_not_continue_through_the_patch_for_another() -> None:
    profile = asked(rollout={"force": True})
    patched = late(profile, observe(OLD, busy_pod(0, OLD)))
    waited = profile.model_copy(update={"status": patched.status})
    observed = observe(
        profile,
        busy_pod(0, OLD),
        busy_pod(1, OLD),
        target=make_target(profile, 2, observed_generation=3),
    )
    status = plan_for(waited, observed, NOW_S + 700).status
    assert status.waiting_for is not None
    assert status.waiting_for.reason == "TemplateNotSeen"


def test_wait_ends_with_a_pod_that_was_idle_before_the_patch() -> None:
    status = plan_for(NEW, observe(OLD, busy_pod(0, OLD)), NOW_S).status
    waited = NEW.model_copy(update={"status": status})
    planned = plan_for(waited, observe(OLD, make_pod(0, OLD)), NOW_S + 60)
    assert PatchTemplate in kinds(planned)
    assert planned.status.waiting_for is None


def slow_to_drain(served: KVRegistryProfile) -> Pod:
    """Make a draining pod with a request that does not end."""
    return make_pod(0, served, engine=make_engine(served, running=1, is_draining=True))


def test_request_that_does_not_end_after_the_drain_is_reported_after_the_timeout() -> None:
    planned = late(NEW, observe(NEW, slow_to_drain(OLD)))
    assert planned.actions == ()
    assert statuses(planned.status)["Degraded"] == ("True", "IdleTimeout")
    degraded = planned.status.find_condition("Degraded")
    assert degraded is not None
    assert "is draining, and has not finished" in degraded.message


def test_force_ends_a_request_that_does_not_end_after_the_drain() -> None:
    profile = asked(rollout={"force": True})
    assert kinds(late(profile, observe(profile, slow_to_drain(OLD)))) == [DeletePod]


def too_large(ordinal: int, **engine: Any) -> Pod:
    """Make a pod with the old settings whose engine reports that the new ones do not fit."""
    return make_pod(ordinal, OLD, engine=make_engine(OLD, fit=TOO_LARGE, **engine))


def test_engine_that_was_drained_before_the_refusal_is_restarted() -> None:
    planned = plan_for(NEW, observe(OLD, too_large(0, is_draining=True), too_large(1)), NOW_S)
    assert planned.actions == (DeletePod(f"{TARGET}-0", "uid-0"),)
    assert statuses(planned.status)["Accepted"] == ("False", "DoesNotFit")


def test_engine_that_was_drained_before_the_refusal_finishes_first() -> None:
    planned = plan_for(NEW, observe(OLD, too_large(0, is_draining=True, running=1)), NOW_S)
    assert planned.actions == ()
    assert planned.status.waiting_for is not None
    assert planned.status.waiting_for.reason == "Draining"


def test_refused_profile_that_is_paused_restarts_nothing() -> None:
    profile = asked(rollout={"paused": True})
    assert plan_for(profile, observe(OLD, too_large(0, is_draining=True)), NOW_S).actions == ()


def test_engine_is_not_restarted_into_settings_that_do_not_fit() -> None:
    planned = plan_for(NEW, observe(NEW, too_large(0, is_draining=True)), NOW_S)
    assert planned.actions == ()


def test_another_edit_begins_a_new_wait() -> None:
    observed = observe(OLD, busy_pod(0, OLD))
    status = plan_for(NEW, observed, NOW_S).status
    edited = asked(registryEntries=5, rollout={"force": True}).model_copy(update={"status": status})
    assert plan_for(edited, observed, NOW_S + 10_000).actions == ()


@pytest.mark.parametrize("force", [False, True])
def test_ready_pod_that_does_not_answer_is_not_touched(force: bool) -> None:
    profile = asked(rollout={"force": force})
    silent = make_pod(1, OLD, engine=None)
    observed = observe(profile, busy_pod(0, profile), silent)
    planned = plan_for(profile, observed, NOW_S)
    assert planned.actions == ()
    assert statuses(planned.status)["RolloutDeferred"] == ("True", "EngineUnreachable")


def test_without_a_report_about_the_fit_nothing_is_touched() -> None:
    pod = make_pod(0, OLD, engine=make_engine(OLD, fit=None))
    planned = plan_for(NEW, observe(OLD, pod), NOW_S)
    assert planned.actions == ()
    assert statuses(planned.status)["RolloutDeferred"] == ("True", "FitUnknown")


def test_force_does_not_replace_a_report_about_the_fit() -> None:
    profile = asked(rollout={"force": True, "idleTimeoutSeconds": 0})
    assert late(profile, observe(profile, make_pod(0, OLD, engine=None))).actions == ()


def test_force_overrides_a_silent_engine_once_another_reports_a_fit() -> None:
    profile = asked(rollout={"force": True})
    silent = make_pod(1, OLD, engine=None)
    assert kinds(late(profile, observe(profile, make_pod(0, profile), silent))) == [DeletePod]


def test_profile_that_does_not_fit_is_refused_untouched() -> None:
    pod = make_pod(0, OLD, engine=make_engine(OLD, fit=TOO_LARGE))
    planned = plan_for(NEW, observe(OLD, pod), NOW_S)
    assert planned.actions == ()
    assert statuses(planned.status)["Accepted"] == ("False", "DoesNotFit")


def test_refusal_contains_the_missing_bytes() -> None:
    pod = make_pod(0, OLD, engine=make_engine(OLD, fit=TOO_LARGE))
    accepted = plan_for(NEW, observe(OLD, pod), NOW_S).status.find_condition("Accepted")
    assert accepted is not None
    assert str(TOO_LARGE.short_by_bytes) in accepted.message


def test_where_no_engine_serves_a_rollout_continues_without_a_report_about_the_fit() -> None:
    dead = unstarted_pod(0, OLD, failure="CrashLoopBackOff")
    assert kinds(plan_for(NEW, observe(NEW, dead), NOW_S)) == [DeletePod]


def test_missing_target_is_named() -> None:
    planned = plan_for(NEW, Observation(NEW, target=None), NOW_S)
    assert statuses(planned.status)["Accepted"] == ("False", "TargetNotFound")
    assert statuses(planned.status)["Degraded"] == ("True", "TargetNotFound")


def test_missing_container_is_refused() -> None:
    observed = observe(OLD, make_pod(0, OLD), target=make_target(OLD, 1, containers=("sidecar",)))
    planned = plan_for(NEW, observed, NOW_S)
    assert planned.actions == ()
    assert statuses(planned.status)["Accepted"] == ("False", "ContainerNotFound")


def test_younger_profile_of_a_target_conflicts() -> None:
    elder = make_profile("elder", created_s=NOW_S - 7200)
    planned = plan_for(NEW, observe(OLD, make_pod(0, OLD), others=(elder.metadata,)), NOW_S)
    assert planned.actions == ()
    assert statuses(planned.status)["Accepted"] == ("False", "Conflict")


def test_senior_profile_of_a_target_is_applied() -> None:
    younger = make_profile("younger", created_s=NOW_S - 60)
    observed = observe(OLD, make_pod(0, OLD), others=(younger.metadata,))
    assert statuses(plan_for(NEW, observed, NOW_S).status)["Accepted"] == ("True", "Accepted")


def test_of_two_profiles_of_one_second_exactly_one_is_applied() -> None:
    one, two = make_profile("one"), make_profile("two")
    verdicts = {
        statuses(
            plan_for(mine, observe(OLD, make_pod(0, OLD), others=(other.metadata,)), NOW_S).status
        )["Accepted"]
        for mine, other in ((one, two), (two, one))
    }
    assert verdicts == {("True", "Accepted"), ("False", "Conflict")}


def test_paused_profile_changes_nothing() -> None:
    profile = asked(rollout={"paused": True})
    planned = plan_for(profile, observe(OLD, make_pod(0, OLD)), NOW_S)
    assert planned.actions == ()
    assert statuses(planned.status)["RolloutDeferred"] == ("True", "Paused")


def test_paused_profile_that_is_served_is_ready() -> None:
    profile = asked(rollout={"paused": True})
    planned = plan_for(profile, observe(profile, make_pod(0, profile)), NOW_S)
    assert statuses(planned.status)["Ready"] == ("True", "Served")
    assert statuses(planned.status)["RolloutDeferred"] == ("False", "NotDeferred")


def test_on_delete_strategy_patches_the_template_of_a_busy_target() -> None:
    profile = asked(rollout={"strategy": "OnDelete"})
    assert PatchTemplate in kinds(plan_for(profile, observe(OLD, busy_pod(0, OLD)), NOW_S))


def test_on_delete_strategy_does_not_replace_a_report_about_the_fit() -> None:
    profile = asked(rollout={"strategy": "OnDelete"})
    planned = plan_for(profile, observe(OLD, make_pod(0, OLD, engine=None)), NOW_S)
    assert planned.actions == ()
    assert statuses(planned.status)["RolloutDeferred"] == ("True", "FitUnknown")


def test_on_delete_strategy_leaves_the_deletion_to_the_user() -> None:
    profile = asked(rollout={"strategy": "OnDelete"})
    planned = plan_for(profile, observe(profile, make_pod(0, OLD)), NOW_S)
    assert planned.actions == ()
    assert statuses(planned.status)["RolloutDeferred"] == ("True", "OnDelete")


def test_template_that_others_changed_reaches_the_pods() -> None:
    observed = observe(NEW, make_pod(0, NEW), target=make_target(NEW, 1, update_revision="image-2"))
    planned = plan_for(NEW, observed, NOW_S)
    assert planned.actions == (DrainPod(f"{TARGET}-0", "uid-0"),)
    assert statuses(planned.status)["Ready"] == ("False", "NotServed")


def test_canary_takes_the_last_pods() -> None:
    profile = asked(canary={"pods": 1})
    pods = [busy_pod(2, OLD), make_pod(0, OLD), make_pod(1, OLD)]
    assert plan_for(profile, observe(profile, *pods), NOW_S).actions == ()


def test_served_canary_holds_the_rollout() -> None:
    profile = asked(canary={"pods": 1})
    planned = plan_for(profile, observe(profile, make_pod(0, OLD), make_pod(1, profile)), NOW_S)
    assert planned.actions == ()
    assert statuses(planned.status)["RolloutDeferred"] == ("True", "Canary")
    assert statuses(planned.status)["Ready"] == ("False", "NotServed")


def test_removed_canary_continues_the_rollout() -> None:
    planned = plan_for(NEW, observe(NEW, make_pod(0, OLD), make_pod(1, NEW)), NOW_S)
    assert planned.actions == (DrainPod(f"{TARGET}-0", "uid-0"),)


def test_restart_id_replaces_pods_of_equal_settings() -> None:
    profile = asked(restartId="monday")
    assert PatchTemplate in kinds(plan_for(profile, observe(NEW, make_pod(0, NEW)), NOW_S))


def test_reverted_roll_touches_only_the_pods_that_had_changed() -> None:
    observed = observe(OLD, make_pod(0, OLD), make_pod(1, NEW))
    assert plan_for(OLD, observed, NOW_S).actions == (DrainPod(f"{TARGET}-1", "uid-1"),)


def test_failing_pod_of_a_reverted_roll_is_deleted_at_once() -> None:
    failing = unstarted_pod(1, NEW, failure="CrashLoopBackOff")
    planned = plan_for(OLD, observe(OLD, busy_pod(0, OLD), failing), NOW_S)
    assert planned.actions == (DeletePod(f"{TARGET}-1", "uid-1"),)


def test_engine_that_was_drained_before_a_revert_is_restarted() -> None:
    assert kinds(plan_for(OLD, observe(OLD, drained(0, OLD)), NOW_S)) == [DeletePod]


def test_draining_engine_does_not_count_as_ready_before_its_probe_fails() -> None:
    planned = plan_for(NEW, observe(NEW, drained(0, NEW)), NOW_S)
    assert statuses(planned.status)["Ready"] == ("False", "PodsNotReady")


def test_failing_pod_stops_the_rollout_and_is_reported() -> None:
    failing = unstarted_pod(1, NEW, failure="CrashLoopBackOff")
    planned = plan_for(NEW, observe(NEW, make_pod(0, OLD), failing), NOW_S)
    assert planned.actions == ()
    assert statuses(planned.status)["Degraded"] == ("True", "PodFailing")


def test_unschedulable_pod_is_reported() -> None:
    waiting = unstarted_pod(1, NEW, unschedulable="Unschedulable: Insufficient nvidia.com/gpu")
    degraded = plan_for(NEW, observe(NEW, make_pod(0, OLD), waiting), NOW_S).status.find_condition(
        "Degraded"
    )
    assert degraded is not None
    assert (degraded.status, degraded.reason) == ("True", "PodFailing")
    assert "chat-1: Unschedulable: Insufficient nvidia.com/gpu" in degraded.message


def test_pod_that_waits_for_the_gpu_of_a_terminating_one_has_not_failed() -> None:
    waiting = unstarted_pod(1, NEW, unschedulable="Unschedulable: Insufficient nvidia.com/gpu")
    leaving = make_pod(0, OLD, is_terminating=True, ends_at_s=NOW_S + 10)
    planned = plan_for(NEW, observe(NEW, leaving, waiting), NOW_S)
    assert statuses(planned.status)["Degraded"] == ("False", "NothingFailed")


@pytest.mark.parametrize(("late_s", "reason"), [(59, "NothingFailed"), (61, "PodFailing")])
def test_pod_that_does_not_end_is_reported_a_minute_after_its_grace_period(
    late_s: float, reason: str
) -> None:
    leaving = make_pod(0, OLD, is_terminating=True, ends_at_s=NOW_S)
    planned = plan_for(NEW, observe(NEW, leaving), NOW_S + late_s)
    assert statuses(planned.status)["Degraded"][1] == reason


def test_template_that_lost_a_part_of_the_settings_is_restored_under_busy_engines() -> None:
    observed = observe(NEW, busy_pod(0, NEW), target=make_target(NEW, 1, mounts_settings=False))
    assert kinds(plan_for(NEW, observed, NOW_S)) == [PatchTemplate]


def test_pod_that_was_created_without_a_part_of_the_settings_is_replaced() -> None:
    planned = plan_for(NEW, observe(NEW, make_pod(0, NEW, mounts_settings=False)), NOW_S)
    assert kinds(planned) == [DrainPod]


def test_rollout_lasts_until_the_replaced_pods_serve() -> None:
    rolling = plan_for(NEW, observe(NEW, make_pod(0, OLD)), NOW_S).status
    loading = NEW.model_copy(update={"status": rolling})
    planned = plan_for(loading, observe(NEW, unstarted_pod(0, NEW)), NOW_S)
    assert statuses(planned.status)["Progressing"] == ("True", "Rolling")


def test_pods_that_never_get_ready_are_not_ready() -> None:
    loading = unstarted_pod(0, NEW)
    planned = plan_for(NEW, observe(NEW, loading), NOW_S)
    assert statuses(planned.status)["Ready"] == ("False", "PodsNotReady")


def test_engine_that_serves_other_settings_is_reported() -> None:
    overridden = make_pod(0, NEW, engine=make_engine(OLD))
    planned = plan_for(NEW, observe(NEW, overridden), NOW_S)
    assert statuses(planned.status)["Ready"] == ("False", "EffectiveDiffers")
    assert statuses(planned.status)["Degraded"] == ("True", "EffectiveDiffers")


def test_silent_engines_leave_ready_unknown() -> None:
    planned = plan_for(NEW, observe(NEW, make_pod(0, NEW, engine=None)), NOW_S)
    assert statuses(planned.status)["Ready"] == ("Unknown", "EngineUnreachable")
    assert ("Warning", "EngineUnreachable") in {(e.type, e.reason) for e in planned.events}


def test_template_that_was_replaced_by_hand_is_restored_under_busy_engines() -> None:
    observed = observe(None, busy_pod(0, NEW))
    assert kinds(plan_for(NEW, observed, NOW_S)) == [PatchTemplate]


def test_settings_that_were_deleted_by_hand_are_restored() -> None:
    observed = observe(NEW, make_pod(0, NEW), config_maps=frozenset())
    assert kinds(plan_for(NEW, observed, NOW_S)) == [ApplyConfigMap]


def test_unused_settings_are_removed_once_the_profile_is_served() -> None:
    served = config_map_name(TARGET, hash_of(NEW))
    observed = observe(NEW, make_pod(0, NEW), config_maps=frozenset({served, "older", "oldest"}))
    planned = plan_for(NEW, observed, NOW_S)
    assert planned.actions == (DeleteConfigMap("older"), DeleteConfigMap("oldest"))


def test_settings_of_a_terminating_pod_are_kept() -> None:
    leaving = make_pod(1, OLD, is_terminating=True)
    planned = plan_for(NEW, observe(NEW, make_pod(0, NEW), leaving), NOW_S)
    assert planned.actions == ()


def test_serving_hash_is_absent_while_pods_differ() -> None:
    status = plan_for(NEW, observe(NEW, make_pod(0, OLD), make_pod(1, NEW)), NOW_S).status
    assert status.serving_hash is None
    assert status.effective is None


def test_effective_settings_are_those_that_engines_report() -> None:
    status = plan_for(NEW, observe(OLD, busy_pod(0, OLD)), NOW_S).status
    assert status.effective is not None
    assert status.effective.registry_entries == OLD.spec.registry_entries


def test_conditions_have_the_generation_that_was_observed() -> None:
    status = plan_for(NEW, observe(OLD, make_pod(0, OLD)), NOW_S).status
    assert {c.observed_generation for c in status.conditions} == {NEW.metadata.generation}


def test_condition_keeps_its_time_while_its_status_stays() -> None:
    first = plan_for(NEW, observe(OLD, busy_pod(0, OLD)), NOW_S).status
    waiting = NEW.model_copy(update={"status": first})
    second = plan_for(waiting, observe(NEW, make_pod(0, NEW)), NOW_S + 60).status
    accepted, ready = second.find_condition("Accepted"), second.find_condition("Ready")
    assert accepted is not None
    assert ready is not None
    assert (ready.last_transition_time - accepted.last_transition_time).total_seconds() == 60


def test_status_survives_serialisation() -> None:
    status = plan_for(NEW, observe(OLD, busy_pod(0, OLD)), NOW_S).status
    written = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert type(status).model_validate(written) == status


def test_every_action_but_one_has_an_event() -> None:
    planned = plan_for(NEW, observe(OLD, make_pod(0, OLD)), NOW_S)
    reasons = [event.reason for event in map(describe_action, planned.actions) if event is not None]
    assert reasons == ["SettingsWritten", "TemplatePatched"]


def test_refusal_is_one_event() -> None:
    pod = make_pod(0, OLD, engine=make_engine(OLD, fit=TOO_LARGE))
    observed = observe(OLD, pod)
    first = plan_for(NEW, observed, NOW_S)
    again = plan_for(NEW.model_copy(update={"status": first.status}), observed, NOW_S + 30)
    assert [event.reason for event in first.events] == ["DoesNotFit"]
    assert again.events == ()


def test_deletion_has_the_uid_that_was_observed() -> None:
    pod = replace(drained(0, OLD), uid="the-one-seen")
    assert plan_for(NEW, observe(NEW, pod), NOW_S).actions == (DeletePod(pod.name, "the-one-seen"),)

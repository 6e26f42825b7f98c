"""Repeated plans bring a cluster to its profile, one pod at a time, whatever happens to it.

The rules that hold on the way are in ``simulated_cluster``, which refuses to break them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.operator.objects import NOW_S, hash_of, make_profile, plan_for, statuses
from tests.operator.simulated_cluster import TICK_S, SimulatedCluster

from kvreg_operator.crd.profile import Canary, Rollout
from kvreg_operator.plan.planning import Plan, plan

# A rollout takes a dozen reconciles for each pod; a request lasts at most four ticks.
MAX_RECONCILES = 120
MAX_REPLICAS = 4

# The same examples in every run. After a change of the planning, try thousands.
SEARCH = settings(deadline=None, derandomize=True, database=None)

Happening = Callable[[SimulatedCluster], object]


def edit_entries(entries: int) -> Happening:
    return lambda cluster: cluster.edit(registry_entries=entries)


def edit_restart_id(text: str) -> Happening:
    return lambda cluster: cluster.edit(restart_id=text)


def edit_canary(pods: int | None) -> Happening:
    return lambda cluster: cluster.edit(canary=None if pods is None else Canary(pods=pods))


def edit_rollout(rollout: Rollout) -> Happening:
    return lambda cluster: cluster.edit(rollout=rollout)


def scale(replicas: int) -> Happening:
    return lambda cluster: setattr(cluster, "replicas", replicas)


def start_request(ordinal: int, num_ticks: int) -> Happening:
    def happen(cluster: SimulatedCluster) -> None:
        pod = cluster.pods.get(ordinal)
        if pod is not None and pod.serves:
            pod.busy_ticks = num_ticks

    return happen


def lose_pod(ordinal: int) -> Happening:
    return lambda cluster: cluster.pods.pop(ordinal, None)


def silence(ordinal: int) -> Happening:
    def happen(cluster: SimulatedCluster) -> None:
        if ordinal in cluster.pods:
            cluster.pods[ordinal].is_silent = True

    return happen


def drain_by_hand(ordinal: int) -> Happening:
    def happen(cluster: SimulatedCluster) -> None:
        if ordinal in cluster.pods and cluster.pods[ordinal].serves:
            cluster.pods[ordinal].is_draining = True

    return happen


def break_settings(cluster: SimulatedCluster) -> None:
    cluster.broken.add(hash_of(cluster.profile))


def replace_target_by_hand(cluster: SimulatedCluster) -> None:
    cluster.template_hash = None
    cluster.strategy = "RollingUpdate"
    cluster.generation += 1


def toggle_loss_of_jobs(cluster: SimulatedCluster) -> None:
    cluster.loses_jobs = not cluster.loses_jobs


def upgrade_image(cluster: SimulatedCluster) -> None:
    cluster.image = "image-2"
    cluster.generation += 1


def add_elder_profile(cluster: SimulatedCluster) -> None:
    cluster.others = (make_profile("elder", created_s=NOW_S - 7200).metadata,)


def remove_other_profiles(cluster: SimulatedCluster) -> None:
    cluster.others = ()


ORDINALS = st.integers(0, MAX_REPLICAS - 1)
ROLLOUTS = st.builds(
    Rollout,
    strategy=st.sampled_from(["RollingUpdate", "OnDelete"]),
    wait_for_idle=st.booleans(),
    idle_timeout_seconds=st.sampled_from([0, 60, 600]),
    force=st.booleans(),
    paused=st.booleans(),
)
HAPPENINGS = st.one_of(
    # Nine entries do not fit.
    st.builds(edit_entries, st.sampled_from([1, 2, 3, 9])),
    st.builds(edit_restart_id, st.sampled_from(["monday", "friday"])),
    st.builds(edit_canary, st.none() | st.integers(1, 2)),
    st.builds(edit_rollout, ROLLOUTS),
    st.builds(scale, st.integers(1, MAX_REPLICAS)),
    st.builds(start_request, ORDINALS, st.integers(1, 4)),
    st.builds(lose_pod, ORDINALS),
    st.builds(silence, ORDINALS),
    st.builds(drain_by_hand, ORDINALS),
    st.sampled_from(
        [
            break_settings,
            replace_target_by_hand,
            upgrade_image,
            toggle_loss_of_jobs,
            add_elder_profile,
            remove_other_profiles,
            SimulatedCluster.forget_status,
        ]
    ),
)
# Reconciles, each with the pod that gets a request at the worst moment, if any.
RECONCILES = st.lists(st.none() | ORDINALS, max_size=5)
HISTORIES = st.lists(st.tuples(HAPPENINGS, RECONCILES), max_size=15)
History = list[tuple[Happening, list[int | None]]]


def live(cluster: SimulatedCluster, history: History) -> None:
    for happen, arrivals in history:
        happen(cluster)
        for arrival in arrivals:
            cluster.reconcile(arrival)
            cluster.tick()


def new_cluster(replicas: int) -> SimulatedCluster:
    cluster = SimulatedCluster(make_profile(), replicas=replicas)
    for _ in range(4):
        cluster.tick()
    return cluster


def settle(cluster: SimulatedCluster) -> None:
    """Alternate reconciles and ticks until nothing changes for a while."""
    num_quiet = 0
    for _ in range(MAX_RECONCILES):
        before = cluster.profile.status
        planned = cluster.reconcile()
        is_quiet = not planned.actions and planned.status == before
        num_quiet = num_quiet + 1 if is_quiet else 0
        if num_quiet > 6:
            return
        cluster.tick()
    pytest.fail(f"still at work after {MAX_RECONCILES} reconciles: {cluster.profile.status}")


def make_servable(cluster: SimulatedCluster) -> None:
    """Remove what keeps the profile from being served: pauses, canaries and silent engines."""
    cluster.edit(registry_entries=2, canary=None, rollout=Rollout())
    cluster.broken.discard(hash_of(cluster.profile))
    for pod in cluster.pods.values():
        pod.is_silent = False
        # A pod of good settings that was broken by others is none: it restarts by itself.
        pod.is_broken = pod.is_broken and pod.settings_hash != hash_of(cluster.profile)
    cluster.others = ()


@settings(SEARCH, max_examples=300)
@given(replicas=st.integers(1, MAX_REPLICAS), history=HISTORIES)
def test_any_history_converges_to_the_profile(replicas: int, history: History) -> None:
    cluster = new_cluster(replicas)
    live(cluster, history)
    make_servable(cluster)
    settle(cluster)
    desired = hash_of(cluster.profile)
    assert statuses(cluster.profile.status)["Ready"] == ("True", "Served")
    assert [pod.settings_hash for pod in cluster.pods.values()] == [desired] * cluster.replicas
    assert cluster.template_hash == desired
    assert {pod.revision for pod in cluster.pods.values()} == {f"{cluster.image}-{desired}"}
    assert len(cluster.config_maps) == 1
    assert not cluster.jobs


@settings(SEARCH, max_examples=200)
@given(replicas=st.integers(1, MAX_REPLICAS), history=HISTORIES)
def test_planning_again_without_a_change_plans_the_same(replicas: int, history: History) -> None:
    cluster = new_cluster(replicas)
    live(cluster, history)
    cluster.reconcile()
    observed, now_s = cluster.observe(), NOW_S + cluster.ticks * TICK_S
    first = plan(observed, now_s)
    if first.actions:
        # Their effects belong to the next observation.
        return
    written = cluster.profile.model_copy(update={"status": first.status})
    assert plan_for(written, observed, now_s) == Plan(written, (), first.status, ())


@settings(SEARCH, max_examples=200)
@given(replicas=st.integers(1, MAX_REPLICAS), history=HISTORIES)
def test_held_profile_touches_nothing(replicas: int, history: History) -> None:
    cluster = new_cluster(replicas)
    live(cluster, history)
    cluster.edit(rollout=Rollout(paused=True))
    assert plan(cluster.observe(), NOW_S).actions == ()


@settings(SEARCH, max_examples=100)
@given(replicas=st.integers(1, MAX_REPLICAS), num_passes=st.integers(0, 40))
def test_roll_that_is_reverted_at_any_step_ends_where_it_began(
    replicas: int, num_passes: int
) -> None:
    cluster = new_cluster(replicas)
    settle(cluster)
    served = hash_of(cluster.profile)
    cluster.edit(registry_entries=3)
    for _ in range(num_passes):
        cluster.reconcile()
        cluster.tick()
    cluster.edit(registry_entries=2)
    settle(cluster)
    assert {pod.settings_hash for pod in cluster.pods.values()} == {served}


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_bad_settings_cost_one_pod_and_the_revert_brings_it_back(replicas: int) -> None:
    cluster = new_cluster(replicas)
    settle(cluster)
    cluster.edit(registry_entries=3)
    cluster.broken.add(hash_of(cluster.profile))
    settle(cluster)
    assert sum(not pod.serves for pod in cluster.pods.values()) == 1
    assert statuses(cluster.profile.status)["Degraded"] == ("True", "PodFailing")
    cluster.edit(registry_entries=2)
    settle(cluster)
    assert all(pod.serves for pod in cluster.pods.values())


def test_canary_replaces_its_number_of_pods() -> None:
    cluster = new_cluster(4)
    settle(cluster)
    cluster.edit(registry_entries=3, canary=Canary(pods=2))
    settle(cluster)
    desired = hash_of(cluster.profile)
    changed = {k for k, pod in cluster.pods.items() if pod.settings_hash == desired}
    assert changed == {2, 3}


def test_roll_of_every_pod_replaces_each_once() -> None:
    cluster = new_cluster(4)
    settle(cluster)
    made = cluster.pods_made
    cluster.edit(registry_entries=3)
    settle(cluster)
    assert cluster.pods_made == made + 4


def test_new_image_reaches_every_pod_once() -> None:
    cluster = new_cluster(3)
    settle(cluster)
    made = cluster.pods_made
    upgrade_image(cluster)
    settle(cluster)
    assert cluster.pods_made == made + 3

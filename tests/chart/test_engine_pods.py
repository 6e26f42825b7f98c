"""The pods of the engines: settings, termination, probes, rights, GPUs and volumes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.chart.helm import container, pod_template, render, select, variables
from tests.chart.renderings import CASES, Case

from kvreg_operator.crd.profile import TargetRef
from kvreg_operator.manifests.stateful_set import CONFIG_FILE_VARIABLE, MOUNT_PATH, VOLUME_NAME
from kvreg_service.setting_names import ENV_PREFIX, environment_name
from kvreg_service.settings import Settings, load_settings

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
GRACE_BEYOND_DRAIN_S = 15


@every_case
def test_every_kvreg_variable_is_a_setting(case: Case) -> None:
    known = {environment_name(name) for name in Settings.model_fields}
    ours = {name for name in variables(case.render()) if name.startswith(ENV_PREFIX)}
    assert ours <= known


@every_case
def test_no_variable_stands_twice(case: Case) -> None:
    names = [entry["name"] for entry in container(case.render())["env"]]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", ["defaults", "cpu-demo", "without-operator"])
def test_engine_loads_its_settings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (case,) = (case for case in CASES if case.name == name)
    for variable, value in variables(case.render()).items():
        if variable.startswith(ENV_PREFIX):
            monkeypatch.setenv(variable, value)
    settings = load_settings()
    assert (settings.host, settings.port) == ("0.0.0.0", 8000)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("max_body_bytes", 67108864, "67108864"),
        ("request_log_max_bytes", 10**10, "10000000000"),
        ("prefix_reuse", False, "false"),
        ("trace_ratio", 0.25, "0.25"),
        ("memory_gib", 2.0, "2"),
        ("eviction", "priority", "priority"),
    ],
)
def test_setting_is_written_as_the_engine_reads_it(name: str, value: object, text: str) -> None:
    assert variables(render({"engine": {"settings": {name: value}}}))[environment_name(name)] == (
        text
    )


@every_case
def test_operator_s_part_of_the_template_is_left_to_it(case: Case) -> None:
    template = pod_template(case.render())
    assert CONFIG_FILE_VARIABLE not in variables(case.render())
    assert VOLUME_NAME not in [volume["name"] for volume in template["spec"]["volumes"]]
    mounts = container(case.render())["volumeMounts"]
    assert not [mount for mount in mounts if MOUNT_PATH.startswith(mount["mountPath"] + "/")]


def test_container_is_the_one_that_a_profile_names_by_default() -> None:
    assert container(render())["name"] == TargetRef(name="kvreg").container


@pytest.mark.parametrize(("pre_stop_s", "drain_s"), [(5, 120), (0, 0), (10, 600)])
def test_grace_period_covers_the_drain(pre_stop_s: int, drain_s: int) -> None:
    objects = render({"engine": {"preStopSeconds": pre_stop_s, "drainTimeoutSeconds": drain_s}})
    grace_s = pod_template(objects)["spec"]["terminationGracePeriodSeconds"]
    assert grace_s == pre_stop_s + drain_s + GRACE_BEYOND_DRAIN_S
    assert variables(objects)["KVREG_DRAIN_TIMEOUT_S"] == str(drain_s)
    hook = container(objects).get("lifecycle")
    command = ["sleep", str(pre_stop_s)]
    assert hook == ({"preStop": {"exec": {"command": command}}} if pre_stop_s else None)


@pytest.mark.parametrize(
    ("operator", "strategy"),
    [
        ({}, "OnDelete"),
        ({"enabled": False, "elsewhereNamespace": "ops"}, "OnDelete"),
        ({"enabled": False}, "RollingUpdate"),
    ],
)
def test_update_strategy_depends_on_the_operator(operator: dict[str, Any], strategy: str) -> None:
    spec = select(render({"operator": operator}), "StatefulSet")["spec"]
    assert spec["updateStrategy"] == {"type": strategy}
    assert spec["podManagementPolicy"] == "Parallel"


@every_case
def test_engines_are_not_told_about_the_cluster(case: Case) -> None:
    spec = pod_template(case.render())["spec"]
    assert spec["enableServiceLinks"] is False
    assert spec["automountServiceAccountToken"] is False


@every_case
@pytest.mark.parametrize("kind", ["StatefulSet", "Deployment"])
def test_pods_meet_the_restricted_standard(case: Case, kind: str) -> None:
    if not any(part["kind"] == kind for part in case.render()):
        assert case.values["operator"]["enabled"] is False
        return
    context = pod_template(case.render(), kind)["spec"]["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] == context["runAsGroup"] == context["fsGroup"] == 10001
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    own = container(case.render(), kind)["securityContext"]
    assert own == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@pytest.mark.parametrize("kind", ["StatefulSet", "Deployment"])
@pytest.mark.parametrize("left", [None, {"runAsUser": None, "runAsGroup": None, "fsGroup": None}])
def test_user_can_be_left_to_the_platform(kind: str, left: dict[str, None] | None) -> None:
    context = pod_template(render({"podSecurityContext": left}), kind)["spec"]["securityContext"]
    assert not context.keys() & {"runAsUser", "runAsGroup", "fsGroup"}
    assert context["runAsNonRoot"] is True


@pytest.mark.parametrize("kind", ["StatefulSet", "Deployment"])
def test_user_can_be_another_one(kind: str) -> None:
    chosen = {"runAsUser": 2147483647, "runAsGroup": 20, "fsGroup": 30}
    context = pod_template(render({"podSecurityContext": chosen}), kind)["spec"]["securityContext"]
    assert chosen.items() <= context.items()


@pytest.mark.parametrize(("replicas", "found"), [(None, {}), (0, {"replicas": 0})])
def test_number_of_engines_can_be_left_to_an_autoscaler(
    replicas: int | None, found: dict[str, int]
) -> None:
    spec = select(render({"engine": {"replicas": replicas}}), "StatefulSet")["spec"]
    assert {name: spec[name] for name in spec.keys() & {"replicas"}} == found


@every_case
def test_every_mount_has_its_volume_and_tmp_can_be_written(case: Case) -> None:
    objects = case.render()
    stateful_set = select(objects, "StatefulSet")["spec"]
    claims = [claim["metadata"]["name"] for claim in stateful_set.get("volumeClaimTemplates", ())]
    volumes = [volume["name"] for volume in pod_template(objects)["spec"]["volumes"]] + claims
    mounts = {mount["name"]: mount for mount in container(objects)["volumeMounts"]}
    assert sorted(volumes) == sorted(mounts)
    assert mounts["tmp"]["mountPath"] == variables(objects)["HOME"] == "/tmp"


def test_probes_ask_what_they_are_for_and_startup_lasts_half_an_hour() -> None:
    engine = container(render())
    paths = {
        name: engine[f"{name}Probe"]["httpGet"]["path"]
        for name in ("startup", "readiness", "liveness")
    }
    assert paths == {"startup": "/startupz", "readiness": "/readyz", "liveness": "/livez"}
    startup = engine["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 30 * 60


def test_example_of_a_v100_pool_has_two_cards_and_is_placed() -> None:
    objects = render(examples=("v100-tp2",))
    spec, engine = pod_template(objects)["spec"], container(objects)
    assert engine["resources"]["limits"]["nvidia.com/gpu"] == 2
    assert (variables(objects)["KVREG_DEVICE"], variables(objects)["KVREG_TP"]) == ("cuda", "2")
    assert spec["runtimeClassName"] == "nvidia"
    assert {"nodeSelector", "affinity", "tolerations"} <= spec.keys()
    shared = {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}}
    assert shared in spec["volumes"]
    assert variables(objects)["KVREG_MODEL"] == "/models/qwen3.5-27b-nvfp4"


def test_without_cards_nothing_asks_for_one() -> None:
    objects = render()
    assert "nvidia.com/gpu" not in str(pod_template(objects))
    assert "KVREG_DEVICE" not in variables(objects)


def test_every_pod_writes_a_log_of_its_own() -> None:
    objects = render({"requestLog": {"enabled": True, "volume": "hostPath"}})
    env = variables(objects)
    assert env["KVREG_REQUEST_LOG"] == "/var/log/kvreg/requests.$(POD_NAMESPACE).$(POD_NAME).jsonl"
    names = [entry["name"] for entry in container(objects)["env"]]
    # Kubernetes expands only variables that precede it.
    assert max(names.index("POD_NAMESPACE"), names.index("POD_NAME")) < names.index(
        "KVREG_REQUEST_LOG"
    )


def test_another_version_of_the_chart_alone_replaces_no_pod() -> None:
    objects = render({"engine": {"image": {"tag": "1"}}, "operator": {"image": {"tag": "1"}}})
    version = select(objects, "StatefulSet")["metadata"]["labels"]["helm.sh/chart"].split("-", 1)[1]
    for kind in ("StatefulSet", "Deployment"):
        assert version not in str(select(objects, kind)["spec"])
        assert "0.1.0.dev0" not in str(select(objects, kind)["spec"])

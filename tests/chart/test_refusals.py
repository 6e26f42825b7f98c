"""Values that cannot work are rejected before the installation, by name."""

from __future__ import annotations

from typing import Any

import pytest
from tests.chart.helm import HelmError, container, render, select, variables
from tests.chart.renderings import CASES, EVERYTHING
from tests.operator.objects import make_profile

from kvreg_operator.crd.profile import MAX_TARGET_NAME_LENGTH
from kvreg_operator.manifests.desired_state import render_settings
from kvreg_operator.manifests.stateful_set import MOUNT_PATH, VOLUME_NAME
from kvreg_service.settings import Settings

PROFILE_SETTINGS = ("lanes", "entries", "current_state", "anchors")
ELSEWHERE: dict[str, Any] = {
    "host": "::1", "port": 8001, "model": "/m", "served_model_name": "m", "device": "cuda", "tp": 2,
    "drain_timeout_s": 5, "api_keys": "{}", "api_keys_file": "/k.json", "request_log": "/l",
    "request_log_salt": "0" * 16, "config_file": "/c.json", "profile": "p",
}  # fmt: skip
OWN_VARIABLES = ("HOME", "POD_NAME", "POD_NAMESPACE")
OWN_VOLUMES = ("tmp", "shared-memory", "model", "api-keys", "request-log", VOLUME_NAME)
RULED: dict[str, Any] = {"lanes": 2, "entries": 2, "current_state": "drop", "anchors": 1}


@pytest.mark.parametrize(("name", "value"), ELSEWHERE.items())
def test_setting_of_another_value_is_rejected_by_name(name: str, value: object) -> None:
    values = {"operator": {"enabled": False}, "engine": {"settings": {name: value}}}
    with pytest.raises(HelmError, match=rf"engine\.settings\.{name} is set by "):
        render(values)


@pytest.mark.parametrize(("name", "value"), RULED.items())
@pytest.mark.parametrize("operator", [{}, {"enabled": False, "elsewhereNamespace": "ops"}])
def test_setting_of_the_profile_is_rejected_if_there_is_an_operator(
    name: str, value: object, operator: dict[str, Any]
) -> None:
    with pytest.raises(HelmError, match=rf"engine\.settings\.{name} is set by the KVReg"):
        render({"operator": operator, "engine": {"settings": {name: value}}})


def test_setting_of_the_profile_is_accepted_without_an_operator() -> None:
    objects = render({"operator": {"enabled": False}, "engine": {"settings": RULED}})
    assert {name: variables(objects)[f"KVREG_{name.upper()}"] for name in RULED} == {
        name: str(value) for name, value in RULED.items()
    }


def test_rejected_settings_are_those_that_a_profile_renders() -> None:
    profile = make_profile(lanes=1, registryEntries=1, currentState="Keep", anchors=1)
    rendered = dict(render_settings(profile).settings)
    assert set(rendered) == {*PROFILE_SETTINGS, "profile"}


def test_every_other_setting_is_accepted() -> None:
    names = Settings.model_fields.keys() - ELSEWHERE.keys() - RULED.keys()
    defaults = {name: Settings.model_fields[name].default for name in names}
    given = {name: 1 if value is None else value for name, value in defaults.items()}
    given["otlp_endpoint"] = "http://collector:4318"
    assert {f"KVREG_{name.upper()}" for name in names} <= variables(
        render({"engine": {"settings": given}})
    ).keys()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": {"source": "pvc"}}, "set model.claimName"),
        ({"model": {"source": "hostPath"}}, "set model.hostPath"),
        ({"apiKeys": {"existingSecret": "keys"}}, "operator.adminKey.existingSecret"),
        ({"operator": {"elsewhereNamespace": "ops"}}, "exclude each other"),
        (
            {"engine": {"extraEnv": [{"name": "kvreg_lanes", "value": "2"}]}},
            "set engine.settings.lanes",
        ),
        (
            {"engine": {"extraEnv": [{"name": "TZ", "value": zone} for zone in ("UTC", "CET")]}},
            "TZ is set twice",
        ),
    ],
)
def test_contradiction_is_rejected(values: dict[str, Any], message: str) -> None:
    with pytest.raises(HelmError, match=message):
        render(values)


def test_longest_name_is_rendered_and_a_longer_one_rejected() -> None:
    longest = "kvreg-" + "a" * (MAX_TARGET_NAME_LENGTH - len("kvreg-"))
    stateful_set = select(render(release=longest), "StatefulSet")
    assert stateful_set["metadata"]["name"] == longest
    with pytest.raises(HelmError, match=f"which is {MAX_TARGET_NAME_LENGTH + 1} characters"):
        render(release=longest + "a")


@pytest.mark.parametrize("name", OWN_VARIABLES)
def test_variable_of_the_chart_is_rejected(name: str) -> None:
    with pytest.raises(HelmError, match=rf"engine\.extraEnv: {name} is set by the chart"):
        render({"engine": {"extraEnv": [{"name": name, "value": "other"}]}})


@pytest.mark.parametrize("name", OWN_VOLUMES)
def test_volume_of_the_chart_or_the_operator_is_rejected(name: str) -> None:
    with pytest.raises(HelmError, match=rf"engine\.extraVolumes: {name} is "):
        render({"engine": {"extraVolumes": [{"name": name, "emptyDir": {}}]}})


def test_no_other_variable_or_volume_is_the_chart_s() -> None:
    extra = EVERYTHING["engine"]["extraEnv"] + EVERYTHING["engine"]["extraVolumes"]
    rendered = {VOLUME_NAME}
    for case in CASES:
        rendered |= {name for name in variables(case.render()) if not name.startswith("KVREG_")}
        rendered |= {mount["name"] for mount in container(case.render())["volumeMounts"]}
    assert rendered - {part["name"] for part in extra} == {*OWN_VARIABLES, *OWN_VOLUMES}


@pytest.mark.parametrize("path", [MOUNT_PATH, f"{MOUNT_PATH}/"])
def test_mount_path_of_the_profile_is_rejected(path: str) -> None:
    mount = {"name": "scratch", "mountPath": path}
    with pytest.raises(HelmError, match="the operator mounts the profile at"):
        render({"engine": {"extraVolumeMounts": [mount]}})


@pytest.mark.parametrize("release", ["2024", "2kvreg"])
def test_name_that_begins_with_a_digit_is_rejected(release: str) -> None:
    with pytest.raises(HelmError, match="use a release name that begins with a letter"):
        render(release=release)


def test_name_with_a_dot_is_rejected() -> None:
    with pytest.raises(HelmError, match="a release name without one"):
        render(release="kvreg.chat")

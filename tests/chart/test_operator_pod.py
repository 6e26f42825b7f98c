"""The pod of the operator, and its rights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.chart.helm import container, pod_template, render, select, select_all, variables

from kvreg_operator.settings import ENV_PREFIX, Settings, load_settings

RIGHTS = {
    ("kvreg.dev", "kvregistryprofiles"): {"list", "watch"},
    ("kvreg.dev", "kvregistryprofiles/status"): {"patch"},
    ("apps", "statefulsets"): {"get", "list", "watch", "patch"},
    ("", "pods"): {"get", "list", "watch", "delete"},
    ("", "configmaps"): {"list", "create", "patch", "delete"},
    ("", "events"): {"create", "patch"},
    ("batch", "jobs"): {"list", "create", "delete"},
}
KEYS = {"operator": {"adminKey": {"existingSecret": "admin"}}}


def rights_of(role: dict[str, Any]) -> dict[tuple[str, str], set[str]]:
    return {
        (group, resource): set(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def test_operator_is_told_every_setting_and_nothing_else() -> None:
    known = {f"{ENV_PREFIX}{name.upper()}" for name in Settings.model_fields}
    assert variables(render(KEYS), "Deployment").keys() == known


def test_operator_loads_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = render({"operator": {"watchNamespaces": ["chat", "batch"], "resyncSeconds": 7}})
    for name, value in variables(objects, "Deployment").items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    assert settings.namespaces == ("chat", "batch")
    assert (settings.host, settings.resync_s) == ("0.0.0.0", 7)
    ports = {
        port["name"]: port["containerPort"] for port in container(objects, "Deployment")["ports"]
    }
    assert ports == {"liveness": settings.liveness_port, "metrics": settings.metrics_port}


def test_key_is_mounted_where_the_operator_looks() -> None:
    objects = render(KEYS)
    path = Path(variables(objects, "Deployment")[f"{ENV_PREFIX}API_KEY_FILE"])
    (mount,) = (
        mount
        for mount in container(objects, "Deployment")["volumeMounts"]
        if mount["name"] == "admin-key"
    )
    assert path == Path(mount["mountPath"]) / "api-key"


@pytest.mark.parametrize("watched", [[], ["chat", "batch"], ["elsewhere"]])
def test_rights_are_the_least_in_each_watched_namespace(watched: list[str]) -> None:
    objects = render({"operator": {"watchNamespaces": watched}})
    namespaces = watched or ["chat"]
    roles, bindings = select_all(objects, "Role"), select_all(objects, "RoleBinding")
    assert [role["metadata"]["namespace"] for role in roles] == namespaces
    assert [binding["metadata"]["namespace"] for binding in bindings] == namespaces
    assert all(rights_of(role) == RIGHTS for role in roles)
    account = select(objects, "ServiceAccount")["metadata"]
    for role, binding in zip(roles, bindings, strict=True):
        assert binding["roleRef"]["name"] == role["metadata"]["name"]
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": account["name"], "namespace": "chat"}
        ]
    assert pod_template(objects, "Deployment")["spec"]["serviceAccountName"] == account["name"]


def test_nothing_is_granted_in_the_whole_cluster() -> None:
    kinds = {part["kind"] for part in render()}
    assert not kinds & {"ClusterRole", "ClusterRoleBinding"}


def test_operators_never_overlap() -> None:
    spec = select(render(), "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_operator_that_fails_its_probe_is_restarted_within_half_a_minute() -> None:
    probe = container(render(), "Deployment")["livenessProbe"]
    assert probe["httpGet"] == {"path": "/healthz", "port": "liveness"}
    assert probe["periodSeconds"] * probe["failureThreshold"] == 30


def test_release_without_an_operator_brings_nothing_of_it() -> None:
    objects = render({"operator": {"enabled": False}, "monitoring": {"enabled": True}})
    labels = {"app.kubernetes.io/component": "operator"}.items()
    assert [part for part in objects if labels <= part["metadata"].get("labels", {}).items()] == []

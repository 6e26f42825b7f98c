"""Every value has an effect: another one changes the rendering."""

from __future__ import annotations

from typing import Any

import pytest
from tests.chart import values_table
from tests.chart.helm import render, render_notes
from tests.chart.values_table import nest

PVC_LOG = {"requestLog": {"enabled": True, "volume": "pvc"}}
HOST_MODEL: dict[str, Any] = {"model": {"source": "hostPath", "hostPath": "/srv/models"}}
MONITORED = {"monitoring": {"enabled": True}}
KEYS = {
    "apiKeys": {"existingSecret": "keys"},
    "operator": {"adminKey": {"existingSecret": "admin"}},
}

# Other values without which a value has no effect.
CONTEXTS: dict[str, dict[str, Any]] = {
    "model.path": HOST_MODEL,
    "model.claimName": {"model": {"source": "pvc", "claimName": "models"}},
    "model.hostPath": HOST_MODEL,
    "model.source": {"model": {"hostPath": "/srv/models"}},
    "gpu.resourceName": {"gpu": {"count": 1}},
    "apiKeys.existingSecret": KEYS,
    "apiKeys.key": KEYS,
    "operator.adminKey.key": KEYS,
    "operator.elsewhereNamespace": {"operator": {"enabled": False}},
    "requestLog.volume": {"requestLog": {"enabled": True}},
    "requestLog.hostPath": {"requestLog": {"enabled": True, "volume": "hostPath"}},
    "requestLog.size": {"requestLog": {"enabled": True}},
    "requestLog.storageClassName": PVC_LOG,
    "requestLog.retention.whenDeleted": PVC_LOG,
    "requestLog.retention.whenScaled": PVC_LOG,
    "requestLog.salt.existingSecret": PVC_LOG,
    "requestLog.salt.key": {"requestLog": {"enabled": True, "salt": {"existingSecret": "salt"}}},
    "monitoring.kind": MONITORED,
    "monitoring.intervalSeconds": MONITORED,
    "monitoring.labels": MONITORED,
    "monitoring.rules": MONITORED,
    "monitoring.dashboards.enabled": MONITORED,
    "monitoring.dashboards.labels": MONITORED,
    "monitoring.dashboards.annotations": MONITORED,
}

# Other values, where a default rule for them does not apply.
OTHERS: dict[str, Any] = {
    "imagePullSecrets": [{"name": "registry"}],
    "engine.settings": {"eviction": "lru"},
    "engine.extraEnv": [{"name": "TZ", "value": "UTC"}],
    "engine.resources": {"limits": {"memory": "3Gi"}},
    "engine.sharedMemory": "3Gi",
    "engine.affinity": {"nodeAffinity": {}},
    "engine.tolerations": [{"operator": "Exists"}],
    "engine.topologySpreadConstraints": [{"maxSkew": 1}],
    "engine.extraVolumes": [{"name": "scratch", "emptyDir": {}}],
    "engine.extraVolumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    "model.source": "hostPath",
    "model.hostPath": "/srv/others",
    "gpu.resourceName": "amd.com/gpu",
    "apiKeys.key": "keys.json",
    "requestLog.volume": "pvc",
    "requestLog.hostPath": "/srv/logs",
    "requestLog.size": "3Gi",
    "requestLog.retention.whenDeleted": "Delete",
    "requestLog.retention.whenScaled": "Delete",
    "service.type": "NodePort",
    "service.sessionAffinity": "ClientIP",
    "operator.watchNamespaces": ["other"],
    "operator.logLevel": "debug",
    "operator.resources": {"limits": {"memory": "3Gi"}},
    "operator.affinity": {"nodeAffinity": {}},
    "operator.tolerations": [{"operator": "Exists"}],
    "networkPolicy.from": [{"namespaceSelector": {}}],
    "networkPolicy.scrapers": [],
    "networkPolicy.engineEgress": [{"ports": [{"port": 53}]}],
    "monitoring.kind": "ServiceMonitor",
}


def another(value: values_table.Value) -> object:
    if value.path in OTHERS:
        return OTHERS[value.path]
    match value.default:
        case bool():
            return not value.default
        case int():
            return value.default + 1
        case dict():
            return {"example.org/key": "value"}
        case _ if value.path.endswith("digest"):
            return "sha256:" + "1" * 64
        case _ if value.path.endswith("pullPolicy"):
            return "Never"
    return "other"


def merge(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for name, value in over.items():
        both_are_maps = isinstance(value, dict) and isinstance(under.get(name), dict)
        merged[name] = merge(under[name], value) if both_are_maps else value
    return merged


@pytest.mark.parametrize("value", values_table.read_values(), ids=lambda value: value.path)
def test_value_reaches_its_place(value: values_table.Value) -> None:
    context = CONTEXTS.get(value.path, {})
    changed = merge(context, nest(value.path, another(value)))
    assert render(changed) != render(context)


def test_lists_above_name_values_only() -> None:
    known = {value.path for value in values_table.read_values()}
    assert CONTEXTS.keys() | OTHERS.keys() <= known


def test_notes_print_a_profile_of_the_engines_and_what_is_unsafe() -> None:
    notes = render_notes({"engine": {"replicas": 2}, "gpu": {"count": 2}}, release="agents")
    assert "    name: agents-kvreg\n" in notes
    assert "WARNING: there are no API keys" in notes
    assert "serves on the CPU only" in notes
    assert "Use a proxy with session\naffinity" in notes


def test_notes_contain_no_number_of_autoscaled_engines() -> None:
    notes = render_notes({"engine": {"replicas": None}})
    assert "engines scaled by an autoscaler" in notes
    assert "Use a proxy with session\naffinity" in notes


def test_notes_do_not_warn_without_a_reason() -> None:
    assert "WARNING" not in render_notes(KEYS)

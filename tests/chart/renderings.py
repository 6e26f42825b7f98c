"""Renderings of the chart that together cover every kind of object and every branch.

``all_renderings`` is for tests that validate all of them, as with a real API server.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.chart.helm import Object, render

EXAMPLES = ("cpu-demo", "v100-tp2", "two-replicas")


@dataclass(frozen=True)
class Case:
    """Named values: those of an example or the defaults, and overrides."""

    name: str
    example: str | None = None
    values: dict[str, Any] = field(default_factory=dict)

    def render(self) -> list[Object]:
        """Return the objects."""
        return render(self.values, examples=(self.example,) if self.example else ())


EVERYTHING: dict[str, Any] = {
    "imagePullSecrets": [{"name": "registry"}],
    "engine": {
        "replicas": 3,
        "image": {"digest": "sha256:" + "0" * 64},
        "settings": {"eviction": "lru", "max_body_bytes": 67108864, "prefix_reuse": False},
        "extraEnv": [
            {"name": "TZ", "value": "UTC"},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ],
        "nodeSelector": {"pool": "engines"},
        "tolerations": [{"operator": "Exists"}],
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "kvreg"}},
            }
        ],
        "priorityClassName": "system-cluster-critical",
        "podLabels": {"team": "agents"},
        "podAnnotations": {"example.org/owner": "agents"},
        "extraVolumes": [{"name": "scratch", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    },
    "model": {"source": "hostPath", "hostPath": "/srv/models", "path": "small"},
    "apiKeys": {"existingSecret": "keys", "key": "keys.json"},
    "requestLog": {
        "enabled": True,
        "volume": "pvc",
        "storageClassName": "fast",
        "retention": {"whenDeleted": "Delete"},
        "salt": {"existingSecret": "salt"},
    },
    "service": {"type": "NodePort", "annotations": {"example.org/owner": "agents"}},
    "operator": {
        "watchNamespaces": ["chat", "batch"],
        "adminKey": {"existingSecret": "admin"},
        "nodeSelector": {"pool": "small"},
        "affinity": {"podAntiAffinity": {}},
        "tolerations": [{"operator": "Exists"}],
        "podLabels": {"team": "agents"},
        "podAnnotations": {"example.org/owner": "agents"},
    },
    "networkPolicy": {"engineEgress": [{"ports": [{"port": 53, "protocol": "UDP"}]}]},
    "monitoring": {
        "enabled": True,
        "kind": "ServiceMonitor",
        "labels": {"release": "prometheus"},
        "dashboards": {"annotations": {"grafana_folder": "kvreg"}},
    },
}

CASES = (
    Case("defaults"),
    *(Case(name, example=name) for name in EXAMPLES),
    Case("everything", values=EVERYTHING),
    Case(
        "without-operator",
        values={
            "operator": {"enabled": False},
            "crd": {"install": False},
            "engine": {
                "replicas": None,
                "settings": {"lanes": 2, "entries": 4, "current_state": "drop"},
            },
            "podDisruptionBudget": {"enabled": False},
            "networkPolicy": {"enabled": False},
            "service": {"type": "LoadBalancer", "sessionAffinity": "ClientIP"},
        },
    ),
    Case(
        "operator-elsewhere",
        values={
            "operator": {"enabled": False, "elsewhereNamespace": "kvreg-system"},
            "crd": {"install": False},
            "requestLog": {"enabled": True},
            "networkPolicy": {"from": [], "scrapers": []},
            "engine": {"preStopSeconds": 0, "replicas": 0},
        },
    ),
)


def all_renderings() -> Iterator[tuple[str, list[Object]]]:
    """Yield the name and the objects of every case, in the namespace "chat".

    The objects refer to what the chart does not bring (Secrets, a claim, a RuntimeClass, a
    namespace "batch"); some have kinds of the Prometheus Operator.
    """
    for case in CASES:
        yield case.name, case.render()

"""The objects that the operator writes, as whole dictionaries."""

from __future__ import annotations

import json

from tests.operator.objects import TARGET, make_profile

from kvreg_operator.manifests.config_map import build_config_map
from kvreg_operator.manifests.desired_state import render_settings
from kvreg_operator.manifests.stateful_set import build_strategy_patch, build_template_patch

PROFILE = make_profile("small", lanes=2, registryEntries=4, currentState="Drop", anchors=1)
DOCUMENT = render_settings(PROFILE)


def test_config_map_is_immutable_and_belongs_to_the_target() -> None:
    manifest = build_config_map(
        namespace="serving", target_name=TARGET, target_uid="uid", document=DOCUMENT
    )
    assert json.loads(manifest["data"].pop("settings.json")) == {
        "anchors": 1,
        "current_state": "drop",
        "entries": 4,
        "lanes": 2,
        "profile": "small",
    }
    assert manifest == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"chat-profile-{DOCUMENT.hash}",
            "namespace": "serving",
            "labels": {
                "app.kubernetes.io/managed-by": "kvreg-operator",
                "kvreg.dev/target": "chat",
            },
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "chat", "uid": "uid"}
            ],
        },
        "immutable": True,
        "data": {},
    }


def test_template_patch_names_the_operator_s_fields_only() -> None:
    patch = build_template_patch(
        namespace="serving", target_name=TARGET, container="engine", settings_hash="abc"
    )
    assert patch == {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "chat", "namespace": "serving"},
        "spec": {
            "template": {
                "metadata": {"annotations": {"kvreg.dev/settings-hash": "abc"}},
                "spec": {
                    "containers": [
                        {
                            "name": "engine",
                            "env": [
                                {
                                    "name": "KVREG_CONFIG_FILE",
                                    "value": "/etc/kvreg/profile/settings.json",
                                }
                            ],
                            "volumeMounts": [
                                {
                                    "name": "kvreg-profile",
                                    "mountPath": "/etc/kvreg/profile",
                                    "readOnly": True,
                                }
                            ],
                        }
                    ],
                    "volumes": [
                        {"name": "kvreg-profile", "configMap": {"name": "chat-profile-abc"}}
                    ],
                },
            }
        },
    }


def test_strategy_patch_removes_what_an_earlier_strategy_left() -> None:
    assert build_strategy_patch() == {
        "spec": {"updateStrategy": {"type": "OnDelete", "rollingUpdate": None}}
    }

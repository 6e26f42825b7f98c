"""The objects that are written to the cluster, as plain dictionaries.

Owns names, labels, paths and which fields of the target belong to the operator. When they are
written is decided in ``rollout``; nothing here talks to a cluster.
"""

from __future__ import annotations

from typing import Any

from kvreg_operator.crd.profile import TargetRef
from kvreg_operator.manifests.settings_document import SettingsDocument

FIELD_MANAGER = "kvreg-operator"
SETTINGS_HASH_ANNOTATION = "kvreg.dev/settings-hash"
TARGET_LABEL = "kvreg.dev/target"
MANAGER_LABEL = "app.kubernetes.io/managed-by"

SETTINGS_FILE = "settings.json"
MOUNT_PATH = "/etc/kvreg/profile"
CONFIG_FILE_VARIABLE = "KVREG_CONFIG_FILE"
VOLUME_NAME = "kvreg-profile"

Manifest = dict[str, Any]


def config_map_name(target_name: str, settings_hash: str) -> str:
    """Return the name of the ConfigMap that holds the settings of that hash."""
    return f"{target_name}-profile-{settings_hash}"


def build_ownership(target_name: str, target_uid: str) -> Manifest:
    """Build the metadata of what is made for a target: found by its labels, and gone with it."""
    return {
        "labels": {MANAGER_LABEL: FIELD_MANAGER, TARGET_LABEL: target_name},
        "ownerReferences": [
            {
                "apiVersion": "apps/v1",
                "kind": "StatefulSet",
                "name": target_name,
                "uid": target_uid,
            }
        ],
    }


def build_config_map(
    *, namespace: str, target_name: str, target_uid: str, document: SettingsDocument
) -> Manifest:
    """Build the ConfigMap of one document.

    It belongs to the StatefulSet and not to the profile: pods that are created after the profile
    is gone still have to mount it.
    """
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": config_map_name(target_name, document.hash),
            "namespace": namespace,
            **build_ownership(target_name, target_uid),
        },
        "immutable": True,
        "data": {SETTINGS_FILE: document.text},
    }


def build_template_patch(*, namespace: str, target: TargetRef, settings_hash: str) -> Manifest:
    """Build what is applied, server-side, to the target: the fields that the operator owns.

    Replicas, image, resources and everything else of the StatefulSet stay whose they are.
    """
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": target.name, "namespace": namespace},
        "spec": {
            "template": {
                "metadata": {"annotations": {SETTINGS_HASH_ANNOTATION: settings_hash}},
                "spec": {
                    "containers": [
                        {
                            "name": target.container,
                            "env": [
                                {
                                    "name": CONFIG_FILE_VARIABLE,
                                    "value": f"{MOUNT_PATH}/{SETTINGS_FILE}",
                                }
                            ],
                            "volumeMounts": [
                                {"name": VOLUME_NAME, "mountPath": MOUNT_PATH, "readOnly": True}
                            ],
                        }
                    ],
                    "volumes": [
                        {
                            "name": VOLUME_NAME,
                            "configMap": {"name": config_map_name(target.name, settings_hash)},
                        }
                    ],
                },
            }
        },
    }


def build_strategy_patch() -> Manifest:
    """Build the merge patch that leaves the replacing of pods to the operator.

    An apply cannot remove the ``rollingUpdate`` that somebody else wrote, and the API server
    refuses one that is left beside ``OnDelete``; null in a merge patch removes it.
    """
    return {"spec": {"updateStrategy": {"type": "OnDelete", "rollingUpdate": None}}}

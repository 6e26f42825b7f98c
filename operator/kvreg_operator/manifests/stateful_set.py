"""The fields of the target StatefulSet that the operator owns.

Owns the annotation, the volume, the mount and the variable by which a pod template carries the
settings of a profile. Replicas, image, resources and all other fields keep their owners.
"""

from __future__ import annotations

from kvreg_operator.manifests.config_map import SETTINGS_FILE, config_map_name
from kvreg_operator.manifests.ownership import Manifest

SETTINGS_HASH_ANNOTATION = "kvreg.dev/settings-hash"
MOUNT_PATH = "/etc/kvreg/profile"
CONFIG_FILE_VARIABLE = "KVREG_CONFIG_FILE"
VOLUME_NAME = "kvreg-profile"


def build_template_patch(
    *, namespace: str, target_name: str, container: str, settings_hash: str
) -> Manifest:
    """Build the patch of the pod template, for a server-side apply."""
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": target_name, "namespace": namespace},
        "spec": {
            "template": {
                "metadata": {"annotations": {SETTINGS_HASH_ANNOTATION: settings_hash}},
                "spec": {
                    "containers": [
                        {
                            "name": container,
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
                            "configMap": {"name": config_map_name(target_name, settings_hash)},
                        }
                    ],
                },
            }
        },
    }


def build_strategy_patch() -> Manifest:
    """Build the merge patch that sets ``updateStrategy`` to ``OnDelete``.

    A server-side apply cannot remove a ``rollingUpdate`` block that another manager wrote, and the
    API server refuses that block beside ``OnDelete``. Null in a merge patch removes it.
    """
    return {"spec": {"updateStrategy": {"type": "OnDelete", "rollingUpdate": None}}}

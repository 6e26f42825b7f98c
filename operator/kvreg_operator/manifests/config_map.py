"""The ConfigMap that carries the settings of a profile into the pods."""

from __future__ import annotations

from kvreg_operator.manifests.ownership import Manifest, build_ownership
from kvreg_operator.manifests.settings_document import SettingsDocument

SETTINGS_FILE = "settings.json"


def config_map_name(target_name: str, settings_hash: str) -> str:
    """Return the name of the ConfigMap that holds the settings with that hash."""
    return f"{target_name}-profile-{settings_hash}"


def build_config_map(
    *, namespace: str, target_name: str, target_uid: str, document: SettingsDocument
) -> Manifest:
    """Build the immutable ConfigMap of one document.

    Its owner is the StatefulSet and not the profile: pods that are created after the profile was
    deleted still have to mount it.
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

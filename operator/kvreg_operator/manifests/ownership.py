"""How the operator marks the objects that it creates for a target.

Owns the labels that find them, and the owner reference that has them deleted with the target.
"""

from __future__ import annotations

from typing import Any

from kvreg_operator.crd.profile import FIELD_MANAGER, TARGET_LABEL

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"

Manifest = dict[str, Any]


def build_ownership(target_name: str, target_uid: str) -> Manifest:
    """Build the metadata that all objects of one target share."""
    return {
        "labels": {MANAGED_BY_LABEL: FIELD_MANAGER, TARGET_LABEL: target_name},
        "ownerReferences": [
            {
                "apiVersion": "apps/v1",
                "kind": "StatefulSet",
                "name": target_name,
                "uid": target_uid,
            }
        ],
    }

"""Which target an object of a watch concerns."""

from __future__ import annotations

from typing import Any

from kvreg_operator.crd.profile import find_target_name
from kvreg_operator.reconcile.metrics import WatchKind
from kvreg_operator.reconcile.target_queue import TargetKey


def find_target(kind: WatchKind, manifest: Any) -> TargetKey | None:
    """Return the target that an object is, names or belongs to; None for other objects."""
    metadata = manifest["metadata"]
    match kind:
        case "KVRegistryProfile":
            name = find_target_name(manifest)
        case "StatefulSet":
            name = metadata["name"]
        case "Pod":
            owners = metadata.get("ownerReferences") or []
            name = next(
                (
                    owner["name"]
                    for owner in owners
                    if owner.get("controller") and owner["kind"] == "StatefulSet"
                ),
                None,
            )
    return None if name is None else TargetKey(metadata["namespace"], name)

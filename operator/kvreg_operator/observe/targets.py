"""Which target an object is about: the key under which looks are queued and made.

Owns the key, and how it is read from an object that a watch told. Two profiles of one target share
a key, so that they are never carried out side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

WatchKind = Literal["KVRegistryProfile", "StatefulSet", "Pod"]


@dataclass(frozen=True, order=True)
class TargetKey:
    """One StatefulSet, whether it exists or not."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def find_target(kind: WatchKind, manifest: Any) -> TargetKey | None:
    """Return the target that an object is, names, or belongs to; None for what is no concern."""
    metadata = manifest["metadata"]
    match kind:
        case "KVRegistryProfile":
            # A newer definition may have another shape.
            spec = manifest.get("spec")
            ref = spec.get("targetRef") if isinstance(spec, dict) else None
            name = ref.get("name") if isinstance(ref, dict) else None
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
    namespace = metadata["namespace"]
    if not isinstance(name, str) or not isinstance(namespace, str):
        return None
    return TargetKey(namespace, name)

"""The sink of the events of the watches and of the lists of the resync.

Owns which target an object concerns. An event only queues its target: the reconcile
reads everything itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from kvreg_operator.crd.profile import find_target_name
from kvreg_operator.reconcile.metrics import OperatorMetrics, WatchKind
from kvreg_operator.reconcile.target_queue import TargetKey, TargetQueue

TakeEvent = Callable[[WatchKind, Any], None]


@dataclass(frozen=True)
class EventSink:
    """Queues the targets of what was watched or listed, and updates the metrics."""

    queue: TargetQueue
    metrics: OperatorMetrics

    def take_event(self, kind: WatchKind, manifest: Mapping[str, Any]) -> None:
        """Queue the target of a watch event."""
        self.metrics.note_seen(kind)
        if (target := find_target(kind, manifest)) is not None:
            self.queue.wake(target)

    def take_resync(self) -> None:
        """Note that all watched kinds of a namespace were listed."""
        for kind in get_args(WatchKind):
            self.metrics.note_seen(kind)

    def wake(self, namespace: str, name: str) -> None:
        """Queue a target."""
        self.queue.wake(TargetKey(namespace, name))


def find_target(kind: WatchKind, manifest: Mapping[str, Any]) -> TargetKey | None:
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

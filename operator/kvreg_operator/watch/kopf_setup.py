"""What Kopf is told to watch: its handlers note what was told and wake the targets concerned.

Owns which kinds are watched and how Kopf is set up: it reads, and writes nothing at all. No handler
of it detects changes, and there are no timers and no daemons, so it needs neither finalizers nor
annotations to remember anything by.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import kopf

from kvreg_operator.crd.profile import GROUP, PLURAL, VERSION
from kvreg_operator.reconcile.metrics import OperatorMetrics, WatchKind
from kvreg_operator.reconcile.target_queue import TargetQueue
from kvreg_operator.watch.hearing import Hearing, WatchedObject
from kvreg_operator.watch.targets import find_target


@dataclass(frozen=True)
class Ears:
    """Where an event goes."""

    hearing: Hearing
    queue: TargetQueue
    metrics: OperatorMetrics

    def hear(self, kind: WatchKind, event: Any) -> None:
        """Note an event of the watch of ``kind``, and wake the target that it is about."""
        manifest = event["object"]
        metadata = manifest["metadata"]
        it = WatchedObject(kind, metadata["namespace"], metadata["uid"])
        if event["type"] == "DELETED":
            self.hearing.told_gone(it)
        else:
            # Kopf gives what it lists no type.
            version, by_listing = metadata["resourceVersion"], event["type"] is None
            self.hearing.told(it, version, by_listing=by_listing)
        self.metrics.heard(kind)
        if (target := find_target(kind, manifest)) is not None:
            self.queue.wake(target)


Hear = Callable[[WatchKind, Any], None]
Login = Callable[..., Awaitable[kopf.ConnectionInfo | None]]


def build_registry(hear: Hear, login: Login = kopf.login_via_async_client) -> kopf.OperatorRegistry:
    """Build the handlers: one for each watched kind, and the login.

    ``hear`` gets each event, and may hand it to another thread. ``login`` is also called when the
    API server takes the credentials no more, as of a token that was rotated. By default it finds
    what the client that writes has found.
    """
    registry = kopf.OperatorRegistry()

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def profile(event: kopf.RawEvent, **_: Any) -> None:
        hear("KVRegistryProfile", event)

    @kopf.on.event("apps", "v1", "statefulsets", registry=registry)
    async def stateful_set(event: kopf.RawEvent, **_: Any) -> None:
        hear("StatefulSet", event)

    @kopf.on.event("", "v1", "pods", registry=registry)
    async def pod(event: kopf.RawEvent, **_: Any) -> None:
        hear("Pod", event)

    @kopf.on.login(id="login", registry=registry)
    async def log_in(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return await login(**kwargs)

    return registry


def build_kopf_settings() -> kopf.OperatorSettings:
    """Set Kopf up for a Role in each namespace, and to touch nothing of anybody's."""
    settings = kopf.OperatorSettings()
    # It would list and watch namespaces and definitions, for which a Role gives no right.
    settings.scanning.disabled = True
    # It would look for other operators of its kind.
    settings.peering.standalone = True
    # Events are the recorder's.
    settings.posting.enabled = False
    # Kopf takes its own finalizer off whatever it watches without needing one, also where another
    # operator set it, and parses its own annotations. Under these names it recognises none.
    settings.persistence.finalizer = f"{GROUP}/never-set"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=GROUP)
    # A watch that is refused or answered with 500 ends Kopf after these, some 15 s; the
    # default is a minute. A lost connection is tried again for ever.
    settings.networking.error_backoffs = (1, 2, 4, 8)
    settings.networking.connect_timeout = 10
    settings.networking.request_timeout = 30
    # Nothing is worked off at the end: a new process sees everything again.
    settings.queueing.exit_timeout = 0.5
    # The kubelet kills what does not end.
    settings.process.ultimate_exiting_timeout = None
    return settings

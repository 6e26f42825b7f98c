"""How Kopf is set up: it watches, and writes nothing.

Owns the handlers and the settings. No handler detects changes, and there are no timers and no
daemons, so Kopf needs neither finalizers nor annotations.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import kopf

from kvreg_operator.crd.profile import GROUP, PLURAL, VERSION
from kvreg_operator.watch.event_sink import TakeEvent

Login = Callable[..., Awaitable[kopf.ConnectionInfo | None]]


def build_registry(
    take_event: TakeEvent, login: Login = kopf.login_via_async_client
) -> kopf.OperatorRegistry:
    """Build the handlers: one for each watched kind, and the login.

    ``take_event`` gets the object of each event, and may hand it to another thread. Kopf also calls
    ``login`` when the API server rejects the credentials, as after a token was rotated. By default
    it uses the configuration of kubernetes-asyncio.
    """
    registry = kopf.OperatorRegistry()

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def profile(event: kopf.RawEvent, **_: Any) -> None:
        take_event("KVRegistryProfile", event["object"])

    @kopf.on.event("apps", "v1", "statefulsets", registry=registry)
    async def stateful_set(event: kopf.RawEvent, **_: Any) -> None:
        take_event("StatefulSet", event["object"])

    @kopf.on.event("", "v1", "pods", registry=registry)
    async def pod(event: kopf.RawEvent, **_: Any) -> None:
        take_event("Pod", event["object"])

    @kopf.on.login(id="login", registry=registry)
    async def log_in(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return await login(**kwargs)

    return registry


def build_kopf_settings() -> kopf.OperatorSettings:
    """Set Kopf up for a Role in each namespace, and to write to no object."""
    settings = kopf.OperatorSettings()
    # It would list and watch namespaces and definitions, for which a Role grants no right.
    settings.scanning.disabled = True
    # It would look for other operators that use Kopf.
    settings.peering.standalone = True
    # The event recorder writes the events.
    settings.posting.enabled = False
    # Kopf removes its own finalizer from what it watches without needing one, also where another
    # operator set it, and parses its own annotations. Under these names it recognises none.
    settings.persistence.finalizer = f"{GROUP}/never-set"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=GROUP)
    # A watch that is answered with 403, 404 or 500 ends Kopf after these retries, some 15 s; the
    # default is a minute. A lost connection is retried for ever.
    settings.networking.error_backoffs = (1, 2, 4, 8)
    settings.networking.connect_timeout = 10
    settings.networking.request_timeout = 30
    # A watch without an event or a bookmark for this time is made anew. The API server sends a
    # bookmark each minute.
    settings.watching.inactivity_timeout = 70
    # No events are worked off at the end: a new process sees all objects again.
    settings.queueing.exit_timeout = 0.5
    # The kubelet kills a process that does not end.
    settings.process.ultimate_exiting_timeout = None
    return settings

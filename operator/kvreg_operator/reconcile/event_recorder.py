"""Kubernetes Events about profiles: what a person reads in ``kubectl describe``.

Owns that nobody is flooded: the same sentence about the same profile raises a count, and, unless it
tells of something that was done, that at most once in a while. An event that cannot be written is
lost, with a line in the log.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from kvreg_operator.clients.api_server import EVENTS, ClusterApi
from kvreg_operator.clients.errors import OperatorError
from kvreg_operator.crd.profile import (
    GROUP,
    KIND,
    VERSION,
    Metadata,
    as_kubernetes_time,
    moment_of,
)
from kvreg_operator.manifests.rendering import FIELD_MANAGER, Manifest
from kvreg_operator.plan.planning import Event

REPEAT_AFTER_S = 600.0
# The API server keeps events for an hour.
FORGET_AFTER_S = 3600.0
# The API server refuses longer ones.
MAX_MESSAGE_LENGTH = 1024

_logger = logging.getLogger(__name__)


@dataclass
class _Told:
    name: str
    first_s: float
    last_s: float
    count: int


class EventRecorder:
    """Writes events. ``clock`` returns seconds since the epoch, ``instance`` names this process."""

    def __init__(self, api: ClusterApi, clock: Callable[[], float], instance: str) -> None:
        self._api = api
        self._clock = clock
        self._instance = instance
        self._told: dict[tuple[str, Event], _Told] = {}

    async def record(self, about: Metadata, event: Event, *, was_done: bool = False) -> None:
        """Tell an event of a profile; unless ``was_done``, once within ``REPEAT_AFTER_S``."""
        now_s = self._clock()
        self._told = {k: t for k, t in self._told.items() if now_s - t.first_s < FORGET_AFTER_S}
        key = (about.uid, event)
        told = self._told.get(key)
        if not was_done and told is not None and now_s - told.last_s < REPEAT_AFTER_S:
            return
        _logger.info(
            event.message,
            extra={"fields": {"profile": _name_of(about), "reason": event.reason}},
        )
        try:
            if told is None or not await self._raise_count(about, told, now_s):
                told = _Told(f"{about.name}.{uuid.uuid4().hex[:16]}", now_s, now_s, 1)
                manifest = build_event(about, event, told.name, now_s, self._instance)
                await self._api.ensure_created(EVENTS, manifest)
        except OperatorError as err:
            _logger.warning("an event of %s is lost: %s", _name_of(about), err)
        else:
            self._told[key] = told

    async def _raise_count(self, about: Metadata, told: _Told, now_s: float) -> bool:
        patch = {"count": told.count + 1, "lastTimestamp": as_kubernetes_time(moment_of(now_s))}
        patched = await self._api.merge_patch(EVENTS, about.namespace, told.name, patch)
        told.last_s, told.count = now_s, told.count + 1
        return patched is not None


def build_event(about: Metadata, event: Event, name: str, now_s: float, instance: str) -> Manifest:
    """Build an event about a profile that is told for the first time."""
    moment = as_kubernetes_time(moment_of(now_s))
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": about.namespace},
        "involvedObject": {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "name": about.name,
            "namespace": about.namespace,
            "uid": about.uid,
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:MAX_MESSAGE_LENGTH],
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "reportingInstance": instance,
    }


def _name_of(about: Metadata) -> str:
    return f"{about.namespace}/{about.name}"

"""Kubernetes Events about profiles.

Owns their rate: the same event of the same profile raises a count, and, unless it reports an
action, at most once in ``REPEAT_AFTER_S``. An event that cannot be written is lost, with a line in
the log.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from kvreg_operator.clients.api_server import EVENTS, ClusterApi, Manifest
from kvreg_operator.clients.errors import OperatorError
from kvreg_operator.crd.profile import (
    FIELD_MANAGER,
    GROUP,
    KIND,
    VERSION,
    Metadata,
    as_kubernetes_time,
    moment_of,
)
from kvreg_operator.plan.actions import Event

REPEAT_AFTER_S = 600.0
# The API server keeps events for an hour.
FORGET_AFTER_S = 3600.0
# The API server refuses longer ones.
MAX_MESSAGE_LENGTH = 1024

_logger = logging.getLogger(__name__)


@dataclass
class _Recorded:
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
        self._recorded: dict[tuple[str, Event], _Recorded] = {}

    async def record(self, about: Metadata, event: Event, *, was_done: bool = False) -> None:
        """Record an event; unless ``was_done``, the same one once within ``REPEAT_AFTER_S``."""
        now_s = self._clock()
        self._recorded = {
            key: each
            for key, each in self._recorded.items()
            if now_s - each.first_s < FORGET_AFTER_S
        }
        key = (about.uid, event)
        known = self._recorded.get(key)
        if not was_done and known is not None and now_s - known.last_s < REPEAT_AFTER_S:
            return
        _logger.info(
            event.message,
            extra={"profile": _name_of(about), "reason": event.reason},
        )
        try:
            if known is None or not await self._raise_count(about, known, now_s):
                known = _Recorded(f"{about.name}.{uuid.uuid4().hex[:16]}", now_s, now_s, 1)
                manifest = build_event(about, event, known.name, now_s, self._instance)
                await self._api.ensure_created(EVENTS, manifest)
        except OperatorError as err:
            _logger.warning("an event of %s is lost: %s", _name_of(about), err)
        else:
            self._recorded[key] = known

    async def warn(self, about: Metadata, reason: str, message: str) -> None:
        """Record a warning, once within ``REPEAT_AFTER_S``."""
        await self.record(about, Event("Warning", reason, message))

    async def _raise_count(self, about: Metadata, known: _Recorded, now_s: float) -> bool:
        patch = {"count": known.count + 1, "lastTimestamp": as_kubernetes_time(moment_of(now_s))}
        patched = await self._api.merge_patch(EVENTS, about.namespace, known.name, patch)
        known.last_s, known.count = now_s, known.count + 1
        return patched is not None


def build_event(about: Metadata, event: Event, name: str, now_s: float, instance: str) -> Manifest:
    """Build the first event of its kind about a profile."""
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

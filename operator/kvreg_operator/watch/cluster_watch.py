"""The watches and the resync of each namespace, and one probe."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from kvreg_operator.clients.api_server import ClusterApi
from kvreg_operator.watch.event_sink import EventSink
from kvreg_operator.watch.kopf_watches import KopfWatches
from kvreg_operator.watch.lists import Lists
from kvreg_operator.watch.liveness import Liveness, serve_probe
from kvreg_operator.watch.resync import Resync, choose_intervals


class ClusterWatch:
    """Watches namespaces. ``probe_address`` is the host and the port of the probe."""

    def __init__(
        self,
        api: ClusterApi,
        namespaces: Sequence[str],
        sink: EventSink,
        *,
        resync_s: float,
        liveness_limit_s: float,
        probe_address: tuple[str, int],
    ) -> None:
        self._lists = Lists(api)
        self._namespaces = namespaces
        self._sink = sink
        self._intervals = choose_intervals(resync_s, liveness_limit_s)
        self._liveness_limit_s = liveness_limit_s
        self._probe_address = probe_address

    async def run(self) -> None:
        """Watch for ever, once the CRD is served.

        Raises:
            OperatorError: At the start the CRD is not served, or no namespace can be listed.
        """
        await self._lists.wait_for_crd(self._namespaces)
        liveness = Liveness(time.monotonic, limit_s=self._liveness_limit_s)
        async with serve_probe(liveness, *self._probe_address), asyncio.TaskGroup() as tasks:
            for namespace in self._namespaces:
                watches = KopfWatches(self._lists, namespace, self._sink)
                resync = Resync(
                    self._lists, namespace, self._sink, liveness, time.monotonic, self._intervals
                )
                tasks.create_task(watches.run())
                tasks.create_task(resync.run())

"""The program: reads the settings, connects, and runs the workers beside what wakes them.

Owns the order of the start and of the end.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager

import httpx
from prometheus_client import CollectorRegistry, start_http_server

from kvreg_operator.clients.api_server import connect_to_cluster
from kvreg_operator.clients.errors import OperatorError
from kvreg_operator.json_log import install_json_log
from kvreg_operator.reconcile.build import build_workers
from kvreg_operator.settings import InvalidSettings, Settings, load_settings
from kvreg_operator.watch.cluster_watch import ClusterWatch
from kvreg_operator.watch.event_sink import EventSink

STATUS_FAILED = 1
STATUS_INVALID = 2

# Not __name__, which is __main__ or not, depending on how the program was started.
_logger = logging.getLogger("kvreg_operator")


def main() -> None:
    """Run the operator until a signal ends it."""
    try:
        settings = load_settings()
    except InvalidSettings as err:
        sys.stderr.write(f"kvreg-operator: {err}\n")
        sys.exit(STATUS_INVALID)
    install_json_log(settings.log_level)
    sys.exit(asyncio.run(run(settings)))


async def run(settings: Settings) -> int:
    """Run the operator until a signal; return the exit status."""
    stop = asyncio.Event()
    # The first process of a container has no default for a signal.
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    registry = CollectorRegistry()
    try:
        with _serve_metrics(registry, settings):
            async with (
                connect_to_cluster() as api,
                # Engines are inside the cluster; a proxy in the environment leads out of it.
                httpx.AsyncClient(trust_env=False) as http,
            ):
                workers = build_workers(api, http, registry, api_key_file=settings.api_key_file)
                watch = ClusterWatch(
                    api,
                    settings.namespaces,
                    EventSink(workers.queue, workers.metrics),
                    resync_s=settings.resync_s,
                    liveness_limit_s=settings.deaf_after_s,
                    probe_address=(settings.host, settings.liveness_port),
                )
                await _run_until_one_ends(stop.wait(), watch.run(), workers.run())
    except OperatorError as err:
        _logger.critical("the operator ends: %s", err)
        return STATUS_FAILED
    except Exception:
        _logger.critical("the operator ends", exc_info=True)
        return STATUS_FAILED
    _logger.info("the operator ends on a signal")
    return 0


async def _run_until_one_ends(*parts: Coroutine[object, object, object]) -> None:
    """Run the parts concurrently; when one ends, cancel the others, and raise what went wrong."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    for end in ends:
        if isinstance(end, Exception):
            raise end


@contextmanager
def _serve_metrics(registry: CollectorRegistry, settings: Settings) -> Iterator[None]:
    server, thread = start_http_server(settings.metrics_port, addr=settings.host, registry=registry)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


if __name__ == "__main__":
    main()

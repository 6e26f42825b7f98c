"""The program: builds every part and hands it to the next. The one place that does so.

Owns the order of a start and of an end. What a part does is written in the part.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager

import httpx
from kubernetes_asyncio.client.api_client import ApiClient
from prometheus_client import CollectorRegistry, start_http_server

from kvreg_operator.clients.api_server import (
    PROFILES,
    ClusterApi,
    load_cluster_configuration,
)
from kvreg_operator.clients.errors import NotServed, OperatorError, PermanentError
from kvreg_operator.crd.profile import FIELD_MANAGER, GROUP, PLURAL
from kvreg_operator.log_format import install_json_log
from kvreg_operator.reconcile.build import build_workers
from kvreg_operator.reconcile.metrics import OperatorMetrics
from kvreg_operator.reconcile.workers import NUM_WORKERS
from kvreg_operator.settings import InvalidSettings, Settings, load_settings
from kvreg_operator.watch.handlers import Ears
from kvreg_operator.watch.hearing import Hearing
from kvreg_operator.watch.probe import serve_probe
from kvreg_operator.watch.resync import Resync
from kvreg_operator.watch.watches import Watches

STATUS_FAILED = 1
STATUS_INVALID = 2
# A definition that is installed beside the operator is served within this.
DEFINITION_TIMEOUT_S = 20.0
# Missed rounds of lists until the operator is taken for cut off.
ROUNDS_UNTIL_SILENT = 4

# Not the name of the module, which is __main__ or not by the way it was started.
_logger = logging.getLogger("kvreg_operator")


def main() -> None:
    """Carry out profiles until a signal ends it."""
    try:
        settings = load_settings()
    except InvalidSettings as err:
        sys.stderr.write(f"kvreg-operator: {err}\n")
        sys.exit(STATUS_INVALID)
    install_json_log(settings.log_level)
    sys.exit(asyncio.run(run(settings)))


async def run(settings: Settings) -> int:
    """Carry out profiles until a signal; return the exit status."""
    stop = asyncio.Event()
    # The first process of a container has no default for a signal.
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    registry = CollectorRegistry()
    metrics = OperatorMetrics(registry, time.monotonic)
    try:
        configuration = await load_cluster_configuration()
        with _serve_metrics(registry, settings):
            async with (
                ApiClient(configuration) as client,
                # A proxy of the environment leads out of the cluster, and engines are inside.
                httpx.AsyncClient(trust_env=False) as http,
            ):
                client.user_agent = FIELD_MANAGER
                await _run_parts(settings, ClusterApi(client), http, metrics, stop)
    except OperatorError as err:
        _logger.critical("the operator ends: %s", err)
        return STATUS_FAILED
    except Exception:
        # As a watch that was refused for too long: a new process may be let in again.
        _logger.critical("the operator ends", exc_info=True)
        return STATUS_FAILED
    _logger.info("the operator ends as asked")
    return 0


async def _run_parts(
    settings: Settings,
    api: ClusterApi,
    http: httpx.AsyncClient,
    metrics: OperatorMetrics,
    stop: asyncio.Event,
) -> None:
    await _await_definition(api, settings.namespaces, stop)
    if stop.is_set():
        return
    workers = build_workers(api, http, metrics, api_key_file=settings.api_key_file)
    queue = workers.queue
    silent_after_s = max(ROUNDS_UNTIL_SILENT * settings.resync_s, settings.deaf_after_s)
    hearing = Hearing(
        time.monotonic, deaf_after_s=settings.deaf_after_s, silent_after_s=silent_after_s
    )
    resync = Resync(
        api,
        settings.namespaces,
        hearing,
        queue,
        metrics,
        time.monotonic,
        resync_s=settings.resync_s,
        deaf_after_s=settings.deaf_after_s,
    )
    watches = Watches(api, settings.namespaces, Ears(hearing, queue, metrics))
    async with serve_probe(hearing, settings.host, settings.liveness_port):
        await _run_until_one_ends(
            stop.wait(),
            resync.run(),
            *(workers.work() for _ in range(NUM_WORKERS)),
            *(watches.watch(namespace) for namespace in settings.namespaces),
        )


async def _run_until_one_ends(*parts: Coroutine[object, object, object]) -> None:
    """Run the parts side by side; when one ends, end the others, and raise what went wrong."""
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


async def _await_definition(
    api: ClusterApi, namespaces: Sequence[str], stop: asyncio.Event
) -> None:
    """Wait until profiles can be listed anywhere: Kopf looks for the kinds once, at its start."""
    deadline_s = time.monotonic() + DEFINITION_TIMEOUT_S
    while not stop.is_set():
        failures: list[OperatorError] = []
        for namespace in namespaces:
            try:
                await api.list_versions(PROFILES, namespace)
            except OperatorError as err:
                failures.append(err)
            else:
                return
        if all(map(_is_for_good, failures)) or time.monotonic() > deadline_s:
            if isinstance(failures[-1], NotServed):
                raise PermanentError(f"the definition {PLURAL}.{GROUP} is not installed")
            raise failures[-1]
        await asyncio.sleep(1.0)


def _is_for_good(err: OperatorError) -> bool:
    return isinstance(err, PermanentError) and not isinstance(err, NotServed)


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

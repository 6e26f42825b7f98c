"""The composition of the workers, from the clients of the cluster and of the engines."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import httpx
from prometheus_client import CollectorRegistry

from kvreg_operator.clients.api_server import ClusterApi
from kvreg_operator.observe.engines import Engines
from kvreg_operator.observe.observer import Observer
from kvreg_operator.reconcile.event_recorder import EventRecorder
from kvreg_operator.reconcile.execution import Executor
from kvreg_operator.reconcile.metrics import OperatorMetrics
from kvreg_operator.reconcile.reconciler import Reconciler
from kvreg_operator.reconcile.target_queue import TargetQueue
from kvreg_operator.reconcile.workers import Workers


def build_workers(
    api: ClusterApi,
    http: httpx.AsyncClient,
    registry: CollectorRegistry,
    *,
    api_key_file: Path | None,
) -> Workers:
    """Build the workers, with a queue and metrics of their own."""
    metrics = OperatorMetrics(registry, time.monotonic)
    recorder = EventRecorder(api, time.time, socket.gethostname())
    engines = Engines(http, api_key_file)
    observer = Observer(api, engines, recorder.warn)
    executor = Executor(api, engines.drain, recorder)
    reconciler = Reconciler(observer, executor, metrics, time.time)
    return Workers(TargetQueue(time.monotonic), reconciler, metrics)

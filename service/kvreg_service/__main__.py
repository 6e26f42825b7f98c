"""The program and its composition root: the only place that builds and connects all parts.

Owns the order of startup and shutdown.
"""

from __future__ import annotations

import logging
import signal
import socket
import sys
from contextlib import ExitStack
from types import FrameType
from typing import TYPE_CHECKING

from kvreg_service.cli import Commands, build_cli
from kvreg_service.core.errors import ConfigurationError

if TYPE_CHECKING:
    from kvreg_service.engine.interface.observer import Observer
    from kvreg_service.settings import Settings

_logger = logging.getLogger(__name__)


def main() -> None:
    """Run the command line."""
    build_cli(Commands(serve=serve, plan=plan, demo=demo))()


def serve(settings: Settings) -> None:
    """Serve until a signal arrives.

    Effects:
        Prints the URL as the first line, then logs to standard output.

    Raises:
        ConfigurationError: The settings cannot be served; nothing has been printed.
    """
    from kvreg_service.api.server import url_of
    from kvreg_service.engine.reservation import plan_cpu
    from kvreg_service.engine_options import engine_options
    from kvreg_service.json_log import install_json_log
    from kvreg_service.model.config import ModelConfig
    from kvreg_service.settings import require_servable
    from kvreg_service.telemetry.tracing.factory import require_tracing
    from kvreg_service.tenants.directory import KeySource

    require_servable(settings)
    require_tracing(settings)
    KeySource(settings.api_keys_file, settings.api_keys).require_valid()
    plan_cpu(ModelConfig.from_path(settings.model), engine_options(settings)).require_fit()
    signal.signal(signal.SIGTERM, _end_before_serving)
    with _listen(settings) as listener:
        sys.stdout.write(f"{url_of(listener)}\n")
        sys.stdout.flush()
        install_json_log(settings.log_level)
        _serve_on(listener, settings)


def plan(settings: Settings, weight_format: str, as_json: bool) -> tuple[str, bool]:
    """Return the memory report and whether the profile fits."""
    from kvreg_service.memory_report import build_report

    report = build_report(settings, weight_format)
    return (report.as_json() if as_json else report.as_text()), report.plan.fits


def demo(group: str | None, seed: int | None, as_json: bool) -> bool:
    """Run the demo; return whether every request reused what was expected."""
    from kvreg_service.demo import run_demo

    return run_demo(group=group, seed=seed, as_json=as_json)


def _serve_on(listener: socket.socket, settings: Settings) -> None:
    from prometheus_client import CollectorRegistry

    from kvreg_service.api.app import create_app
    from kvreg_service.api.server import DrainingServer, url_of
    from kvreg_service.engine.build import build_engine, load_model
    from kvreg_service.engine.reservation import plan_cpu
    from kvreg_service.engine_options import engine_options
    from kvreg_service.load_progress import show_loading
    from kvreg_service.model.generation_config import read_sampling_defaults
    from kvreg_service.telemetry.metrics.metrics import Metrics
    from kvreg_service.telemetry.request_log.factory import open_request_log
    from kvreg_service.telemetry.tracing.factory import FLUSH_TIMEOUT_S, start_tracing
    from kvreg_service.telemetry.ui.recent_requests import RecentRequests

    options = engine_options(settings)
    with show_loading(settings.model_id) as on_progress:
        loaded = load_model(options, on_progress)
    metrics = Metrics(CollectorRegistry())
    with ExitStack() as closing:
        recent = RecentRequests()
        observers: list[Observer] = [metrics, recent]
        plan = plan_cpu(loaded.config, options)
        if (log := open_request_log(settings, options, plan, metrics)) is not None:
            closing.callback(log.close)
            observers.append(log)
        if (spans := start_tracing(settings, metrics.spans_ended)) is not None:
            closing.callback(spans.close, FLUSH_TIMEOUT_S)
            observers.append(spans)
        # Closed before its observers: closing it fails running requests, which they observe.
        engine, prompt_builder = build_engine(options, loaded, observers=tuple(observers))
        closing.callback(engine.close)
        metrics.watch(engine)
        app = create_app(
            engine,
            prompt_builder,
            settings,
            sampling_defaults=read_sampling_defaults(settings.model),
            vocab_size=loaded.config.vocab_size,
            metrics=metrics,
            recent=recent,
        )
        server = DrainingServer(app, engine, drain_timeout_s=settings.drain_timeout_s)
        _logger.info("serving", extra={"url": url_of(listener)})
        server.run([listener])


def _listen(settings: Settings) -> socket.socket:
    from kvreg_service.api.server import listen

    try:
        return listen(settings.host, settings.port)
    except OSError as err:
        raise ConfigurationError(
            f"host = {settings.host}, port = {settings.port}: cannot listen there: {err.strerror}"
        ) from err


def _end_before_serving(_number: int, _frame: FrameType | None) -> None:
    # Process 1 of a container ignores the signal by default. There is nothing to drain yet.
    raise SystemExit(0)


if __name__ == "__main__":
    main()

"""Puts the routes together into one application."""

from __future__ import annotations

import time

from fastapi import FastAPI

from kvreg_service.api.anthropic.request import CountTokensRequest, MessagesRequest
from kvreg_service.api.anthropic.route import build_messages_router
from kvreg_service.api.authentication import Authentication
from kvreg_service.api.errors import install_error_handlers
from kvreg_service.api.generation.context import KEEP_ALIVE_S, ApiContext, PromptBuilderProtocol
from kvreg_service.api.openai.request import ChatRequest
from kvreg_service.api.openai.route import build_chat_router
from kvreg_service.api.openapi import install_openapi
from kvreg_service.api.ops.admin import FitRequest, build_admin_router
from kvreg_service.api.ops.draining import CloseWhileDraining
from kvreg_service.api.ops.health import build_health_router
from kvreg_service.api.ops.metrics import build_metrics_router
from kvreg_service.api.ops.models import build_models_router
from kvreg_service.api.ops.refusals import Refusals
from kvreg_service.api.ops.registry import PinRequest, build_registry_router
from kvreg_service.api.ops.ui import build_ui_router
from kvreg_service.core.sampling_params import SamplingParams
from kvreg_service.engine.interface import EngineProtocol
from kvreg_service.settings import Settings
from kvreg_service.telemetry.metrics.metrics import Metrics
from kvreg_service.telemetry.ui.recent_requests import RecentRequests
from kvreg_service.tenants.directory import KeySource, TenantDirectory


def create_app(
    engine: EngineProtocol,
    prompt_builder: PromptBuilderProtocol,
    settings: Settings,
    *,
    sampling_defaults: SamplingParams | None = None,
    vocab_size: int | None = None,
    keep_alive_s: float = KEEP_ALIVE_S,
    metrics: Metrics | None = None,
    recent: RecentRequests | None = None,
) -> FastAPI:
    """Build the application around a started engine.

    ``sampling_defaults`` apply where a request says nothing (greedy when None), and ``vocab_size``
    limits the token ids of ``logit_bias``. ``keep_alive_s`` is how long a stream may be silent.
    ``metrics`` are those that observe the engine; without them nobody is shown any.
    ``recent`` is what observed its last requests.

    Effects: sets the quotas of the engine when keys are configured. Whoever made it closes it.

    Raises:
        ConfigurationError: The configured keys are invalid, or the engine refuses their quotas.
    """
    keys = KeySource(settings.api_keys_file, settings.api_keys)
    directory = TenantDirectory(keys, engine.set_quotas)
    context = ApiContext(
        engine=engine,
        prompt_builder=prompt_builder,
        model_id=settings.model_id,
        created_s=int(time.time()),
        max_body_bytes=settings.max_body_bytes,
        sampling_defaults=sampling_defaults or SamplingParams(),
        vocab_size=vocab_size,
        keep_alive_s=keep_alive_s,
    )
    app = FastAPI(
        title="kvreg",
        version="1",
        description="OpenAI's chat completions and Anthropic's messages over kept sessions.",
    )
    note = Refusals(metrics).note
    app.add_middleware(Authentication, directory=directory, note=note)
    app.add_middleware(CloseWhileDraining, engine=engine)
    install_error_handlers(app, note)
    for build_router in (
        build_chat_router,
        build_messages_router,
        build_models_router,
        build_registry_router,
        build_admin_router,
        build_health_router,
    ):
        app.include_router(build_router(context))
    app.include_router(build_ui_router(recent or RecentRequests()))
    if metrics is not None:
        app.include_router(build_metrics_router(metrics))
    install_openapi(
        app,
        bodies=(ChatRequest, MessagesRequest, CountTokensRequest, FitRequest, PinRequest),
        needs_keys=directory.needs_keys,
    )
    return app

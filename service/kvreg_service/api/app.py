"""Builds the application: routes, middleware, error handlers and the OpenAPI document."""

from __future__ import annotations

import time

from fastapi import FastAPI

from kvreg_service.api.anthropic import route as anthropic
from kvreg_service.api.authentication import Authentication
from kvreg_service.api.body.served_model import ServedModel
from kvreg_service.api.errors import install_error_handlers
from kvreg_service.api.generation.context import KEEP_ALIVE_S, ApiContext, PromptBuilderProtocol
from kvreg_service.api.openai import route as openai
from kvreg_service.api.openapi import install_openapi
from kvreg_service.api.ops import router as ops
from kvreg_service.api.ops.draining import CloseWhileDraining
from kvreg_service.api.ops.refusals import Refusals
from kvreg_service.core.requests.sampling_params import SamplingParams
from kvreg_service.engine.interface.protocol import EngineProtocol
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

    ``sampling_defaults`` apply to the fields that a request leaves out (greedy if None), and
    ``vocab_size`` limits the token ids of ``logit_bias``. A stream without output sends a
    keep-alive after ``keep_alive_s`` seconds. ``metrics`` and ``recent`` observe the engine;
    without ``metrics`` there is no ``/metrics``.

    Effects: sets the quotas of the engine if keys are configured. The caller closes the engine.

    Raises:
        ConfigurationError: The configured keys are invalid, or the engine refuses their quotas.
    """
    keys = KeySource(settings.api_keys_file, settings.api_keys)
    directory = TenantDirectory(keys, engine.set_quotas)
    model = ServedModel(settings.model_id, int(time.time()))
    context = ApiContext(
        engine=engine,
        prompt_builder=prompt_builder,
        model=model,
        max_body_bytes=settings.max_body_bytes,
        sampling_defaults=sampling_defaults or SamplingParams(),
        vocab_size=vocab_size,
        keep_alive_s=keep_alive_s,
    )
    app = FastAPI(
        title="kvreg",
        version="1",
        description="OpenAI's and Anthropic's chat APIs, with a registry of sessions.",
    )
    note = Refusals(metrics).note
    app.add_middleware(Authentication, directory=directory, note=note)
    app.add_middleware(CloseWhileDraining, engine=engine)
    install_error_handlers(app, note)
    app.include_router(openai.build_router(context))
    app.include_router(anthropic.build_router(context))
    app.include_router(
        ops.build_router(
            engine,
            model,
            settings.max_body_bytes,
            metrics=metrics,
            recent=recent or RecentRequests(),
        )
    )
    install_openapi(
        app,
        bodies=openai.BODIES + anthropic.BODIES + ops.BODIES,
        needs_keys=directory.needs_keys,
    )
    return app

"""Requests generated from the OpenAPI document get the documented responses.

The generated requests are the same in every run. Model names and ids are replaced by existing ones,
because otherwise almost every request would be refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, assume, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from kvreg_service.api.app import create_app
from kvreg_service.engine.build import LoadedModel, build_engine
from kvreg_service.engine.engine import Engine
from kvreg_service.engine.options import EngineOptions
from kvreg_service.reference_model import REFERENCE_MODEL_PATH
from kvreg_service.settings import load_settings
from kvreg_service.testing.fake_engine import FakeEngine
from kvreg_service.testing.fake_prompt_builder import FakePromptBuilder

MODEL = "fake-model"
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    unsupported_method,
    negative_data_rejection,
]
SAME_IN_EVERY_RUN = settings(
    derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
)
# A draining engine would refuse the requests of all other cases.
EXCLUDED_PATHS = r"^/admin/drain$"

ENGINE = FakeEngine()
SCHEMA = schemathesis.openapi.from_asgi(
    "/openapi.json",
    create_app(
        ENGINE,
        FakePromptBuilder(),
        load_settings({"served_model_name": MODEL}),
        vocab_size=256,
    ),
).exclude(path_regex=EXCLUDED_PATHS)


def use_existing_ids(case: schemathesis.Case, sequence_id: int | None) -> None:
    """Replace generated ids by existing ones, limit the answer, and fill in missing contents."""
    for name, known in (("sequence_id", sequence_id), ("entry_id", 0)):
        if str(case.path_parameters.get(name)).isdecimal():
            case.path_parameters[name] = known
    body: Any = case.body
    if not isinstance(body, dict):
        return
    if isinstance(body.get("model"), str):
        body["model"] = MODEL
    if isinstance(body.get("max_tokens"), int):
        body["max_tokens"] = min(body["max_tokens"], 4)
    if case.path == "/v1/chat/completions" and isinstance(body.get("messages"), list):
        for message in body["messages"]:
            if isinstance(message, dict) and message.get("content") is None:
                message["content"] = "Hi"


@SCHEMA.parametrize()
@settings(SAME_IN_EVERY_RUN, max_examples=20)
def test_responses_conform_to_the_document(case: schemathesis.Case) -> None:
    # schemathesis calls it a violation; kvreg ignores unknown fields.
    assume("x-schemathesis-unknown-property" not in case.headers)
    use_existing_ids(case, sequence_id=7)
    ENGINE.kept_entries = {0}
    case.call_and_validate(checks=CHECKS)


@pytest.fixture
def real_engine(loaded_model: LoadedModel) -> Iterator[tuple[Engine, FastAPI]]:
    options = EngineOptions(
        REFERENCE_MODEL_PATH, MODEL, max_context_tokens=512, num_pages=32, entries=2
    )
    engine, prompt_builder = build_engine(options, loaded_model)
    app = create_app(
        engine,
        prompt_builder,
        load_settings({"served_model_name": MODEL}),
        vocab_size=loaded_model.config.vocab_size,
    )
    try:
        yield engine, app
    finally:
        engine.close()


@pytest.mark.parametrize(
    "label",
    [
        "POST /v1/chat/completions",
        "POST /v1/messages",
        "POST /v1/messages/count_tokens",
        "GET /v1/registry",
        "PUT /v1/registry/sequences/{sequence_id}/pin",
        "DELETE /v1/registry/sequences/{sequence_id}",
        "POST /admin/fit",
    ],
)
def test_responses_of_a_real_engine_conform_to_the_document(
    real_engine: tuple[Engine, FastAPI], label: str
) -> None:
    engine, app = real_engine
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    body = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}
    schema["/v1/messages"]["POST"].Case(body=body, media_type="application/json").call()
    operation = schema.find_operation_by_label(label)
    assert operation is not None

    @given(case=operation.as_strategy())
    @settings(SAME_IN_EVERY_RUN, max_examples=25)
    def check(case: schemathesis.Case) -> None:
        use_existing_ids(case, sequence_id=engine.snapshot().lanes[0].sequence_id)
        case.call_and_validate(checks=CHECKS)

    check()
    assert engine.is_ready

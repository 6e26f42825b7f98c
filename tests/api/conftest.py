"""A scripted engine behind the real application, called in-process or over a loopback socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from fastapi import FastAPI
from tests.api.taught_engine import Taught, taught_engine

from kvreg_service.api.app import create_app
from kvreg_service.engine.build import LoadedModel, load_model
from kvreg_service.engine.options import EngineOptions
from kvreg_service.reference_model import REFERENCE_MODEL_PATH
from kvreg_service.settings import Settings, load_settings
from kvreg_service.testing.fake_engine import FakeEngine
from kvreg_service.testing.fake_prompt_builder import FakePromptBuilder
from kvreg_service.testing.http_server import running_server

MODEL = "fake-model"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def settings() -> Settings:
    return load_settings({"served_model_name": MODEL, "max_body_bytes": 65536})


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def prompt_builder() -> FakePromptBuilder:
    return FakePromptBuilder()


@pytest.fixture
def app(engine: FakeEngine, prompt_builder: FakePromptBuilder, settings: Settings) -> FastAPI:
    return create_app(engine, prompt_builder, settings, vocab_size=256)


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://kvreg") as client:
        yield client


@pytest.fixture
def base_url(app: FastAPI) -> Iterator[str]:
    with running_server(app) as url:
        yield url


@pytest.fixture
def openai_client(base_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def body() -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture(scope="session")
def loaded_model() -> LoadedModel:
    return load_model(EngineOptions(REFERENCE_MODEL_PATH, MODEL))


@pytest.fixture
def taught(loaded_model: LoadedModel, settings: Settings) -> Iterator[Taught]:
    with taught_engine(loaded_model, settings) as taught:
        yield taught


@pytest.fixture
async def taught_client(taught: Taught) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=taught.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://kvreg") as client:
        yield client


@pytest.fixture
def anthropic_client(base_url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=base_url, api_key="none", max_retries=0) as client:
        yield client

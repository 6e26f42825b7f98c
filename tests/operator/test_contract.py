"""Names that the operator shares with the service and the dashboards without importing them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from dashboards.operator_metrics import OPERATOR_METRICS
from prometheus_client import CollectorRegistry
from tests.operator.objects import make_profile

from kvreg_operator.clients.engine import EngineClient
from kvreg_operator.clients.errors import ERROR_CLASSES
from kvreg_operator.crd import profile as operator_profile
from kvreg_operator.manifests.desired_state import render_settings
from kvreg_operator.manifests.stateful_set import CONFIG_FILE_VARIABLE
from kvreg_operator.observe.parsing import settings_to_fit
from kvreg_operator.reconcile.metrics import OperatorMetrics
from kvreg_service import settings as service_settings
from kvreg_service.api.app import create_app
from kvreg_service.core.errors import KvregError
from kvreg_service.setting_names import environment_name
from kvreg_service.settings import load_settings
from kvreg_service.testing.fake_engine import FakeEngine
from kvreg_service.testing.fake_prompt_builder import FakePromptBuilder

PROFILE = make_profile(lanes=2, registryEntries=3, currentState="Drop", anchors=1)


def codes() -> Iterator[str]:
    waiting = [KvregError]
    while waiting:
        error = waiting.pop()
        waiting += error.__subclasses__()
        yield error.code


def test_engine_loads_the_rendered_settings(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text(render_settings(PROFILE).text)
    loaded = load_settings({"config_file": path})
    assert loaded.profile == "small"
    assert (loaded.lanes, loaded.entries, loaded.anchors) == (2, 3, 1)
    assert loaded.current_state == "drop"


def test_variable_of_the_mounted_file_is_the_engine_s() -> None:
    assert environment_name("config_file") == CONFIG_FILE_VARIABLE


@pytest.mark.parametrize("name", ["MAX_LANES", "MAX_ENTRIES", "MAX_ANCHORS"])
def test_bounds_are_the_engine_s(name: str) -> None:
    assert getattr(operator_profile, name) == getattr(service_settings, name)


def test_every_error_of_the_engine_is_classed() -> None:
    assert set(codes()) == set(ERROR_CLASSES)


def test_metrics_are_those_of_the_dashboards() -> None:
    registry = CollectorRegistry()
    OperatorMetrics(registry, lambda: 0.0)
    shown = {}
    for family in registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels}
        shown[name] = tuple(sorted(labels))
    assert shown == {name: tuple(sorted(labels)) for name, labels in OPERATOR_METRICS.items()}


def test_engine_answers_what_the_operator_asks() -> None:
    engine = FakeEngine()
    app = create_app(engine, FakePromptBuilder(), load_settings({}), vocab_size=256)

    async def look_and_drain() -> tuple[bool, bool]:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport) as http:
            client = EngineClient(http)
            settings = settings_to_fit(PROFILE.spec)
            before = await client.report("http://engine", settings)
            await client.drain("http://engine")
            after = await client.report("http://engine", settings)
            return before.registry.is_draining, after.registry.is_draining

    assert asyncio.run(look_and_drain()) == (False, True)


def test_engine_s_idea_of_its_profile_is_read() -> None:
    engine = FakeEngine()
    app = create_app(engine, FakePromptBuilder(), load_settings({}), vocab_size=256)

    async def lanes() -> int:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app)) as http:
            settings = settings_to_fit(PROFILE.spec)
            report = await EngineClient(http).report("http://engine", settings)
            return report.registry.profile.lanes

    assert asyncio.run(lanes()) == engine.snapshot().profile.lanes

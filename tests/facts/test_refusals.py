"""Invalid options, profiles that do not fit, and state slots that do not exist."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvreg_service.core.errors import ConfigurationError, CurrentSlotDropped, DoesNotFit
from kvreg_service.core.ids import RequestId
from kvreg_service.core.memory.slots import SlotLayout
from kvreg_service.core.requests.identity import Identity
from kvreg_service.core.requests.ledger import TokenLedger
from kvreg_service.core.requests.request import Request
from kvreg_service.core.scheduling.scheduler import Scheduler, SchedulerLimits
from kvreg_service.core.scheduling.step import StepResult
from kvreg_service.core.states.cost import CostModel
from kvreg_service.core.states.policies import find_policy
from kvreg_service.demo.run import BASE_OPTIONS
from kvreg_service.engine.build import LoadedModel, build_engine
from kvreg_service.engine.options import EngineOptions
from kvreg_service.engine.reservation import plan_cpu


def test_entries_without_prefix_reuse_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="prefix_reuse is false and entries is 1"):
        replace(BASE_OPTIONS, prefix_reuse=False, entries=1)


def test_drop_without_entries_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="current_state is drop and entries is 0"):
        replace(BASE_OPTIONS, keep_current=False, entries=0)


def test_disabled_reuse_without_entries_is_allowed() -> None:
    assert not replace(BASE_OPTIONS, prefix_reuse=False, entries=0).prefix_reuse


def test_a_frontier_that_drop_mode_should_have_dropped_raises() -> None:
    limits = SchedulerLimits(SlotLayout(1, 1, keep_current=False), 8, 256)
    scheduler = Scheduler(limits, find_policy("cost"), CostModel())
    prompt = TokenLedger(Identity(b"epoch", "tenant"), range(10))
    scheduler.submit(Request(RequestId("r"), prompt, max_tokens=1, arrival_s=0.0))
    plan = scheduler.schedule(0.0)
    scheduler.commit(plan, StepResult({RequestId("r"): 7}), 0.0)
    scheduler.check_invariants()

    scheduler.lanes[0].session = None

    with pytest.raises(CurrentSlotDropped, match="session 1 kept its frontier"):
        scheduler.check_invariants()


@pytest.mark.parametrize("missing_bytes", [1, 123_456])
def test_engine_refuses_a_profile_that_does_not_fit_with_the_missing_bytes(
    loaded: LoadedModel, missing_bytes: int
) -> None:
    options = _just_fitting(loaded)

    with pytest.raises(DoesNotFit, match=f"short by {missing_bytes} bytes") as refused:
        build_engine(replace(options, memory_bytes=options.memory_bytes - missing_bytes), loaded)

    assert refused.value.short_by_bytes == missing_bytes


def test_engine_starts_with_exactly_the_required_memory(loaded: LoadedModel) -> None:
    engine, _ = build_engine(_just_fitting(loaded), loaded)
    is_ready = engine.is_ready
    engine.close()

    assert is_ready


def test_engine_reports_whether_a_larger_profile_fits(loaded: LoadedModel) -> None:
    engine, _ = build_engine(_just_fitting(loaded), loaded)
    report = engine.fit(lanes=1, entries=2, keep_current=True)
    engine.close()

    slot_bytes = plan_cpu(loaded.config, BASE_OPTIONS).demand.slot_bytes
    assert (report.fits, report.short_by_bytes) == (False, 2 * slot_bytes)


def _just_fitting(loaded: LoadedModel) -> EngineOptions:
    return replace(BASE_OPTIONS, memory_bytes=plan_cpu(loaded.config, BASE_OPTIONS).required_bytes)

"""Building an engine computes a first token, so that readiness implies a working model."""

from __future__ import annotations

import pytest
import torch

from kvreg_service.core.errors import CheckpointError
from kvreg_service.engine.build import LoadedModel, build_engine
from kvreg_service.engine.options import EngineOptions
from kvreg_service.model.hybrid import HybridModel
from kvreg_service.reference_model import REFERENCE_MODEL_PATH

OPTIONS = EngineOptions(REFERENCE_MODEL_PATH, "reference")


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_non_finite_logits_of_either_phase_fail_the_build(
    reference: LoadedModel, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    compute = getattr(HybridModel, phase)
    monkeypatch.setattr(HybridModel, phase, lambda *args: compute(*args) * torch.nan)
    with pytest.raises(CheckpointError, match="no finite logits"):
        build_engine(OPTIONS, reference)


def test_first_token_frees_its_pages_and_slots(reference: LoadedModel) -> None:
    engine, _ = build_engine(OPTIONS, reference)
    try:
        snapshot = engine.snapshot()
    finally:
        engine.close()
    assert snapshot.running == snapshot.queued == 0
    assert all(pool.free == pool.total for pool in snapshot.pools)
    assert snapshot.state_slots.used == 0

"""No engine is built that computes nothing: who is asked for readiness has seen a token."""

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
def test_both_phases_are_tried(
    reference: LoadedModel, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    compute = getattr(HybridModel, phase)
    monkeypatch.setattr(HybridModel, phase, lambda *args: compute(*args) * torch.nan)
    with pytest.raises(CheckpointError, match="no finite logits"):
        build_engine(OPTIONS, reference)


def test_first_token_leaves_nothing_behind(reference: LoadedModel) -> None:
    engine, _ = build_engine(OPTIONS, reference)
    try:
        snapshot = engine.snapshot()
    finally:
        engine.close()
    assert snapshot.running == snapshot.queued == 0
    assert all(pool.free == pool.total for pool in snapshot.pools)
    assert snapshot.state_slots.used == 0

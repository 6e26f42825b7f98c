"""Fixtures: models loaded once per session, and engines that are closed after each test."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
import torch

# Test folders are not packages, and the files of this folder import the bench.
sys.path.insert(0, str(Path(__file__).parent))

from engine_bench import EngineBench

from kvreg_service.engine.build import LoadedModel, load_model
from kvreg_service.engine.options import EngineOptions
from kvreg_service.model.hybrid import HybridModel
from kvreg_service.model.testing import random_weights, tiny_config
from kvreg_service.reference_model import REFERENCE_MODEL_PATH

MakeBench = Callable[..., EngineBench]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Fix the summation order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def reference() -> LoadedModel:
    """The bundled model in fp32, which is trained on text and recalls facts."""
    return load_model(EngineOptions(REFERENCE_MODEL_PATH, "reference"))


@pytest.fixture(scope="session")
def tiny(reference: LoadedModel) -> LoadedModel:
    """A four-layer model in fp64 with random weights; its generations never stop early."""
    config = tiny_config(layer_types=("linear_attention", "full_attention") * 2)
    weights = random_weights(config, dtype=torch.float64)
    model = HybridModel(config, weights, torch.device("cpu"))
    return LoadedModel(config, model, reference.tokenizer, reference.template, "tiny")


@pytest.fixture
def make_bench(tiny: LoadedModel) -> Iterator[MakeBench]:
    """A factory of engines on the tiny model, or on ``loaded``."""
    benches: list[EngineBench] = []

    def make(loaded: LoadedModel = tiny, **options: object) -> EngineBench:
        benches.append(EngineBench(loaded, **options))
        return benches[-1]

    yield make
    for bench in benches:
        bench.engine.close()


@pytest.fixture(scope="session")
def ids(tiny: LoadedModel) -> Callable[[int, int], list[int]]:
    """Random tokens by seed and count."""

    def draw(seed: int, count: int) -> list[int]:
        rng = Random(seed)
        return [rng.randrange(tiny.config.vocab_size) for _ in range(count)]

    return draw

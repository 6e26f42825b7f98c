"""A short soak: mixed operations of several clients with faults lose and leak nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch
from tests.soak.operations import Kind, draw_operations
from tests.soak.soak import NUM_CLIENTS, OPTIONS, Outcome, Soak

from kvreg_service.engine.build import load_model

SEED = 1
NUM_OPERATIONS = 150


@pytest.fixture(scope="module")
def outcome() -> Iterator[Outcome]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    logger = logging.getLogger("kvreg_service")
    level = logger.level
    # A captured warning references the traceback of its fault, and so the request.
    logger.setLevel(logging.CRITICAL)
    yield Soak(load_model(OPTIONS), SEED, NUM_OPERATIONS).run()
    logger.setLevel(level)
    torch.set_num_threads(before)


def test_soak_has_no_findings(outcome: Outcome) -> None:
    assert not outcome.judge.findings


def test_soak_checks_canaries_and_injects_faults(outcome: Outcome) -> None:
    assert outcome.judge.num_recalled > outcome.judge.num_recalled_wrong
    assert outcome.faults.injected.total() > 0


def test_soak_contains_every_kind_of_operation() -> None:
    operations = draw_operations(SEED, NUM_OPERATIONS, NUM_CLIENTS)
    assert {operation.kind for operation in operations} == set(Kind)


def test_seed_reproduces_the_operations() -> None:
    drawn = [draw_operations(seed, NUM_OPERATIONS, NUM_CLIENTS) for seed in (7, 7, 8)]
    assert drawn[0] == drawn[1] != drawn[2]

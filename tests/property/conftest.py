"""Hypothesis profiles and the import path of the state machines."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Test folders are not packages; the test modules import the oracles by bare name.
sys.path.insert(0, str(Path(__file__).parent))

_COMMON = {
    "deadline": None,
    "database": None,
    "print_blob": False,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}
settings.register_profile("fixed", max_examples=100, derandomize=True, **_COMMON)
# Run manually after a change of admission or placement: --hypothesis-profile=search --timeout=0
settings.register_profile("search", max_examples=3000, derandomize=False, **_COMMON)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--hypothesis-profile", default=None) is None:
        settings.load_profile("fixed")

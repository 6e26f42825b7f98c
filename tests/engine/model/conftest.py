"""The reference model for these tests."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def reference_path() -> Path:
    return Path(str(resources.files("kvreg_service.reference_model")))

"""`kvreg serve` does not start with invalid API keys, and prints none of them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("command", "status"), [(["serve", "--port", "0"], 2), (["plan"], 0)], ids=["serve", "plan"]
)
def test_invalid_keys_in_the_environment_stop_only_serve(command: list[str], status: int) -> None:
    keys = '{"tenants": {"alpha": {"keys": ["sk-secret", ""], "pages": -1}, "sk-secret": 5}}'
    ended = subprocess.run(
        [sys.executable, "-m", "kvreg_service", *command],
        env=os.environ | {"KVREG_API_KEYS": keys},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == status
    assert "secret" not in ended.stdout + ended.stderr
    for problem in ("tenants.alpha.keys[1]: is empty", "tenants.alpha.pages = -1"):
        assert (problem in ended.stderr) == (status == 2)

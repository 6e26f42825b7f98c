"""Importing the core loads no module with side effects, checked in a separate process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import kvreg_service.core

# Modules that importing the core must not load, directly or indirectly.
FORBIDDEN = {
    "asyncio",
    "fastapi",
    "jinja2",
    "logging",
    "multiprocessing",
    "numpy",
    "pydantic",
    "random",
    "safetensors",
    "socket",
    "starlette",
    "subprocess",
    "threading",
    "tokenizers",
    "torch",
    "transformers",
    "triton",
    "kvreg_kernels",
    "kvreg_operator",
    "kvreg_service.api",
    "kvreg_service.chat",
    "kvreg_service.engine",
    "kvreg_service.model",
    "kvreg_service.settings",
}

_IMPORT_ALL = """
import importlib, pkgutil, sys
sys.path.insert(0, sys.argv[1])
before = set(sys.modules)
import kvreg_service.core
for module in pkgutil.walk_packages(kvreg_service.core.__path__, "kvreg_service.core."):
    importlib.import_module(module.name)
print("\\n".join(sorted(set(sys.modules) - before)))
"""


def _loaded_by_core() -> set[str]:
    # -I ignores PYTHON* environment variables and the current directory.
    source_root = Path(kvreg_service.core.__file__).parents[2]
    finished = subprocess.run(
        [sys.executable, "-I", "-c", _IMPORT_ALL, str(source_root)],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(finished.stdout.split())


def test_importing_the_core_loads_no_forbidden_module():
    assert not _loaded_by_core() & FORBIDDEN


def test_the_check_imports_the_modules_of_the_core():
    modules = {"kvreg_service.core.scheduling.scheduler", "kvreg_service.core.states.policies"}
    assert modules <= _loaded_by_core()

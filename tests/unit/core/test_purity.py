"""The core runs on the standard library's quiet half, checked in a process of its own."""

from __future__ import annotations

import subprocess
import sys

# Names that must not be loaded by importing the core, however indirectly.
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
before = set(sys.modules)
import kvreg_service.core
for module in pkgutil.iter_modules(kvreg_service.core.__path__, "kvreg_service.core."):
    importlib.import_module(module.name)
print("\\n".join(sorted(set(sys.modules) - before)))
"""


def _loaded_by_core() -> set[str]:
    # -I leaves the environment and the current folder out of it.
    finished = subprocess.run(
        [sys.executable, "-I", "-c", _IMPORT_ALL], capture_output=True, text=True, check=True
    )
    return set(finished.stdout.split())


def test_importing_the_core_loads_nothing_with_effects():
    assert not _loaded_by_core() & FORBIDDEN


def test_every_module_of_the_core_is_imported_by_this_check():
    assert {"kvreg_service.core.scheduler", "kvreg_service.core.pages"} <= _loaded_by_core()

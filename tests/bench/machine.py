"""Description of the machine: processor, load, versions. Contains no paths and no host name."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = ("kvreg", "torch", "transformers", "tokenizers", "fastapi", "uvicorn")


@dataclass(frozen=True)
class Machine:
    """``load`` is the one-minute load average before the first measurement."""

    processor: str
    cores: str
    threads_per_core: str
    model_threads: int
    load: float
    versions: dict[str, str]

    def as_json(self) -> dict[str, object]:
        """Return all fields."""
        return asdict(self)


def describe_machine(model_threads: int) -> Machine:
    """Read the machine as ``lscpu`` shows it."""
    fields = _read_lscpu()
    return Machine(
        processor=fields.get("Model name", platform.machine()),
        cores=fields.get("CPU(s)", str(os.cpu_count())),
        threads_per_core=fields.get("Thread(s) per core", "unknown"),
        model_threads=model_threads,
        load=os.getloadavg()[0],
        versions={"python": platform.python_version()} | _versions(),
    )


def _read_lscpu() -> dict[str, str]:
    try:
        shown = subprocess.run(["lscpu", "-J"], capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return {}
    return {item["field"].rstrip(":"): item["data"] for item in json.loads(shown)["lscpu"]}


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found

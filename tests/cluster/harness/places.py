"""Where the cluster of the tests keeps what: what survives a run, and what one run leaves behind.

Owns paths and the names of variables that move them, and how a run speaks. It creates nothing.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
MODULE = REPOSITORY / "tests" / "cluster"

CACHE_VARIABLE = "KVREG_CLUSTER_CACHE"
BINARIES_VARIABLE = "KVREG_CLUSTER_BIN"
MACHINE_LOCK = Path("/run/lock/kvreg-cluster")
"""Held by the one run that uses this machine's buildah and control groups, whatever its cache."""

RUN_VARIABLE = "KVREG_CLUSTER_RUN"
"""Set inside the namespace only: the folder of this run."""


@dataclass(frozen=True)
class Cache:
    """What is kept between runs: programs, images, and containerd with the images unpacked."""

    root: Path

    @property
    def binaries(self) -> Path:
        """Folder of the programs that are built from ``go.mod``."""
        return self.root / "bin"

    @property
    def containerd(self) -> Path:
        """Root of containerd: contents and snapshots."""
        return self.root / "containerd"

    @property
    def passage(self) -> Path:
        """Images on their way to containerd; a machine's place for temporary files may be small."""
        return self.root / "passage"

    @property
    def logs(self) -> Path:
        """Logs of the last run's kubelet, API server and so on."""
        return self.root / "logs"

    @property
    def lock(self) -> Path:
        """Held by the one run that uses the cache."""
        return self.root / "lock"


def find_cache() -> Cache:
    """Return the cache of this user, or the one that the environment names."""
    named = os.environ.get(CACHE_VARIABLE)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Cache(Path(named) if named else Path(base) / "kvreg-cluster")


def find_binaries() -> Path:
    """Return the folder of the cluster's programs, which may not be there yet."""
    named = os.environ.get(BINARIES_VARIABLE)
    return Path(named) if named else find_cache().binaries


def say(text: str) -> None:
    """Tell a person how far the run has come, beside what the tests print."""
    sys.stderr.write(f"cluster: {text}\n")

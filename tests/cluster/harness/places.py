"""The paths of the test cluster: those kept between runs, and those of one run.

Owns paths, the environment variables that change them, and the progress messages. Creates no file.
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
"""Lock for this machine's buildah and cgroups, which only one run may use."""

RUN_VARIABLE = "KVREG_CLUSTER_RUN"
"""Set only inside the namespaces: the folder of this run."""


@dataclass(frozen=True)
class Cache:
    """Files kept between runs: programs, images, and containerd with the unpacked images."""

    root: Path

    @property
    def binaries(self) -> Path:
        """The folder of the programs that are built from ``go.mod``."""
        return self.root / "bin"

    @property
    def containerd(self) -> Path:
        """The root folder of containerd: contents and snapshots."""
        return self.root / "containerd"

    @property
    def transfer_folder(self) -> Path:
        """Temporary files of image imports; the machine's folder for them may be too small."""
        return self.root / "passage"

    @property
    def logs(self) -> Path:
        """The logs of the last run's daemons."""
        return self.root / "logs"

    @property
    def lock(self) -> Path:
        """Lock for the cache, which only one run may use."""
        return self.root / "lock"


def find_cache() -> Cache:
    """Return the cache of this user, or the one set in the environment."""
    named = os.environ.get(CACHE_VARIABLE)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Cache(Path(named) if named else Path(base) / "kvreg-cluster")


def find_binaries() -> Path:
    """Return the folder of the cluster's programs, which may not exist yet."""
    named = os.environ.get(BINARIES_VARIABLE)
    return Path(named) if named else find_cache().binaries


def print_progress(text: str) -> None:
    """Print a progress message to standard error."""
    sys.stderr.write(f"cluster: {text}\n")

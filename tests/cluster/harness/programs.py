"""The programs of a cluster: built from ``go.mod``, or taken from a folder.

Owns their names, versions and how they are built. They are built again when ``go.mod`` or
``go.sum`` changed since; Go's own cache makes that cheap.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from tests.cluster.harness.places import BINARIES_VARIABLE, MODULE, Cache

NAMES = (
    "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy",
    "kubectl", "server", "helm",
)  # fmt: skip
"""``server`` is etcd."""

_VERSION = "v1.37.2"
# Without these, helm and kubectl cannot tell the version of the API server.
_LINKER_FLAGS = (
    f"-s -w -X k8s.io/component-base/version.gitVersion={_VERSION} "
    "-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37"
)


class ProgramsMissing(Exception):
    """A program is neither there nor can it be built. The message says what to do."""


def ensure_programs(cache: Cache) -> Path:
    """Return the folder of all programs, after building what is missing.

    Raises:
        ProgramsMissing: A named folder lacks one, or there is no Go.
        subprocess.CalledProcessError: The build fails.
    """
    if (named := os.environ.get(BINARIES_VARIABLE)) is not None:
        missing = [name for name in NAMES if not (Path(named) / name).is_file()]
        if missing:
            raise ProgramsMissing(f"{BINARIES_VARIABLE} = {named} lacks {', '.join(missing)}")
        return Path(named)
    if _is_built(cache):
        return cache.binaries
    if shutil.which("go") is None:
        raise ProgramsMissing(
            f"Go 1.26 or later builds the cluster's programs and is not installed; "
            f"or set {BINARIES_VARIABLE} to a folder that holds {', '.join(NAMES)}"
        )
    cache.binaries.mkdir(parents=True, exist_ok=True)
    # A build that is cut off leaves programs of two versions.
    _stamp(cache).unlink(missing_ok=True)
    command = ["go", "build", "-trimpath", "-ldflags", _LINKER_FLAGS]
    subprocess.run(
        [*command, "-o", f"{cache.binaries}/", "tool"],
        cwd=MODULE,
        env={**os.environ, "CGO_ENABLED": "0"},
        check=True,
    )
    _stamp(cache).write_text(_fingerprint())
    return cache.binaries


def _is_built(cache: Cache) -> bool:
    stamp = _stamp(cache)
    if not stamp.is_file() or stamp.read_text() != _fingerprint():
        return False
    return all((cache.binaries / name).is_file() for name in NAMES)


def _stamp(cache: Cache) -> Path:
    return cache.binaries / ".built-from"


def _fingerprint() -> str:
    digest = hashlib.sha256(_LINKER_FLAGS.encode())
    for name in ("go.mod", "go.sum"):
        digest.update((MODULE / name).read_bytes())
    return digest.hexdigest()

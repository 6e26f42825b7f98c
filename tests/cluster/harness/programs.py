"""The programs of a cluster: built from ``go.mod``, or taken from a folder.

Owns their names, versions and the build. They are rebuilt when ``go.mod`` or ``go.sum`` has
changed, which Go's build cache makes fast.
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
# Without these, the API server does not report its version to helm and kubectl.
_LINKER_FLAGS = (
    f"-s -w -X k8s.io/component-base/version.gitVersion={_VERSION} "
    "-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37"
)


class ProgramsMissing(Exception):
    """A program is missing and cannot be built. The message contains the remedy."""


def ensure_programs(cache: Cache) -> Path:
    """Return the folder of all programs; build those that are missing.

    Raises:
        ProgramsMissing: The configured folder lacks a program, or Go is not installed.
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
    # An interrupted build leaves programs of two versions.
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

"""Third-party CRDs, from the Go modules that publish them.

Owns their origin and the local copies. The caller installs and deletes them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.harness.places import MODULE, Cache
from tests.cluster.harness.programs import ProgramsMissing


@dataclass(frozen=True)
class Origin:
    """A folder of a Go module at a version. ``digest`` is the module's checksum in Go's format."""

    name: str
    module: str
    version: str
    digest: str
    folder: str


MONITORING = Origin(
    "monitoring",
    "github.com/prometheus-operator/prometheus-operator",
    "v0.85.0",
    "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
    "example/prometheus-operator-crd",
)
# Includes the CRDs of the matching Gateway API version.
GATEWAY = Origin(
    "gateway",
    "github.com/envoyproxy/gateway",
    "v1.9.1",
    "h1:vAVp6/AlBXJ1aOhp1mxL7fNEzVEfjADUguUhm2wzxQY=",
    "charts/gateway-helm/charts/crds/crds",
)
ORIGINS = (MONITORING, GATEWAY)


def ensure_definitions(cache: Cache, origin: Origin) -> Path:
    """Return the folder of the CRDs, which are fetched only once.

    Raises:
        ProgramsMissing: They are not cached, and Go is missing or cannot fetch them.
        ValueError: The checksum of the fetched module differs.
    """
    kept = cache.root / "definitions" / f"{origin.name}-{origin.version}"
    if not kept.is_dir():
        source = _fetch(origin) / origin.folder
        partial = kept.with_name(f"{kept.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(source, partial, copy_function=shutil.copyfile)
        partial.rename(kept)
    return kept


def _fetch(origin: Origin) -> Path:
    if shutil.which("go") is None:
        raise ProgramsMissing(f"Go fetches the definitions of {origin.module} and is not installed")
    command = ["go", "mod", "download", "-json", f"{origin.module}@{origin.version}"]
    fetched = subprocess.run(command, cwd=MODULE, check=False, capture_output=True, text=True)
    if fetched.returncode != 0:
        output = fetched.stderr or fetched.stdout
        raise ProgramsMissing(f"Go cannot fetch {origin.module} {origin.version}: {output.strip()}")
    module = json.loads(fetched.stdout)
    if module["Sum"] != origin.digest:
        raise ValueError(
            f"{origin.module} {origin.version} is {module['Sum']}, not {origin.digest}"
        )
    return Path(module["Dir"])

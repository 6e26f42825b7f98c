"""``make cluster``: a shell beside a cluster in which the chart is installed and a profile served.

Owns what is installed and what a person is told. The cluster ends with the shell.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.places import BINARIES_VARIABLE, RUN_VARIABLE, find_cache
from tests.cluster.harness.release import Release, base_values

NAMESPACE = "chat"

_WELCOME = """
One node, two cards that nothing uses, the chart, and a profile. For example:

  kubectl get kvrp,pods
  kubectl edit kvrp kvreg          # change lanes or registryEntries, and look again
  kubectl describe kvrp kvreg
  kubectl logs deployment/kvreg-operator -f
  curl {url}/v1/registry
  curl {url}/v1/chat/completions -H 'content-type: application/json' -d '{{
    "model": "kvreg-reference",
    "messages": [{{"role": "user", "content": "My locker code is 4921."}}]}}'

Logs of the cluster itself: {logs}
`exit` ends everything.
"""


def main() -> int:
    """Start, install, run the shell; return its status."""
    run = Path(os.environ[RUN_VARIABLE])
    cluster = Cluster(Path(os.environ[BINARIES_VARIABLE]), find_cache(), run)
    try:
        _say("starting the cluster")
        cluster.start()
        _say("installing the chart")
        values = base_values()
        values["crd"] = {"install": True}
        release = Release(cluster, NAMESPACE, values)
        release.install()
        cluster.kubectl("config", "set-context", "--current", f"--namespace={NAMESPACE}")
        release.wait_ready(1)
        release.wait_ready(1, "operator")
        release.apply()
        release.wait_for("Ready", "True")
        sys.stderr.write(_WELCOME.format(url=release.url(), logs=run / "logs"))
        shell = os.environ.get("SHELL", "/bin/bash")
        return subprocess.run([shell], env=cluster.environment, check=False).returncode
    finally:
        cluster.stop()


def _say(text: str) -> None:
    sys.stderr.write(f"cluster: {text}\n")


if __name__ == "__main__":
    sys.exit(main())

"""``make cluster``: a shell with a cluster in which the chart is installed and a profile served.

Owns the installation and the welcome text. The cluster stops when the shell exits.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests.cluster.harness.cluster import find_cluster
from tests.cluster.harness.places import print_progress
from tests.cluster.harness.release import Release, base_values

NAMESPACE = "chat"

_WELCOME = """
The cluster has one node with two unused GPUs, the chart, and a profile. For example:

  kubectl get kvrp,pods
  kubectl edit kvrp kvreg          # change lanes or registryEntries, then look again
  kubectl describe kvrp kvreg
  kubectl logs deployment/kvreg-operator -f
  curl {url}/v1/registry
  curl {url}/v1/chat/completions -H 'content-type: application/json' -d '{{
    "model": "kvreg-reference",
    "messages": [{{"role": "user", "content": "My locker code is 4921."}}]}}'

Logs of the cluster itself: {logs}
`exit` stops the cluster.
"""


def main() -> int:
    """Start the cluster, install the chart, run the shell; return its exit status."""
    cluster = find_cluster()
    try:
        print_progress("starting the cluster")
        cluster.start()
        print_progress("installing the chart")
        values = base_values()
        values["crd"] = {"install": True}
        release = Release(cluster, NAMESPACE, values)
        release.install()
        cluster.kubectl("config", "set-context", "--current", f"--namespace={NAMESPACE}")
        release.wait_installed()
        release.serve()
        sys.stderr.write(_WELCOME.format(url=release.url(), logs=cluster.folder / "logs"))
        shell = os.environ.get("SHELL", "/bin/bash")
        return subprocess.run([shell], env=cluster.environment, check=False).returncode
    finally:
        cluster.stop()


if __name__ == "__main__":
    sys.exit(main())

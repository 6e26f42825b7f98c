"""``make cluster``: a shell beside a cluster in which the chart is installed and a profile served.

Owns what is installed and what a person is told. The cluster ends with the shell.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests.cluster.harness.cluster import find_cluster
from tests.cluster.harness.places import say
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
    cluster = find_cluster()
    try:
        say("starting the cluster")
        cluster.start()
        say("installing the chart")
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

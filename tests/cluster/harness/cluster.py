"""A complete cluster with one node: start, access through kubectl and helm, and stop.

Owns the order of the start. ``isolation`` creates the Linux namespaces before.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from tests.cluster.harness.control_plane import ControlPlane
from tests.cluster.harness.credentials import ADMIN, API_URL, NODE_NAME, Credentials
from tests.cluster.harness.node import GPU_RESOURCE, NUM_GPUS, Node, make_network
from tests.cluster.harness.places import RUN_VARIABLE, Cache, find_binaries, find_cache
from tests.cluster.harness.runtime import Runtime

_NODE_TIMEOUT_S = 60.0


# The API paths of the kinds that tests read.
_GROUPS = {
    "configmaps": "api/v1",
    "events": "api/v1",
    "jobs": "apis/batch/v1",
    "kvregistryprofiles": "apis/kvreg.dev/v1alpha1",
    "pods": "api/v1",
    "serviceaccounts": "api/v1",
    "services": "api/v1",
    "statefulsets": "apis/apps/v1",
}


class CommandFailed(Exception):
    """kubectl or helm failed; the message contains its standard error."""


class Cluster:
    """One cluster inside isolated Linux namespaces. All files of a run are in ``folder``."""

    def __init__(self, binaries: Path, cache: Cache, folder: Path) -> None:
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.binaries = binaries
        self.credentials = Credentials(folder / "credentials")
        self.control_plane = ControlPlane(binaries, folder, self.credentials)
        self.runtime = Runtime(cache, folder, for_pods=True)
        self.node = Node(binaries, folder, self.credentials, self.runtime)
        self.kubeconfig = self.credentials.kubeconfig(ADMIN)
        # Reconnect if the API server has closed a kept-alive connection.
        transport = httpx.HTTPTransport(verify=_as_admin(self.credentials), retries=3)
        self._http = httpx.Client(base_url=API_URL, transport=transport, timeout=30)

    def start(self) -> None:
        """Start all programs and wait until the node is ready; then add its GPUs.

        Raises:
            DaemonFailed: A program does not start.
            TimeoutError: The node does not become ready.
        """
        make_network()
        self.control_plane.start()
        self.node.start()
        wait_until(self._is_node_ready, _NODE_TIMEOUT_S, "the node is ready")
        wait_until(self._has_service_account, _NODE_TIMEOUT_S, "the default service account exists")
        # Add the GPUs as a device plugin does; the kubelet does not remove them.
        patch = [
            {
                "op": "add",
                "path": f"/status/capacity/{GPU_RESOURCE.replace('/', '~1')}",
                "value": str(NUM_GPUS),
            }
        ]
        arguments = ("patch", "node", NODE_NAME, "--subresource=status", "--type=json")
        self.kubectl(*arguments, "-p", json.dumps(patch))

    def close(self) -> None:
        """Close the client connections. The cluster keeps running."""
        self._http.close()

    def stop(self) -> None:
        """Kill every program. Remaining containers die with the PID namespace."""
        node = (self.node.kubelet, self.node.kube_proxy, self.runtime.daemon)
        for daemon in (*node, *reversed(self.control_plane.daemons)):
            daemon.kill()
        self.close()

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl as an administrator and return what it prints.

        Raises:
            CommandFailed: It fails.
        """
        return self._run("kubectl", arguments, stdin)

    def helm(self, *arguments: str) -> str:
        """Run helm as an administrator and return what it prints.

        Raises:
            CommandFailed: It fails.
        """
        return self._run("helm", arguments, None)

    def get(self, kind: str, name: str, namespace: str) -> dict[str, Any]:
        """Return one object.

        Raises:
            httpx.HTTPStatusError: The object does not exist, or the API server fails.
        """
        return self._read(f"{_path(kind, namespace)}/{name}", {})

    def list(self, kind: str, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        """Return the objects of a kind.

        Raises:
            httpx.HTTPStatusError: The API server fails.
        """
        query = {"labelSelector": selector} if selector else {}
        items: list[dict[str, Any]] = self._read(_path(kind, namespace), query)["items"]
        return items

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables with which programs access this cluster."""
        path = f"{self.binaries}:{os.environ['PATH']}"
        helm = {
            f"HELM_{kind}_HOME": str(self.folder / "helm") for kind in ("CACHE", "CONFIG", "DATA")
        }
        return {**os.environ, **helm, "PATH": path, "KUBECONFIG": str(self.kubeconfig)}

    def _read(self, path: str, query: dict[str, str]) -> dict[str, Any]:
        """Send a GET request directly: tests poll often, and each start of kubectl is slow."""
        answer = self._http.get(path, params=query)
        answer.raise_for_status()
        document: dict[str, Any] = answer.json()
        return document

    def _run(self, program: str, arguments: tuple[str, ...], stdin: str | None) -> str:
        done = subprocess.run(
            [str(self.binaries / program), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            env=self.environment,
            check=False,
        )
        if done.returncode != 0:
            raise CommandFailed(f"{program} {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def _has_service_account(self) -> bool:
        return bool(self.list("serviceaccounts", "default"))

    def _is_node_ready(self) -> bool:
        try:
            node = json.loads(self.kubectl("get", "node", NODE_NAME, "--output=json"))
        except CommandFailed:
            return False
        conditions = {each["type"]: each["status"] for each in node["status"].get("conditions", [])}
        return conditions.get("Ready") == "True"


def find_cluster() -> Cluster:
    """Return the cluster of the current run, which may not have started yet."""
    return Cluster(find_binaries(), find_cache(), Path(os.environ[RUN_VARIABLE]))


def wait_until(holds: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Poll until the condition holds.

    Raises:
        TimeoutError: The condition did not hold in time.
    """
    end_s = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > end_s:
            raise TimeoutError(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.1)


def _path(kind: str, namespace: str) -> str:
    return f"/{_GROUPS[kind]}/namespaces/{namespace}/{kind}"


def _as_admin(credentials: Credentials) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(credentials.authority))
    context.load_cert_chain(credentials.certificate(ADMIN.name), credentials.key(ADMIN.name))
    return context

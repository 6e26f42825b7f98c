"""etcd, the API server, the controller manager and the scheduler of one cluster.

Owns their command lines. Ports are fixed, because the network namespace is isolated.
"""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from pathlib import Path

from tests.cluster.harness.credentials import (
    API_PORT,
    API_SERVER,
    API_URL,
    CONTROLLER_MANAGER,
    NODE_ADDRESS,
    SCHEDULER,
    Credentials,
)
from tests.cluster.harness.daemons import Daemon

SERVICE_RANGE = "10.96.0.0/16"
_ETCD_URL = "http://127.0.0.1:2379"
_START_TIMEOUT_S = 60.0

_AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  users: ["system:apiserver", "system:kube-controller-manager", "system:kube-scheduler"]
- level: Metadata
"""


class ControlPlane:
    """Starts the control plane in order. ``api_server`` may be killed and started again."""

    def __init__(self, binaries: Path, folder: Path, credentials: Credentials) -> None:
        self._folder = folder
        self._credentials = credentials
        self.audit_log = folder / "audit.log"
        policy = folder / "audit-policy.yaml"
        policy.write_text(_AUDIT_POLICY)
        logs = folder / "logs"
        self.etcd = Daemon(
            "etcd",
            [
                str(binaries / "server"),
                f"--data-dir={folder / 'etcd'}",
                f"--listen-client-urls={_ETCD_URL}",
                f"--advertise-client-urls={_ETCD_URL}",
                # The data need not survive a power failure.
                "--unsafe-no-fsync",
                "--log-level=warn",
            ],
            logs / "etcd.log",
        )
        self.api_server = Daemon(
            "kube-apiserver",
            [str(binaries / "kube-apiserver"), *self._api_server_flags(policy)],
            logs / "kube-apiserver.log",
        )
        self.controller_manager = Daemon(
            "kube-controller-manager",
            [
                str(binaries / "kube-controller-manager"),
                f"--kubeconfig={credentials.kubeconfig(CONTROLLER_MANAGER)}",
                f"--root-ca-file={credentials.authority}",
                f"--service-account-private-key-file={credentials.key('server')}",
                "--use-service-account-credentials",
                "--leader-elect=false",
            ],
            logs / "kube-controller-manager.log",
        )
        self.scheduler = Daemon(
            "kube-scheduler",
            [
                str(binaries / "kube-scheduler"),
                f"--kubeconfig={credentials.kubeconfig(SCHEDULER)}",
                "--leader-elect=false",
            ],
            logs / "kube-scheduler.log",
        )

    @property
    def daemons(self) -> tuple[Daemon, ...]:
        """All daemons, in start order."""
        return (self.etcd, self.api_server, self.controller_manager, self.scheduler)

    def start(self) -> None:
        """Start all daemons, and wait until the API server is ready.

        Raises:
            DaemonFailed: A daemon does not start.
        """
        self.etcd.start()
        self.start_api_server()
        self.controller_manager.start()
        self.scheduler.start()

    def start_api_server(self) -> None:
        """Start the API server and wait until it is ready."""
        self.api_server.start()
        self.api_server.wait_until(self.is_ready, _START_TIMEOUT_S)

    def is_ready(self) -> bool:
        """Return whether the API server's ``/readyz`` succeeds."""
        context = ssl.create_default_context(cafile=str(self._credentials.authority))
        try:
            with urllib.request.urlopen(f"{API_URL}/readyz", context=context, timeout=2):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def _api_server_flags(self, policy: Path) -> list[str]:
        known = self._credentials
        return [
            f"--etcd-servers={_ETCD_URL}",
            f"--secure-port={API_PORT}",
            f"--advertise-address={NODE_ADDRESS}",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            f"--tls-cert-file={known.certificate('server')}",
            f"--tls-private-key-file={known.key('server')}",
            f"--client-ca-file={known.authority}",
            f"--kubelet-client-certificate={known.certificate(API_SERVER.name)}",
            f"--kubelet-client-key={known.key(API_SERVER.name)}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--service-account-key-file={known.key('server')}",
            f"--service-account-signing-key-file={known.key('server')}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--authorization-mode=Node,RBAC",
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self.audit_log}",
            # A restart need not wait for open connections.
            "--shutdown-delay-duration=0s",
        ]

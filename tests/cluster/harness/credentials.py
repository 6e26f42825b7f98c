"""A temporary certificate authority, and the identity of each component of the cluster.

Owns keys, certificates and kubeconfig files of one run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme
import yaml  # type: ignore[import-untyped]

NODE_NAME = "node-1"
NODE_ADDRESS = "10.250.0.1"
API_SERVICE_ADDRESS = "10.96.0.1"
API_PORT = 6443
API_URL = f"https://{NODE_ADDRESS}:{API_PORT}"


@dataclass(frozen=True)
class Identity:
    """A user and group of the API server, as in a client certificate."""

    name: str
    user: str
    group: str | None = None


ADMIN = Identity("admin", "admin", "system:masters")
API_SERVER = Identity("kube-apiserver", "kube-apiserver", "system:masters")
CONTROLLER_MANAGER = Identity("controller-manager", "system:kube-controller-manager")
SCHEDULER = Identity("scheduler", "system:kube-scheduler")
KUBELET = Identity("kubelet", f"system:node:{NODE_NAME}", "system:nodes")
KUBE_PROXY = Identity("kube-proxy", "system:kube-proxy")
IDENTITIES = (ADMIN, API_SERVER, CONTROLLER_MANAGER, SCHEDULER, KUBELET, KUBE_PROXY)


class Credentials:
    """The credentials in ``folder``, which are created if they do not exist."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        if not folder.is_dir():
            folder.mkdir(parents=True)
            authority = trustme.CA()
            authority.cert_pem.write_to_path(str(self.authority))
            self._write_server(authority)
            for identity in IDENTITIES:
                self._write_client(authority, identity)

    @property
    def authority(self) -> Path:
        """The certificate of the CA, which all components trust."""
        return self._folder / "ca.crt"

    def certificate(self, name: str) -> Path:
        """The certificate of an identity, or of the server."""
        return self._folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        """The key of an identity, or of the server."""
        return self._folder / f"{name}.key"

    def kubeconfig(self, identity: Identity) -> Path:
        """The kubeconfig file of that identity."""
        return self._folder / f"{identity.name}.kubeconfig"

    def _write_server(self, authority: trustme.CA) -> None:
        """Write the server certificate of the API server, which the proxy uses too."""
        hosts = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost")
        leaf = authority.issue_cert(*hosts, "127.0.0.1", NODE_ADDRESS, API_SERVICE_ADDRESS)
        self._write("server", leaf)

    def _write_client(self, authority: trustme.CA, identity: Identity) -> None:
        leaf = authority.issue_cert(
            f"{identity.name}.internal",
            common_name=identity.user,
            organization_name=identity.group,
        )
        self._write(identity.name, leaf)
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "tests",
                    "cluster": {"server": API_URL, "certificate-authority": str(self.authority)},
                }
            ],
            "users": [
                {
                    "name": identity.name,
                    "user": {
                        "client-certificate": str(self.certificate(identity.name)),
                        "client-key": str(self.key(identity.name)),
                    },
                }
            ],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": identity.name}}],
            "current-context": "tests",
        }
        self.kubeconfig(identity).write_text(yaml.safe_dump(document))

    def _write(self, name: str, leaf: trustme.LeafCert) -> None:
        leaf.private_key_pem.write_to_path(str(self.key(name)))
        self.certificate(name).write_bytes(b"".join(p.bytes() for p in leaf.cert_chain_pems))

"""The single node: its network, kubelet and kube-proxy, with labels and taints of a V100 pool.

Owns their configuration. ``runtime`` starts containerd, which runs the containers.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from tests.cluster.harness.credentials import (
    KUBE_PROXY,
    KUBELET,
    NODE_ADDRESS,
    NODE_NAME,
    Credentials,
)
from tests.cluster.harness.daemons import Daemon
from tests.cluster.harness.runtime import Runtime

POD_RANGE = "10.244.0.0/16"
_POD_SUBNET = "10.244.0.0/24"
GPU_RESOURCE = "nvidia.com/gpu"
NUM_GPUS = 2
LABELS = {"nvidia.com/gpu.product": "Tesla-V100-SXM2-16GB", "nvidia.com/gpu.present": "true"}
TAINT = {"key": GPU_RESOURCE, "value": "present", "effect": "NoSchedule"}
CGROUP = "kvreg-cluster"
_INTERFACE = "node0"


class Node:
    """A kubelet and a kube-proxy with a container runtime."""

    def __init__(
        self, binaries: Path, folder: Path, credentials: Credentials, runtime: Runtime
    ) -> None:
        self._runtime = runtime
        self.pods_folder = folder / "kubelet"
        logs = folder / "logs"
        kubelet = _write(folder / "kubelet.yaml", _kubelet_configuration(runtime, credentials))
        proxy = _write(folder / "kube-proxy.yaml", _proxy_configuration(credentials))
        self.kubelet = Daemon(
            "kubelet",
            [
                str(binaries / "kubelet"),
                f"--config={kubelet}",
                f"--kubeconfig={credentials.kubeconfig(KUBELET)}",
                f"--hostname-override={NODE_NAME}",
                f"--node-ip={NODE_ADDRESS}",
                f"--root-dir={self.pods_folder}",
                f"--cert-dir={folder / 'kubelet-certificates'}",
                "--node-labels=" + ",".join(f"{k}={v}" for k, v in LABELS.items()),
            ],
            logs / "kubelet.log",
        )
        self.kube_proxy = Daemon(
            "kube-proxy",
            [str(binaries / "kube-proxy"), f"--config={proxy}"],
            logs / "kube-proxy.log",
        )

    def start(self) -> None:
        """Start all daemons. Returns before the API server shows the node as ready.

        Raises:
            DaemonFailed: containerd does not start.
            subprocess.CalledProcessError: The network cannot be created.
        """
        self._runtime.cni_config.mkdir()
        configuration = json.dumps(_network_configuration(self.pods_folder.parent))
        (self._runtime.cni_config / "10-kvreg.conflist").write_text(configuration)
        self._runtime.start()
        self.kubelet.start()
        self.kube_proxy.start()


def make_network() -> None:
    """Create an interface with the address of the node, and a default route.

    Raises:
        subprocess.CalledProcessError: A step fails.
    """
    for command in (
        "ip link set lo up",
        # A bridge without members, because some kernels lack dummy interfaces.
        f"ip link add {_INTERFACE} type bridge",
        f"ip address add {NODE_ADDRESS}/24 dev {_INTERFACE}",
        f"ip link set {_INTERFACE} up",
        f"ip route add default via {NODE_ADDRESS}",
        "sysctl --quiet --write net.ipv4.ip_forward=1",
    ):
        subprocess.run(command.split(), check=True)


def _write(path: Path, document: dict[str, Any]) -> Path:
    """Write a configuration if it does not exist: kube-proxy exits when its file changes."""
    if not path.exists():
        path.write_text(yaml.safe_dump(document))
    return path


def _kubelet_configuration(runtime: Runtime, credentials: Credentials) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{runtime.socket}",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(credentials.authority)},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{CGROUP}",
        "failCgroupV1": False,
        "failSwapOn": False,
        # Disable evictions for a full disk of the machine, and the garbage collection of images.
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
            "nodefs.inodesFree": "1%",
            "imagefs.inodesFree": "1%",
        },
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "registerWithTaints": [TAINT],
        "maxPods": 50,
    }


def _proxy_configuration(credentials: Credentials) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "hostnameOverride": NODE_NAME,
        "clusterCIDR": POD_RANGE,
        "clientConnection": {"kubeconfig": str(credentials.kubeconfig(KUBE_PROXY))},
        # The limits are global to the machine and cannot be set in a namespace.
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
    }


def _network_configuration(folder: Path) -> dict[str, Any]:
    return {
        "cniVersion": "0.4.0",
        "name": "kvreg",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": True,
                "ipMasq": True,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "dataDir": str(folder / "addresses"),
                    "ranges": [[{"subnet": _POD_SUBNET}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }

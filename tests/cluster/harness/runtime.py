"""containerd of one run, with images that are kept between runs.

Owns its configuration, and the removal of containers of earlier runs.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import IO

from tests.cluster.harness.daemons import Daemon
from tests.cluster.harness.places import Cache

PAUSE_IMAGE = "docker.io/kvreg/pause:test"
CNI_PLUGINS = Path("/usr/lib/cni")
_NAMESPACE = "k8s.io"
_START_TIMEOUT_S = 30.0
_PREFIX = "io.containerd."
# The state of sandboxes and containers in containerd's root folder.
_LEFTOVERS = ("io.containerd.grpc.v1.cri", "io.containerd.runtime.v2.task")

_COMMAND = "setpriv --pdeathsig KILL containerd --log-level warn"

_CONFIG = """\
version = 2
root = "{root}"
state = "{state}"
disabled_plugins = [{disabled}]

[grpc]
  address = "{socket}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # Containers start with the score of their parent where lowering it is not permitted.
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni_plugins}"
    conf_dir = "{cni_config}"
"""


class Runtime:
    """containerd with its state in ``folder``. ``for_pods`` enables the CRI for the kubelet."""

    def __init__(self, cache: Cache, folder: Path, *, for_pods: bool) -> None:
        self._cache = cache
        self.socket = folder / "containerd.sock"
        self.cni_config = folder / "cni"
        config = folder / "containerd.toml"
        disabled = [f"{_PREFIX}snapshotter.v1.{name}" for name in ("aufs", "btrfs", "zfs")]
        if not for_pods:
            disabled.append(f"{_PREFIX}grpc.v1.cri")
        config.write_text(
            _CONFIG.format(
                root=cache.containerd,
                state=folder / "containerd",
                disabled=", ".join(f'"{name}"' for name in disabled),
                socket=self.socket,
                pause=PAUSE_IMAGE,
                cni_plugins=CNI_PLUGINS,
                cni_config=self.cni_config,
            )
        )
        self.daemon = Daemon(
            "containerd",
            # containerd dies with its parent: otherwise it would keep the cache locked.
            [*_COMMAND.split(), "--config", str(config)],
            folder / "logs" / "containerd.log",
        )

    def start(self) -> None:
        """Start containerd with the kept images.

        Raises:
            DaemonFailed: containerd does not start.
        """
        for name in _LEFTOVERS:
            shutil.rmtree(self._cache.containerd / name, ignore_errors=True)
        self.daemon.start()
        self.daemon.wait_until(self.socket.exists, _START_TIMEOUT_S)

    def remove_containers(self) -> None:
        """Remove the records and file systems of containers of earlier runs."""
        for container in self.ctr("containers", "ls", "-q").split():
            self.ctr("containers", "rm", container)
        kept = {line.split()[0] for line in self.ctr("snapshots", "ls").splitlines()[1:]}
        for snapshot in kept:
            if not snapshot.startswith("sha256:"):
                self.ctr("snapshots", "rm", snapshot)

    def ctr(self, *arguments: str, stdin: IO[bytes] | None = None) -> str:
        """Run ``ctr`` and return its output.

        Raises:
            subprocess.CalledProcessError: ``ctr`` fails.
        """
        done = subprocess.run(
            ["ctr", "--address", str(self.socket), "-n", _NAMESPACE, *arguments],
            check=True,
            stdin=stdin,
            stdout=subprocess.PIPE,
        )
        return done.stdout.decode()

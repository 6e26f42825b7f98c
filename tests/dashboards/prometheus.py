"""Debian's Prometheus as a subprocess on the loopback, and a client of its API.

Owns its configuration and its process. The rules are those of the repository, with shorter times
where a test would wait for them.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import yaml
from tests.system_parts import require_part

RULES = Path(__file__).parents[2] / "dashboards/rules"
TARGET_LABELS = {"namespace": "here", "pod": "engine-0"}
"""The target labels that Kubernetes service discovery adds."""

_INTERVAL = "1s"
_TIMEOUT_S = 30.0
_POLL_S = 0.1


class Prometheus:
    """A running server and its query API."""

    def __init__(self, url: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self._http = httpx.Client(base_url=url, timeout=_TIMEOUT_S)
        self._process = process
        self._log = log
        self.restart_timeout()

    def restart_timeout(self) -> None:
        """Restart the timeout that all following waits share."""
        self._deadline_s = time.monotonic() + _TIMEOUT_S

    def query(self, expr: str) -> list[dict[str, Any]]:
        """Evaluate an expression now; raises for an invalid one."""
        answer = self._http.get("/api/v1/query", params={"query": expr})
        assert answer.is_success, f"{expr}: {answer.text}"
        return list(answer.json()["data"]["result"])

    def wait_for(
        self, expr: str, is_sufficient: Callable[[list[dict[str, Any]]], bool] = bool
    ) -> list[dict[str, Any]]:
        """Query until the result is sufficient; return it, or the last one at the timeout."""
        while True:
            answer = self.query(expr)
            if is_sufficient(answer) or time.monotonic() > self._deadline_s:
                return answer
            time.sleep(_POLL_S)

    def wait_until_ready(self) -> None:
        """Wait until the server is ready."""
        while time.monotonic() < self._deadline_s and self._process.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                if self._http.get("/-/ready").is_success:
                    return
            time.sleep(_POLL_S)
        raise RuntimeError(f"Prometheus did not start: {self._log.read_text()}")

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


@contextlib.contextmanager
def running_prometheus(target: str, folder: Path) -> Iterator[Prometheus]:
    """Scrape ``target``, a host and port, every second; store all files in ``folder``."""
    address = f"127.0.0.1:{_free_port()}"
    config, log = folder / "prometheus.yaml", folder / "log"
    config.write_text(yaml.safe_dump(_config(target, _write_rules(folder))))
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                require_part("prometheus"),
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=output,
            stderr=output,
        )
    prometheus = Prometheus(f"http://{address}", process, log)
    try:
        prometheus.wait_until_ready()
        yield prometheus
    finally:
        prometheus.close()
        # Its data is discarded, so that a clean shutdown is not needed.
        process.kill()
        process.wait()


def without_warm_up(expr: str) -> str:
    """Return the expression with a warm-up of 0 s instead of an hour."""
    return expr.replace(":seconds > 3600", ":seconds > 0")


def _config(target: str, rules: list[str]) -> dict[str, Any]:
    return {
        "global": {
            "scrape_interval": _INTERVAL,
            "scrape_timeout": _INTERVAL,
            "evaluation_interval": _INTERVAL,
        },
        "rule_files": rules,
        "scrape_configs": [
            {
                "job_name": "kvreg",
                "static_configs": [{"targets": [target], "labels": TARGET_LABELS}],
            }
        ],
    }


def _write_rules(folder: Path) -> list[str]:
    """Copy the rules with an evaluation every second and without warm-up."""
    written = []
    for path in RULES.glob("*.yaml"):
        rules = yaml.safe_load(path.read_text(encoding="utf-8"))
        for group in rules["groups"]:
            group.pop("interval", None)
            for rule in group["rules"]:
                rule["expr"] = without_warm_up(rule["expr"])
        copy = folder / path.name
        copy.write_text(yaml.safe_dump(rules), encoding="utf-8")
        written.append(str(copy))
    return written


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])

"""Debian's Prometheus as a process of its own on the loopback, and what it answers.

Owns its configuration, its start and its end. The rules are those of the repository, with times
shortened where a test would wait for them.
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
PLACE = {"namespace": "here", "pod": "engine-0"}
"""What discovery in a cluster adds to each target."""

_PACE = "1s"
_TIMEOUT_S = 30.0
_POLL_S = 0.1


class Prometheus:
    """A running server. Every question may be asked before its answer is there."""

    def __init__(self, url: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self._http = httpx.Client(base_url=url, timeout=_TIMEOUT_S)
        self._process = process
        self._log = log
        self.expect_soon()

    def expect_soon(self) -> None:
        """Begin the time within which everything that is waited for has to be there."""
        self._deadline_s = time.monotonic() + _TIMEOUT_S

    def query(self, expr: str) -> list[dict[str, Any]]:
        """Evaluate an expression at this moment; raise for one that is wrong."""
        answer = self._http.get("/api/v1/query", params={"query": expr})
        assert answer.is_success, f"{expr}: {answer.text}"
        return list(answer.json()["data"]["result"])

    def wait_for(
        self, expr: str, is_enough: Callable[[list[dict[str, Any]]], bool] = bool
    ) -> list[dict[str, Any]]:
        """Ask until the answer is enough, and return it; when time is up, return what there is."""
        while True:
            answer = self.query(expr)
            if is_enough(answer) or time.monotonic() > self._deadline_s:
                return answer
            time.sleep(_POLL_S)

    def wait_until_ready(self) -> None:
        """Return when it answers."""
        while time.monotonic() < self._deadline_s and self._process.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                if self._http.get("/-/ready").is_success:
                    return
            time.sleep(_POLL_S)
        raise RuntimeError(f"Prometheus did not start: {self._log.read_text()}")

    def close(self) -> None:
        """Let go of connections."""
        self._http.close()


@contextlib.contextmanager
def running_prometheus(target: str, folder: Path) -> Iterator[Prometheus]:
    """Scrape ``target``, a host and port, every second; keep everything in ``folder``."""
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
        # Its data is thrown away: there is nothing that it should finish.
        process.kill()
        process.wait()


def warm_at_once(expr: str) -> str:
    """Return the expression for whom an engine is warm without waiting for an hour."""
    return expr.replace(":seconds > 3600", ":seconds > 0")


def _config(target: str, rules: list[str]) -> dict[str, Any]:
    return {
        "global": {"scrape_interval": _PACE, "scrape_timeout": _PACE, "evaluation_interval": _PACE},
        "rule_files": rules,
        "scrape_configs": [
            {"job_name": "kvreg", "static_configs": [{"targets": [target], "labels": PLACE}]}
        ],
    }


def _write_rules(folder: Path) -> list[str]:
    """Copy the rules, evaluated every second and with engines that are warm at once."""
    written = []
    for path in RULES.glob("*.yaml"):
        rules = yaml.safe_load(path.read_text(encoding="utf-8"))
        for group in rules["groups"]:
            group.pop("interval", None)
            for rule in group["rules"]:
                rule["expr"] = warm_at_once(rule["expr"])
        copy = folder / path.name
        copy.write_text(yaml.safe_dump(rules), encoding="utf-8")
        written.append(str(copy))
    return written


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])

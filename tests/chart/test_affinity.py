"""The example of a proxy, run by a real Envoy: a session returns to its engine."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import envoy
import httpx
import pytest
import yaml
from tests.chart.helm import EXAMPLES

BINARY = Path(envoy.__file__).parent / "_bin" / "envoy"
SESSIONS = [f"session-{number}" for number in range(60)]
TIMEOUT_S = 30.0


class StandIn:
    """A stub of a named engine, with readiness and drain."""

    def __init__(self, name: str) -> None:
        self.is_draining = False
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                is_refused = stand_in.is_draining and self.path == "/readyz"
                body = name.encode()
                self.send_response(503 if is_refused else 200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def engines() -> Iterator[dict[str, StandIn]]:
    engines = {name: StandIn(name) for name in ("kvreg-0", "kvreg-1")}
    yield engines
    for engine in engines.values():
        engine.close()


def configuration(engines: dict[str, StandIn], port: int) -> dict[str, Any]:
    """Return the configuration of the example, with the addresses of this test."""
    (example, *_) = yaml.safe_load_all((EXAMPLES / "affinity" / "envoy.yaml").read_text())
    loaded: dict[str, Any] = yaml.safe_load(example["data"]["envoy.yaml"])
    (listener,) = loaded["static_resources"]["listeners"]
    listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": port}
    (cluster,) = loaded["static_resources"]["clusters"]
    (group,) = cluster["load_assignment"]["endpoints"]
    for place in group["lb_endpoints"]:
        name = place["metadata"]["filter_metadata"]["envoy.lb"]["hash_key"]
        address = {"address": "127.0.0.1", "port_value": engines[name].port}
        place["endpoint"]["address"]["socket_address"] = address
    for check in cluster["health_checks"]:
        # The shortest interval of Envoy, so that the test does not wait.
        check["interval"] = check["no_traffic_interval"] = "0.1s"
    return loaded


@pytest.fixture
def proxy(engines: dict[str, StandIn], tmp_path: Path) -> Iterator[httpx.Client]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = tmp_path / "envoy.yaml"
    path.write_text(yaml.safe_dump(configuration(engines, port)))
    command = [str(BINARY), "-c", str(path), "--use-dynamic-base-id", "--log-level", "warn"]
    log = (tmp_path / "envoy.log").open("wb")
    process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            await_places(client, lambda found: set(found.values()) == set(engines))
            yield client
    finally:
        process.terminate()
        process.wait(timeout=TIMEOUT_S)
        log.close()


def place_of(client: httpx.Client, session: str) -> str | None:
    """Return the name of the engine that answers for a session, if any does."""
    try:
        answer = client.get("/v1/models", headers={"x-session-id": session})
    except httpx.TransportError:
        return None
    return answer.text if answer.status_code == 200 else None


def places(client: httpx.Client) -> dict[str, str | None]:
    return {session: place_of(client, session) for session in SESSIONS}


def settled_places(client: httpx.Client) -> dict[str, str | None]:
    """Return the routes of the sessions once they have stopped changing."""
    found = places(client)
    while (again := places(client)) != found:
        found = again
    return found


def await_places(
    client: httpx.Client, are_right: Callable[[dict[str, str | None]], bool]
) -> dict[str, str | None]:
    """Wait until the requests of the sessions reach these engines."""
    end_s = time.monotonic() + TIMEOUT_S
    while not are_right(found := places(client)):
        assert time.monotonic() < end_s, f"requests go to {Counter(found.values())}"
    return found


def test_session_comes_back_to_its_engine(proxy: httpx.Client) -> None:
    first = settled_places(proxy)
    assert all(places(proxy) == first for _ in range(3))
    assert min(Counter(first.values()).values()) > len(SESSIONS) / 4


def test_engine_that_drains_gives_up_its_own_sessions_only_and_gets_them_back(
    proxy: httpx.Client, engines: dict[str, StandIn]
) -> None:
    before = settled_places(proxy)
    engines["kvreg-0"].is_draining = True
    await_places(proxy, lambda found: set(found.values()) == {"kvreg-1"})
    engines["kvreg-0"].is_draining = False
    await_places(proxy, lambda found: found == before)


@pytest.mark.parametrize("path", ["/admin/drain", "/metrics"])
def test_what_speaks_of_one_engine_is_not_passed_on(proxy: httpx.Client, path: str) -> None:
    assert proxy.get(path).status_code == 404

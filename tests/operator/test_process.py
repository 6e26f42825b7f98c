"""The whole process with a fake API server: it starts, works within its rights, and ends."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from dashboards.operator_metrics import OPERATOR_METRICS
from tests.operator.cluster_objects import (
    POD_PATH,
    PROFILE_PATH,
    TARGET_PATH,
    hash_of,
    put_pod,
    put_profile,
    put_target,
)
from tests.operator.fake_api import FakeApi, Request, path_of

pytestmark = pytest.mark.slow(reason="starts the operator as a process in each test")

# The rights of the chart's Role. Discovery needs none.
RIGHTS = {
    "kvregistryprofiles": {"list", "watch"},
    "kvregistryprofiles/status": {"patch"},
    "statefulsets": {"get", "list", "watch", "patch"},
    "pods": {"get", "list", "watch", "delete"},
    "configmaps": {"list", "create", "patch", "delete"},
    "events": {"create", "patch"},
    "jobs": {"list", "create", "delete"},
}
DISCOVERY = re.compile(r"/apis?(/[^/]+){0,2}")
TIMEOUT_S = 30.0


@dataclass
class Operator:
    """A running process. Its log is its standard output."""

    process: asyncio.subprocess.Process
    healthz: str
    metrics: str
    log: Path

    async def end(self) -> int:
        """Send SIGTERM and return the exit status."""
        self.process.terminate()
        return await asyncio.wait_for(self.process.wait(), TIMEOUT_S)

    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@asynccontextmanager
async def run_operator(api: FakeApi, tmp_path: Path, **settings: str) -> AsyncIterator[Operator]:
    ports = [free_port(), free_port()]
    environment = {
        # Nothing of the machine's environment, or a test could reach a real cluster.
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "KUBECONFIG": str(api.write_kubeconfig(tmp_path / "kubeconfig")),
        "KVREG_OPERATOR_NAMESPACES": "serving",
        "KVREG_OPERATOR_LIVENESS_PORT": str(ports[0]),
        "KVREG_OPERATOR_METRICS_PORT": str(ports[1]),
        **{f"KVREG_OPERATOR_{name.upper()}": value for name, value in settings.items()},
    }
    path = tmp_path / "log"
    with path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "kvreg_operator", env=environment, stdout=log, stderr=log
        )
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    try:
        yield Operator(process, f"{urls[0]}/healthz", f"{urls[1]}/metrics", path)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def until(condition: Callable[[], bool], operator: Operator) -> None:
    """Wait until the process has done something."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():  # noqa: ASYNC110 - it is another process
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(operator.log.read_text()) from None


async def get(url: str) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as http:
        return await http.get(url)


def run(
    tmp_path: Path,
    story: Callable[[FakeApi, Operator], Awaitable[None]],
    **settings: str,
) -> None:
    """Run a story with the process, in a cluster whose idle pod does not serve the profile yet."""

    async def play() -> None:
        api = FakeApi()
        async with api.serve():
            put_profile(api)
            put_target(api)
            put_pod(api)
            async with run_operator(api, tmp_path, **settings) as operator:
                await until(lambda: watched(api) == 3, operator)
                await story(api, operator)

    asyncio.run(play())


def watched(api: FakeApi) -> int:
    return len({request.path for request in api.requests if request.is_watch})


def condition(api: FakeApi, condition_type: str) -> str | None:
    conditions = api.objects[PROFILE_PATH].get("status", {}).get("conditions", [])
    return next((c["status"] for c in conditions if c["type"] == condition_type), None)


def right(request: Request) -> tuple[str, str]:
    """Return the resource and the verb that a request needs."""
    tail = request.path.partition("/namespaces/serving/")[2].split("/")
    resource = "/".join([tail[0], *tail[2:]])
    if request.is_watch:
        return resource, "watch"
    if request.method == "GET":
        return resource, "get" if len(tail) > 1 else "list"
    return resource, {"POST": "create", "PATCH": "patch", "DELETE": "delete"}[request.method]


def test_profile_is_rolled_within_the_rights_of_a_role(tmp_path: Path) -> None:
    async def story(api: FakeApi, operator: Operator) -> None:
        await until(lambda: POD_PATH not in api.objects, operator)
        api.engine.is_draining = False
        put_pod(api, hash_of())
        await until(lambda: condition(api, "Ready") == "True", operator)
        scrape = (await get(operator.metrics)).text
        assert [name for name in OPERATOR_METRICS if f"\n{name}" not in scrape] == []
        assert (await get(operator.healthz)).status_code == 200
        assert await operator.end() == 0
        used = {right(r) for r in api.requests if DISCOVERY.fullmatch(r.path) is None}
        assert {each for each in used if each[1] not in RIGHTS.get(each[0], set())} == set()
        # The operator changes nothing but the template and the strategy of objects of others.
        patched = {r.path for r in api.writes if r.method == "PATCH"}
        name = f"chat-profile-{hash_of()}"
        assert patched == {f"{PROFILE_PATH}/status", TARGET_PATH, path_of("configmaps", name)}
        assert {line["level"] for line in operator.lines()} == {"INFO"}

    run(tmp_path, story)


def test_silent_watches_cost_a_resync_at_most(tmp_path: Path) -> None:
    async def story(api: FakeApi, operator: Operator) -> None:
        api.engine.running = 1
        await until(lambda: condition(api, "RolloutDeferred") == "True", operator)
        api.silenced.update({"kvregistryprofiles", "pods"})
        put_profile(api, rollout={"paused": True})
        await until(lambda: waits_for(api) == "Paused", operator)
        assert (await get(operator.healthz)).status_code == 200
        assert await operator.end() == 0

    run(tmp_path, story, resync_s="0.25")


def test_lists_that_fail_fail_the_probe_until_they_succeed_again(tmp_path: Path) -> None:
    async def story(api: FakeApi, operator: Operator) -> None:
        api.refusals["list pods"] = 500
        await until_probe(operator, 500)
        answer = await get(operator.healthz)
        assert "no resync has succeeded" in answer.text
        assert ": 500 " in answer.text
        api.refusals.clear()
        await until_probe(operator, 200)
        assert await operator.end() == 0

    run(tmp_path, story, deaf_after_s="0.5", resync_s="0.25")


async def until_probe(operator: Operator, status: int) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while (await get(operator.healthz)).status_code != status:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.02)


def count_lists(requests: list[Request]) -> int:
    return sum(right(request) == ("pods", "list") for request in requests)


def waits_for(api: FakeApi) -> str | None:
    status = api.objects[PROFILE_PATH].get("status", {})
    reason: str | None = status.get("waitingFor", {}).get("reason")
    return reason


def test_deleted_profile_is_no_error(tmp_path: Path) -> None:
    async def story(api: FakeApi, operator: Operator) -> None:
        api.engine.running = 1
        await until(lambda: condition(api, "RolloutDeferred") == "True", operator)
        before = api.objects[TARGET_PATH]
        api.remove(PROFILE_PATH)
        since = len(api.requests)
        await until(lambda: count_lists(api.requests[since:]) > 4, operator)
        assert api.objects[TARGET_PATH] == before
        assert await operator.end() == 0
        assert {line["level"] for line in operator.lines()} == {"INFO"}

    run(tmp_path, story, resync_s="0.2")


def test_unreadable_profile_does_not_stop_the_others(tmp_path: Path) -> None:
    async def story(api: FakeApi, operator: Operator) -> None:
        put_profile(api, "unreadable", currentState="Compress")
        await until(lambda: POD_PATH not in api.objects, operator)
        assert await operator.end() == 0
        errors = [line for line in operator.lines() if line["level"] == "ERROR"]
        assert len(errors) <= 1

    run(tmp_path, story)


def test_namespace_that_is_lost_does_not_stop_the_others(tmp_path: Path) -> None:
    async def play() -> None:
        api = FakeApi()
        async with api.serve():
            put_profile(api)
            put_target(api)
            put_pod(api)
            api.lost_namespaces.add("lost")
            async with run_operator(api, tmp_path, namespaces="lost,serving") as operator:
                await until(lambda: POD_PATH not in api.objects, operator)
                assert (await get(operator.healthz)).status_code == 200
                assert await operator.end() == 0
                errors = [str(e["message"]) for e in operator.lines() if e["level"] == "ERROR"]
                assert len([text for text in errors if "lost is not watched" in text]) == 1

    asyncio.run(play())


def test_settings_that_are_wrong_end_the_start(tmp_path: Path) -> None:
    async def play() -> tuple[int, str]:
        api = FakeApi()
        async with api.serve(), run_operator(api, tmp_path, resync_s="never") as operator:
            status = await asyncio.wait_for(operator.process.wait(), TIMEOUT_S)
            return status, operator.log.read_text()

    status, output = asyncio.run(play())
    assert status == 2
    assert "KVREG_OPERATOR_RESYNC_S = never" in output
    assert "Traceback" not in output


def test_signal_ends_a_process_that_waits_for_the_crd(tmp_path: Path) -> None:
    async def play() -> int:
        api = FakeApi()
        async with api.serve():
            api.refusals["list kvregistryprofiles"] = 404
            async with run_operator(api, tmp_path) as operator:
                await until(lambda: bool(api.requests), operator)
                return await operator.end()

    assert asyncio.run(play()) == 0

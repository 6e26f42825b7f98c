"""The lists of a namespace, and the wait for the CRD at the start."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.operator.cluster_objects import clients, put_profile, put_served
from tests.operator.fake_api import FakeApi, path_of

from kvreg_operator.clients.errors import OperatorError, PermanentError
from kvreg_operator.watch import lists as lists_module
from kvreg_operator.watch.lists import Listing, Lists


def read(api: FakeApi, namespace: str = "serving") -> Listing:
    async def run() -> Listing:
        async with clients(api) as (cluster, _):
            return await Lists(cluster).read(namespace)

    return asyncio.run(run())


def wait(api: FakeApi, namespaces: Sequence[str] = ("serving",)) -> None:
    async def run() -> None:
        async with clients(api) as (cluster, _):
            await Lists(cluster).wait_for_crd(namespaces)

    asyncio.run(run())


def test_targets_are_those_that_profiles_name() -> None:
    api = FakeApi()
    put_served(api)
    put_profile(api, "other", targetRef={"name": "embed"})
    put_profile(api, "of-another-shape", targetRef="embed")
    assert read(api) == Listing(frozenset({"chat", "embed"}))


def test_one_pod_is_enough_to_know_that_pods_can_be_listed() -> None:
    api = FakeApi()
    put_served(api)
    read(api)
    (listed,) = [request for request in api.requests if request.path == path_of("pods")]
    assert listed.query == {"limit": "1"}


def test_profiles_that_can_be_listed_in_any_namespace_end_the_wait() -> None:
    api = FakeApi()
    api.lost_namespaces.add("lost")
    wait(api, ["lost", "serving"])


def test_namespaces_that_are_all_refused_end_the_wait_at_once() -> None:
    api = FakeApi()
    api.lost_namespaces.update({"lost", "serving"})
    with pytest.raises(PermanentError, match="403"):
        wait(api, ["lost", "serving"])
    assert len(api.requests) == 2


@pytest.mark.parametrize(
    ("status", "message"),
    [(404, "the CRD kvregistryprofiles.kvreg.dev is not installed"), (500, "500")],
)
def test_wait_ends_in_its_time(status: int, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists_module, "CRD_TIMEOUT_S", 0.0)
    api = FakeApi()
    api.refusals["list kvregistryprofiles"] = status
    with pytest.raises(OperatorError, match=message):
        wait(api)

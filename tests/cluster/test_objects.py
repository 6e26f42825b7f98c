"""What is rendered is taken by a real API server, and goes again; definitions can be upgraded."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.chart.renderings import all_renderings
from tests.cluster.conftest import MakeRelease
from tests.cluster.harness.cluster import Cluster, CommandFailed
from tests.cluster.harness.definitions import GATEWAY, MONITORING, Origin, ensure_definitions
from tests.cluster.harness.places import find_cache
from tests.cluster.harness.release import CHART, PROFILES, Release, base_values

from kvreg_operator.manifests.stateful_set import build_template_patch

GATEWAY_EXAMPLE = CHART / "examples" / "affinity" / "envoy-gateway.yaml"
CRD = CHART / "files" / "kvregistryprofiles.yaml"
KINDS = "statefulsets,deployments,services,configmaps,secrets,serviceaccounts,roles,rolebindings,"
KINDS += "networkpolicies,poddisruptionbudgets,pods,persistentvolumeclaims,jobs,leases"


@contextmanager
def defined(cluster: Cluster, origin: Origin, *files: str) -> Iterator[None]:
    """Let the API server know resources that others own."""
    folder = ensure_definitions(find_cache(), origin)
    options = [option for file in files for option in ("-f", str(folder / file))]
    # Too large for the annotation that a client-side apply would write.
    cluster.kubectl("create", *options)
    try:
        cluster.kubectl("wait", *options, "--for=condition=Established", "--timeout=30s")
        yield
    finally:
        cluster.kubectl("delete", *options, "--wait=false")


@pytest.fixture(scope="module")
def with_monitoring(cluster: Cluster) -> Iterator[Cluster]:
    kinds = ("podmonitors", "servicemonitors", "prometheusrules")
    with defined(cluster, MONITORING, *(f"monitoring.coreos.com_{kind}.yaml" for kind in kinds)):
        yield cluster


def test_api_server_takes_every_rendering(with_monitoring: Cluster) -> None:
    for name, objects in all_renderings():
        namespaces = {o["metadata"]["namespace"] for o in objects if "namespace" in o["metadata"]}
        for namespace in namespaces:
            manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
            with_monitoring.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
        text = yaml.safe_dump_all(objects)
        options = ("--dry-run=server", "--server-side", "--force-conflicts", "--validate=strict")
        told = with_monitoring.kubectl("apply", "-f", "-", *options, stdin=text)
        assert len(told.splitlines()) == len(objects), name


@pytest.mark.parametrize("file", sorted((CHART / "examples" / "profiles").glob("*.yaml")))
def test_api_server_takes_every_example(cluster: Cluster, file: Path) -> None:
    cluster.kubectl("apply", "-f", str(file), "--dry-run=server", "--validate=strict")


def test_api_server_takes_the_example_of_a_gateway(cluster: Cluster) -> None:
    policies = "generated/gateway.envoyproxy.io_backendtrafficpolicies.yaml"
    with defined(cluster, GATEWAY, "gatewayapi-crds.yaml", policies):
        options = ("-f", str(GATEWAY_EXAMPLE), "--dry-run=server", "--validate=strict")
        told = cluster.kubectl("apply", *options)
    assert len(told.splitlines()) == 2


def test_uninstalled_release_leaves_the_definition_only(
    cluster: Cluster, make_release: MakeRelease
) -> None:
    release = make_release()
    release.serve()
    release.kubectl("delete", PROFILES, release.name)
    cluster.helm("uninstall", release.name, f"--namespace={release.namespace}", "--wait")

    def left() -> set[str]:
        names = release.kubectl("get", KINDS, "-o", "name").split()
        return {n for n in names if "kube-root-ca" not in n and not n.endswith("account/default")}

    release.wait_until(lambda: left() == set(), "everything is gone")
    cluster.kubectl("get", "crd", PROFILES)


def test_apply_of_the_operator_does_not_bring_a_target_back(
    cluster: Cluster, make_release: MakeRelease
) -> None:
    release = make_release()
    target = cluster.get("statefulsets", release.name, release.namespace)
    manifest = build_template_patch(
        namespace=release.namespace,
        target_name=release.name,
        container="engine",
        settings_hash="abc",
    )
    manifest["metadata"] |= {name: target["metadata"][name] for name in ("uid", "resourceVersion")}
    release.kubectl("delete", "statefulset", release.name, "--wait")
    user = f"--as=system:serviceaccount:{release.namespace}:{release.name}-operator"
    # A conflict, which the operator meets with another look, and not the lack of a right.
    with pytest.raises(CommandFailed, match="uid mismatch"):
        release.kubectl("apply", "--server-side", user, "-f", "-", stdin=json.dumps(manifest))


@pytest.mark.alone
def test_definition_that_a_release_brought_stays_with_its_profiles(cluster: Cluster) -> None:
    cluster.kubectl("delete", "crd", PROFILES)
    values = {**base_values(), "crd": {"install": True}}
    release = Release(cluster, "brings-crd", values)
    try:
        release.install()
        release.apply(registryEntries=3)
        cluster.helm("uninstall", release.name, f"--namespace={release.namespace}", "--wait")
        assert release.profile["spec"]["registryEntries"] == 3
        # And the next installation of that name takes it over again.
        release.install()
        release.wait_for("Ready", "True")
    finally:
        cluster.kubectl("delete", "namespace", release.namespace, "--wait=false")


def older(definition: dict[str, Any]) -> dict[str, Any]:
    """Return the definition as it was before canaries and anchors existed."""
    made = copy.deepcopy(definition)
    schema = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    for name in ("canary", "anchors"):
        del schema["spec"]["properties"][name]
    del schema["status"]["properties"]["waitingFor"]
    return made


@pytest.mark.alone
def test_upgraded_definition_stores_new_fields_and_keeps_the_status(
    cluster: Cluster, make_release: MakeRelease
) -> None:
    definition = yaml.safe_load(CRD.read_text())
    apply = ("apply", "--server-side", "--force-conflicts", "-f", "-")
    cluster.kubectl(*apply, stdin=json.dumps(older(definition)))
    release = make_release()
    release.serve(registryEntries=3)
    before, uids = release.profile["status"], release.uids()
    cluster.kubectl(*apply, stdin=json.dumps(definition))
    assert release.profile["status"] == before
    release.wait_for("Ready", "True")
    assert release.uids() == uids
    release.edit(anchors=1)
    release.wait_until(
        lambda: release.profile["status"].get("effective", {}).get("anchors") == 1,
        "the new field is served",
    )

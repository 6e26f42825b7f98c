"""A real API server accepts every rendered object, deletes them, and upgrades the CRD."""

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
def installed_crds(cluster: Cluster, origin: Origin, *files: str) -> Iterator[None]:
    """Install third-party CRDs while the block runs."""
    folder = ensure_definitions(find_cache(), origin)
    options = [option for file in files for option in ("-f", str(folder / file))]
    # The CRDs are too large for the annotation of a client-side apply.
    cluster.kubectl("create", *options)
    try:
        cluster.kubectl("wait", *options, "--for=condition=Established", "--timeout=30s")
        yield
    finally:
        cluster.kubectl("delete", *options, "--wait=false")


@pytest.fixture(scope="module")
def with_monitoring(cluster: Cluster) -> Iterator[Cluster]:
    kinds = ("podmonitors", "servicemonitors", "prometheusrules")
    with installed_crds(
        cluster, MONITORING, *(f"monitoring.coreos.com_{kind}.yaml" for kind in kinds)
    ):
        yield cluster


def test_api_server_accepts_every_rendering(with_monitoring: Cluster) -> None:
    for name, objects in all_renderings():
        namespaces = {o["metadata"]["namespace"] for o in objects if "namespace" in o["metadata"]}
        for namespace in namespaces:
            manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
            with_monitoring.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
        text = yaml.safe_dump_all(objects)
        options = ("--dry-run=server", "--server-side", "--force-conflicts", "--validate=strict")
        output = with_monitoring.kubectl("apply", "-f", "-", *options, stdin=text)
        assert len(output.splitlines()) == len(objects), name


@pytest.mark.parametrize("file", sorted((CHART / "examples" / "profiles").glob("*.yaml")))
def test_api_server_accepts_every_example(cluster: Cluster, file: Path) -> None:
    cluster.kubectl("apply", "-f", str(file), "--dry-run=server", "--validate=strict")


def test_api_server_accepts_the_gateway_example(cluster: Cluster) -> None:
    policies = "generated/gateway.envoyproxy.io_backendtrafficpolicies.yaml"
    with installed_crds(cluster, GATEWAY, "gatewayapi-crds.yaml", policies):
        options = ("-f", str(GATEWAY_EXAMPLE), "--dry-run=server", "--validate=strict")
        output = cluster.kubectl("apply", *options)
    assert len(output.splitlines()) == 2


def test_uninstall_leaves_only_the_crd(cluster: Cluster, make_release: MakeRelease) -> None:
    release = make_release()
    release.serve()
    release.kubectl("delete", PROFILES, release.name)
    cluster.helm("uninstall", release.name, f"--namespace={release.namespace}", "--wait")

    def left() -> set[str]:
        names = release.kubectl("get", KINDS, "-o", "name").split()
        return {n for n in names if "kube-root-ca" not in n and not n.endswith("account/default")}

    release.wait_until(lambda: left() == set(), "all objects are deleted")
    cluster.kubectl("get", "crd", PROFILES)


def test_apply_by_the_operator_does_not_recreate_a_deleted_target(
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
    # A conflict, after which the operator reconciles again, and not a missing permission.
    with pytest.raises(CommandFailed, match="uid mismatch"):
        release.kubectl("apply", "--server-side", user, "-f", "-", stdin=json.dumps(manifest))


@pytest.mark.alone
def test_crd_and_profiles_survive_an_uninstall(cluster: Cluster) -> None:
    cluster.kubectl("delete", "crd", PROFILES)
    values = {**base_values(), "crd": {"install": True}}
    release = Release(cluster, "brings-crd", values)
    try:
        release.install()
        release.apply(registryEntries=3)
        cluster.helm("uninstall", release.name, f"--namespace={release.namespace}", "--wait")
        assert release.profile["spec"]["registryEntries"] == 3
        # The next installation of that name adopts the CRD again.
        release.install()
        release.wait_for("Ready", "True")
    finally:
        cluster.kubectl("delete", "namespace", release.namespace, "--wait=false")


def without_new_fields(definition: dict[str, Any]) -> dict[str, Any]:
    """Return the CRD without the fields for canaries and anchors."""
    made = copy.deepcopy(definition)
    schema = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    for name in ("canary", "anchors"):
        del schema["spec"]["properties"][name]
    del schema["status"]["properties"]["waitingFor"]
    return made


@pytest.mark.alone
def test_upgraded_crd_stores_new_fields_and_keeps_the_status(
    cluster: Cluster, make_release: MakeRelease
) -> None:
    definition = yaml.safe_load(CRD.read_text())
    apply = ("apply", "--server-side", "--force-conflicts", "-f", "-")
    cluster.kubectl(*apply, stdin=json.dumps(without_new_fields(definition)))
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

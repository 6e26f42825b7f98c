"""The example profiles and the proxy match what the chart renders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml  # type: ignore[import-untyped]
from tests.chart.helm import EXAMPLES, Object, pod_template, render, render_notes, select

from kvreg_operator.crd.definition import build_crd
from kvreg_operator.crd.profile import GROUP, KIND, VERSION, ProfileSpec, ResourcePart

PROFILES = sorted((EXAMPLES / "profiles").glob("*.yaml"))


def read(path: Path) -> list[Object]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def unknown_fields(model: ResourcePart, given: dict[str, Any]) -> set[str]:
    """Return the fields that the API server would prune."""
    known = {field.alias or name: name for name, field in type(model).model_fields.items()}
    unknown = given.keys() - known.keys()
    for name in given.keys() & known.keys():
        part = getattr(model, known[name])
        if isinstance(part, ResourcePart):
            unknown |= unknown_fields(part, given[name])
    return unknown


def check_profile(profile: Object, target: str) -> None:
    assert (profile["apiVersion"], profile["kind"]) == (f"{GROUP}/{VERSION}", KIND)
    spec = ProfileSpec.model_validate(profile["spec"])
    assert unknown_fields(spec, profile["spec"]) == set()
    (version,) = build_crd()["spec"]["versions"]
    jsonschema_rs.validate(version["schema"]["openAPIV3Schema"], profile)
    assert spec.target_ref.name == target


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_profile_is_valid_and_names_the_engines_of_the_examples(path: Path) -> None:
    (profile,) = read(path)
    stateful_set = select(render(), "StatefulSet")
    check_profile(profile, stateful_set["metadata"]["name"])


def test_profiles_are_versions_of_one() -> None:
    assert {read(path)[0]["metadata"]["name"] for path in PROFILES} == {"kvreg"}


@pytest.mark.parametrize("release", ["kvreg", "agents"])
def test_profile_of_the_notes_is_valid(release: str) -> None:
    text = render_notes(release=release).partition("<<END\n")[2].partition("\nEND\n")[0]
    target = select(render(release=release), "StatefulSet")["metadata"]["name"]
    check_profile(yaml.safe_load(text), target)


def envoy_cluster() -> Object:
    config = yaml.safe_load(read(EXAMPLES / "affinity" / "envoy.yaml")[0]["data"]["envoy.yaml"])
    (cluster,) = config["static_resources"]["clusters"]
    assert isinstance(cluster, dict)
    return cluster


def test_proxy_knows_every_engine_by_the_name_of_its_pod() -> None:
    objects = render(examples=("two-replicas",))
    spec = select(objects, "StatefulSet")["spec"]
    name = select(objects, "StatefulSet")["metadata"]["name"]
    pods = [f"{name}-{number}" for number in range(spec["replicas"])]
    (group,) = envoy_cluster()["load_assignment"]["endpoints"]
    found = {
        place["metadata"]["filter_metadata"]["envoy.lb"]["hash_key"]: place["endpoint"]["address"]
        for place in group["lb_endpoints"]
    }
    assert found == {
        pod: {"socket_address": {"address": f"{pod}.{spec['serviceName']}", "port_value": 8000}}
        for pod in pods
    }


def test_proxy_is_let_through_to_the_engines() -> None:
    deployment = select(read(EXAMPLES / "affinity" / "envoy.yaml"), "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    spec = select(render(examples=("two-replicas",)), "NetworkPolicy", "kvreg")["spec"]
    chosen = [
        peer["podSelector"]["matchLabels"].items() <= labels.items()
        for peer in spec["ingress"][0]["from"]
        if "podSelector" in peer and "namespaceSelector" not in peer
    ]
    assert chosen == [True]


def test_proxy_asks_what_the_readiness_probe_asks() -> None:
    probe = pod_template(render())["spec"]["containers"][0]["readinessProbe"]["httpGet"]["path"]
    (check,) = envoy_cluster()["health_checks"]
    assert check["http_health_check"] == {"path": probe}


@pytest.mark.parametrize("name", ["envoy", "envoy-gateway"])
def test_both_proxies_go_by_the_same_header(name: str) -> None:
    assert "x-session-id" in (EXAMPLES / "affinity" / f"{name}.yaml").read_text(encoding="utf-8")
    assert "`x-session-id`" in (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")

"""References between objects, and between two releases: labels, ports and names."""

from __future__ import annotations

from typing import Any

import pytest
from tests.chart.helm import Object, container, pod_template, render, select, select_all

MONITORED = {"monitoring": {"enabled": True}}
BY_SERVICE = {"monitoring": {"enabled": True, "kind": "ServiceMonitor"}}
COMPONENTS = {"engine": "StatefulSet", "operator": "Deployment"}


def matches(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return selector.items() <= labels.items()


def labels_of_pods(objects: list[Object]) -> dict[str, dict[str, str]]:
    return {
        component: pod_template(objects, kind)["metadata"]["labels"]
        for component, kind in COMPONENTS.items()
    }


def selectors(objects: list[Object]) -> dict[str, dict[str, str]]:
    """Return the pod selectors of all objects, by kind and name."""
    found = {}
    for part in objects:
        spec = part.get("spec", {})
        match part["kind"]:
            case "Service":
                selector = spec["selector"]
            case "StatefulSet" | "Deployment" | "PodDisruptionBudget" | "PodMonitor":
                selector = spec["selector"]["matchLabels"]
            case "NetworkPolicy":
                selector = spec["podSelector"]["matchLabels"]
            case _:
                continue
        found[f"{part['kind']}/{part['metadata']['name']}"] = selector
    return found


@pytest.mark.parametrize("values", [MONITORED, BY_SERVICE])
def test_each_object_chooses_the_pods_of_its_component_and_no_others(
    values: dict[str, Any],
) -> None:
    objects = render(values)
    pods = labels_of_pods(objects)
    for name, selector in selectors(objects).items():
        component = "operator" if name.endswith("-operator") else "engine"
        chosen = [each for each, labels in pods.items() if matches(selector, labels)]
        assert chosen == [component], name


def test_labels_are_those_of_the_contract() -> None:
    for component, labels in labels_of_pods(render(release="r")).items():
        assert labels == {
            "app.kubernetes.io/name": "kvreg",
            "app.kubernetes.io/instance": "r",
            "app.kubernetes.io/component": component,
        }


@pytest.mark.parametrize("component", COMPONENTS)
def test_service_monitor_finds_one_service_with_its_port(component: str) -> None:
    objects = render(BY_SERVICE)
    name = "kvreg" if component == "engine" else "kvreg-operator"
    spec = select(objects, "ServiceMonitor", name)["spec"]
    services = [
        service
        for service in select_all(objects, "Service")
        if matches(spec["selector"]["matchLabels"], service["metadata"]["labels"])
    ]
    (service,) = services
    (port,) = service["spec"]["ports"]
    assert [endpoint["port"] for endpoint in spec["endpoints"]] == [port["name"]]


@pytest.mark.parametrize("component", COMPONENTS)
def test_pod_monitor_names_a_port_of_the_container(component: str) -> None:
    objects = render(MONITORED)
    name = "kvreg" if component == "engine" else "kvreg-operator"
    (endpoint,) = select(objects, "PodMonitor", name)["spec"]["podMetricsEndpoints"]
    ports = container(objects, COMPONENTS[component])["ports"]
    assert endpoint["port"] in [port["name"] for port in ports]


def test_ports_of_services_and_policies_are_ports_of_the_containers() -> None:
    objects = render(BY_SERVICE)
    pods = labels_of_pods(objects)
    for part in [*select_all(objects, "Service"), *select_all(objects, "NetworkPolicy")]:
        spec = part["spec"]
        selector = spec.get("selector") or spec["podSelector"]["matchLabels"]
        (component,) = (each for each, labels in pods.items() if matches(selector, labels))
        known = {port["name"] for port in container(objects, COMPONENTS[component])["ports"]}
        rules = spec.get("ingress") or [{"ports": spec.get("ports", [])}]
        used = {port.get("targetPort", port["port"]) for rule in rules for port in rule["ports"]}
        assert used <= known


def test_stateful_set_has_its_headless_service() -> None:
    objects = render()
    name = select(objects, "StatefulSet")["spec"]["serviceName"]
    spec = select(objects, "Service", name)["spec"]
    assert (spec["clusterIP"], spec["publishNotReadyAddresses"]) == ("None", True)


def peers(values: dict[str, Any]) -> list[Object]:
    spec = select(render(values), "NetworkPolicy", "kvreg")["spec"]
    return [peer for rule in spec["ingress"] for peer in rule["from"]]


@pytest.mark.parametrize(
    ("operator", "namespace"),
    [({}, "chat"), ({"enabled": False, "elsewhereNamespace": "ops"}, "ops")],
)
def test_operator_in_charge_reaches_the_engines(operator: dict[str, Any], namespace: str) -> None:
    labels = labels_of_pods(render())["operator"]
    found = peers({"operator": operator, "networkPolicy": {"from": [], "scrapers": []}})
    (peer,) = found
    assert matches(peer["podSelector"]["matchLabels"], labels)
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": namespace}


def test_empty_lists_allow_no_connection() -> None:
    values = {"operator": {"enabled": False}, "networkPolicy": {"from": [], "scrapers": []}}
    spec = select(render(values), "NetworkPolicy")["spec"]
    assert (spec["policyTypes"], spec["ingress"]) == (["Ingress"], [])


def test_single_engine_does_not_keep_its_node_from_being_drained() -> None:
    spec = select(render(), "PodDisruptionBudget")["spec"]
    assert spec["maxUnavailable"] == 1
    assert "minAvailable" not in spec


def test_two_releases_of_one_namespace_do_not_collide() -> None:
    second = {
        "operator": {"enabled": False, "elsewhereNamespace": "chat"},
        "crd": {"install": False},
    }
    releases = [render(MONITORED), render({**MONITORED, **second}, release="second")]
    names = [
        {(part["kind"], part["metadata"].get("namespace"), part["metadata"]["name"])
         for part in objects}
        for objects in releases
    ]  # fmt: skip
    assert not names[0] & names[1]
    labels = pod_template(releases[1])["metadata"]["labels"]
    assert not [name for name, sel in selectors(releases[0]).items() if matches(sel, labels)]


def test_two_operators_of_one_namespace_do_not_collide_in_names() -> None:
    first = {(p["kind"], p["metadata"]["name"]) for p in render()}
    second = {(p["kind"], p["metadata"]["name"]) for p in render(release="second")}
    assert first & second == {("CustomResourceDefinition", "kvregistryprofiles.kvreg.dev")}

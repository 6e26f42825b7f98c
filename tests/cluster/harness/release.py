"""A release of the chart in its own namespace: install, edit the profile, wait, send requests.

Owns the names and values that every test needs: the images of the tests, and tolerations for the
tainted node. Contains no checks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import openai
from tests.cluster.harness.cluster import Cluster, CommandFailed, wait_until
from tests.cluster.harness.images import ENGINE_IMAGE, OPERATOR_IMAGE
from tests.cluster.harness.node import TAINT
from tests.cluster.harness.places import REPOSITORY

CHART = REPOSITORY / "charts" / "kvreg"
CPU_DEMO = CHART / "examples" / "values-cpu-demo.yaml"
PROFILES = "kvregistryprofiles.kvreg.dev"
TIMEOUT_S = 150.0
MODEL = "kvreg-reference"

Values = Mapping[str, Any]


def image_values(image: str) -> dict[str, str]:
    """Return the chart values of an image that is on the node."""
    repository, _, tag = image.rpartition(":")
    # Never pull: no registry is reachable.
    return {"repository": repository, "tag": tag, "pullPolicy": "Never"}


def base_values(*, replicas: int = 1) -> dict[str, Any]:
    """Return the values that all test releases share."""
    toleration = [{"key": TAINT["key"], "operator": "Exists"}]
    return {
        "engine": {
            "replicas": replicas,
            "image": image_values(ENGINE_IMAGE),
            "tolerations": toleration,
            # No load balancer has to remove a terminating pod first.
            "preStopSeconds": 0,
            "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
            "probes": {"startup": {"periodSeconds": 1}, "readiness": {"periodSeconds": 1}},
        },
        "operator": {
            "image": image_values(OPERATOR_IMAGE),
            "tolerations": toleration,
            "resources": {"requests": {"cpu": "20m"}},
        },
        "crd": {"install": False},
    }


def merge(values: Values, changes: Values) -> dict[str, Any]:
    """Return the values with changes merged into them, as by helm."""
    merged = dict(values)
    for key, change in changes.items():
        earlier = merged.get(key)
        if isinstance(change, Mapping) and isinstance(earlier, Mapping):
            merged[key] = merge(earlier, change)
        else:
            merged[key] = change
    return merged


@dataclass
class Release:
    """A release with its engines, and at most one profile with the release's name."""

    cluster: Cluster
    namespace: str
    values: dict[str, Any]
    name: str = "kvreg"

    def install(self, **changes: Any) -> None:
        """Install or upgrade. ``changes`` are merged into the values permanently.

        Raises:
            CommandFailed: helm fails.
        """
        self.values = merge(self.values, changes)
        path = self.cluster.folder / f"{self.namespace}-values.json"
        path.write_text(json.dumps(self.values))
        files = [f"--values={file}" for file in (CPU_DEMO, path)]
        self.cluster.helm(
            "upgrade", "--install", self.name, str(CHART), *files,
            f"--namespace={self.namespace}", "--create-namespace",
        )  # fmt: skip

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl in the namespace."""
        return self.cluster.kubectl(f"--namespace={self.namespace}", *arguments, stdin=stdin)

    def wait_installed(self) -> None:
        """Wait until all engines and the operator are ready."""
        self.wait_ready(self.values["engine"]["replicas"])
        self.wait_ready(1, "operator")

    # The profile.

    def apply(self, **spec: Any) -> None:
        """Apply the profile with these fields of its spec.

        Raises:
            CommandFailed: The API server rejects it.
        """
        self.kubectl("apply", "-f", "-", stdin=json.dumps(self.profile_manifest(**spec)))

    def serve(self, **spec: Any) -> None:
        """Apply the profile, and wait until the engines serve it."""
        self.apply(**spec)
        self.wait_for("Ready", "True")

    def profile_manifest(self, **spec: Any) -> dict[str, Any]:
        """Return a profile with these fields of its spec and the required ones."""
        fields = {"targetRef": {"name": self.name}, "lanes": 1, "registryEntries": 2, **spec}
        return {
            "apiVersion": "kvreg.dev/v1alpha1",
            "kind": "KVRegistryProfile",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": fields,
        }

    def edit(self, **spec: Any) -> None:
        """Change fields of the spec; None removes one."""
        patch = json.dumps({"spec": spec})
        self.kubectl("patch", PROFILES, self.name, "--type=merge", "-p", patch)

    def ensure_ready_profile(self) -> None:
        """Wait for a ready profile: keep the current one if it is ready, else replace it."""
        if self.condition("Ready")[0] != "True":
            self.kubectl("replace", "-f", "-", stdin=json.dumps(self.profile_manifest()))
            self.wait_for("Ready", "True")

    @property
    def profile(self) -> dict[str, Any]:
        """The current profile of the API server."""
        return self.cluster.get("kvregistryprofiles", self.name, self.namespace)

    @property
    def other_entries(self) -> int:
        """A number of entries that differs from the current spec."""
        entries: int = self.profile["spec"]["registryEntries"]
        return entries + 1

    def condition(self, kind: str) -> tuple[str, str]:
        """Return status and reason of a condition, or two empty strings if it is outdated."""
        profile = self.profile
        for condition in profile.get("status", {}).get("conditions", []):
            if condition["type"] == kind:
                if condition["observedGeneration"] != profile["metadata"]["generation"]:
                    return ("", "")
                return (condition["status"], condition["reason"])
        return ("", "")

    def wait_for(self, kind: str, status: str, reason: str | None = None) -> None:
        """Wait until a condition has this status for the newest generation.

        Raises:
            TimeoutError: It did not in time; the message describes the release.
        """

        def holds() -> bool:
            found = self.condition(kind)
            return found[0] == status and reason in (None, found[1])

        self.wait_until(holds, f"{kind} is {status}" + (f" ({reason})" if reason else ""))

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        """Poll a condition; a timeout shows the profile, the pods and the operator's log."""
        try:
            wait_until(holds, TIMEOUT_S, what)
        except TimeoutError as err:
            raise TimeoutError(f"{err}\n{self.describe()}") from None

    def describe(self) -> str:
        """Return pods, profile and logs, as text for an error message."""
        parts = []
        for arguments in (
            ("get", "pods", "-o", "wide"),
            ("describe", PROFILES),
            ("logs", f"deployment/{self.name}-operator", "--tail=40"),
            ("get", "events", "--sort-by=.lastTimestamp"),
        ):
            try:
                parts.append(self.kubectl(*arguments))
            except CommandFailed as err:
                parts.append(str(err))
        return "\n".join(parts)

    # Pods.

    def pods(self, component: str = "engine") -> dict[str, dict[str, Any]]:
        """Return the pods of a component by name."""
        selector = f"app.kubernetes.io/instance={self.name},app.kubernetes.io/component={component}"
        found = self.cluster.list("pods", self.namespace, selector)
        return {pod["metadata"]["name"]: pod for pod in found}

    def uids(self, component: str = "engine") -> dict[str, str]:
        """Return the uids of the pods that are not terminating, by name."""
        return {
            name: pod["metadata"]["uid"]
            for name, pod in self.pods(component).items()
            if "deletionTimestamp" not in pod["metadata"]
        }

    def ready(self, component: str = "engine") -> set[str]:
        """Return the names of the pods that are ready."""
        return {name for name, pod in self.pods(component).items() if is_ready(pod)}

    def wait_ready(self, number: int, component: str = "engine") -> None:
        """Wait until that many pods are ready."""
        self.wait_until(lambda: len(self.ready(component)) == number, f"{number} {component} ready")

    @property
    def target(self) -> dict[str, Any]:
        """The StatefulSet."""
        return self.cluster.get("statefulsets", self.name, self.namespace)

    # Clients.

    def url(self) -> str:
        """Return the URL of the Service."""
        service = self.cluster.get("services", self.name, self.namespace)
        return f"http://{service['spec']['clusterIP']}:{service['spec']['ports'][0]['port']}"

    def pod_url(self, name: str, port: int = 8000) -> str:
        """Return the URL of a pod."""
        pod = self.cluster.get("pods", name, self.namespace)
        return f"http://{pod['status']['podIP']}:{port}"

    def client(self, url: str | None = None, **options: Any) -> openai.OpenAI:
        """Return the official openai client with these options."""
        return openai.OpenAI(base_url=f"{url or self.url()}/v1", api_key="unused", **options)


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod is ready."""
    conditions = {c["type"]: c["status"] for c in pod.get("status", {}).get("conditions", [])}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]

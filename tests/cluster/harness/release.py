"""One release of the chart in a namespace of its own, as the tests install, edit and ask it.

Owns names and values that every test needs: the images of the tests, and a place on the tainted
node. What should come of it is the tests' part.
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
    """Return what the chart needs to know of an image that is on the node."""
    repository, _, tag = image.rpartition(":")
    # Never, so that nothing is asked of a registry that cannot be reached.
    return {"repository": repository, "tag": tag, "pullPolicy": "Never"}


def base_values(*, replicas: int = 1) -> dict[str, Any]:
    """Return the values of every release here."""
    toleration = [{"key": TAINT["key"], "operator": "Exists"}]
    return {
        "engine": {
            "replicas": replicas,
            "image": image_values(ENGINE_IMAGE),
            "tolerations": toleration,
            # Nothing is in front of the pods that would have to forget them.
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
    """Return the values with changes laid over them, as helm does."""
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
    """A release with its engines, and at most one profile, of its own name."""

    cluster: Cluster
    namespace: str
    values: dict[str, Any]
    name: str = "kvreg"

    def install(self, **changes: Any) -> None:
        """Install or upgrade, with changes of the values that stay.

        Raises:
            CommandFailed: helm refuses.
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
        """Apply the profile as a person does, with these fields of its spec.

        Raises:
            CommandFailed: The API server refuses it.
        """
        self.kubectl("apply", "-f", "-", stdin=json.dumps(self.profile_manifest(**spec)))

    def serve(self, **spec: Any) -> None:
        """Apply the profile, and wait until the engines serve it."""
        self.apply(**spec)
        self.wait_for("Ready", "True")

    def profile_manifest(self, **spec: Any) -> dict[str, Any]:
        """Return the profile with these fields of its spec, beside the least it needs."""
        asked = {"targetRef": {"name": self.name}, "lanes": 1, "registryEntries": 2, **spec}
        return {
            "apiVersion": "kvreg.dev/v1alpha1",
            "kind": "KVRegistryProfile",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": asked,
        }

    def edit(self, **spec: Any) -> None:
        """Change fields of the spec; None removes one."""
        patch = json.dumps({"spec": spec})
        self.kubectl("patch", PROFILES, self.name, "--type=merge", "-p", patch)

    def bring_to_rest(self) -> None:
        """Have the engines serve a profile: the one that is there, or else the least one."""
        if self.condition("Ready")[0] != "True":
            self.kubectl("replace", "-f", "-", stdin=json.dumps(self.profile_manifest()))
            self.wait_for("Ready", "True")

    @property
    def profile(self) -> dict[str, Any]:
        """The profile as the API server has it."""
        return self.cluster.get("kvregistryprofiles", self.name, self.namespace)

    @property
    def other_entries(self) -> int:
        """Another number of entries than the profile asks for now."""
        entries: int = self.profile["spec"]["registryEntries"]
        return entries + 1

    def condition(self, kind: str) -> tuple[str, str]:
        """Return status and reason of a condition of the newest generation, or two blanks."""
        profile = self.profile
        for condition in profile.get("status", {}).get("conditions", []):
            if condition["type"] == kind:
                if condition["observedGeneration"] != profile["metadata"]["generation"]:
                    return ("", "")
                return (condition["status"], condition["reason"])
        return ("", "")

    def wait_for(self, kind: str, status: str, reason: str | None = None) -> None:
        """Wait until a condition is so, for the newest generation.

        Raises:
            TimeoutError: It was not so in time; says what is there instead.
        """

        def is_so() -> bool:
            found = self.condition(kind)
            return found[0] == status and reason in (None, found[1])

        self.wait_until(is_so, f"{kind} is {status}" + (f" ({reason})" if reason else ""))

    def wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait, and show the profile, the pods and the operator's log when it was in vain."""
        try:
            wait_until(is_so, TIMEOUT_S, what)
        except TimeoutError as err:
            raise TimeoutError(f"{err}\n{self.describe()}") from None

    def describe(self) -> str:
        """Say what a person would look at when something does not come."""
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
        """Return the uids of the pods that are not on their way out, by name."""
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
        """Return where clients find the engines: the address of the Service."""
        service = self.cluster.get("services", self.name, self.namespace)
        return f"http://{service['spec']['clusterIP']}:{service['spec']['ports'][0]['port']}"

    def pod_url(self, name: str, port: int = 8000) -> str:
        """Return where one pod is reached."""
        pod = self.cluster.get("pods", name, self.namespace)
        return f"http://{pod['status']['podIP']}:{port}"

    def client(self, url: str | None = None, **options: Any) -> openai.OpenAI:
        """Return the official client, as it is but for what the options say."""
        return openai.OpenAI(base_url=f"{url or self.url()}/v1", api_key="unused", **options)


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Say whether a pod may get requests."""
    conditions = {c["type"]: c["status"] for c in pod.get("status", {}).get("conditions", [])}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]

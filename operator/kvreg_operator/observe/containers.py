"""The containers of a pod, as the API server shows them.

Owns how a container is found, and what its status means.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# What a container waits for during an ordinary start.
_ORDINARY_WAITS = frozenset({"ContainerCreating", "PodInitializing"})

Manifest = Mapping[str, Any]


def has_started(pod: Manifest, container: str) -> bool:
    """Say whether a container of a pod runs and has passed its startup probe."""
    state = find_status(pod, container)
    return bool(state.get("started")) and "running" in state.get("state", {})


def find_engine_url(pod: Manifest, container: str, port_name: str = "http") -> str | None:
    """Return where the engine of a pod listens, or None while it has no address or no such port."""
    address: str | None = (pod.get("status") or {}).get("podIP")
    engine = find_container(pod["spec"], container)
    ports = [p["containerPort"] for p in engine.get("ports") or [] if p.get("name") == port_name]
    if not address or not ports:
        return None
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{ports[0]}"


def find_failure(container_status: Manifest) -> str | None:
    """Say what keeps a container from running, in the same words throughout a crash loop."""
    state, last = container_status.get("state") or {}, container_status.get("lastState") or {}
    ended = state.get("terminated") or last.get("terminated") or {}
    has_run = "running" in state and container_status.get("started")
    if ended.get("exitCode") and not has_run:
        return f"ended with exit status {ended['exitCode']} ({ended.get('reason') or 'Error'})"
    reason: str | None = (state.get("waiting") or {}).get("reason")
    return None if reason in _ORDINARY_WAITS else reason


def find_init_failure(status: Manifest) -> str | None:
    """Say which init container of a pod fails, and why, from the status of the pod."""
    for each in status.get("initContainerStatuses") or []:
        # One that runs has not failed, whatever became of its earlier attempts.
        is_running = "running" in (each.get("state") or {})
        if not is_running and (failure := find_failure(each)) is not None:
            return f"init container {each['name']}: {failure}"
    return None


def find_status(pod: Manifest, container: str) -> Manifest:
    """Return the status of a container, empty where the pod has none yet."""
    states: list[Manifest] = (pod.get("status") or {}).get("containerStatuses") or []
    return next((each for each in states if each["name"] == container), {})


def find_container(pod_spec: Manifest, name: str) -> Manifest:
    """Return a container of a pod spec, empty where there is none of that name."""
    containers: list[Manifest] = pod_spec["containers"]
    return next((each for each in containers if each["name"] == name), {})

"""An API server and engines on one loopback port, as far as the operator uses them.

It speaks HTTP with the real clients, stores objects, merges patches, checks preconditions, streams
watches, and keeps every request. It validates nothing and sets no defaults: tests/cluster has a
real API server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from aiohttp import web

NAMESPACE = "serving"
KINDS = {
    "/apis/kvreg.dev/v1alpha1": {"kvregistryprofiles": "KVRegistryProfile"},
    "/apis/apps/v1": {"statefulsets": "StatefulSet"},
    "/apis/batch/v1": {"jobs": "Job"},
    "/api/v1": {
        "pods": "Pod",
        "configmaps": "ConfigMap",
        "events": "Event",
        "namespaces": "Namespace",
    },
    "/apis/apiextensions.k8s.io/v1": {"customresourcedefinitions": "CustomResourceDefinition"},
}
Manifest = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """A request that the fake received."""

    method: str
    path: str
    query: dict[str, str]
    content_type: str
    body: Any

    @property
    def is_watch(self) -> bool:
        return "watch" in self.query

    @property
    def is_write(self) -> bool:
        return self.method != "GET"


@dataclass
class FakeEngine:
    """The engine of every pod."""

    lanes: int = 1
    entries: int = 2
    running: int = 0
    is_draining: bool = False
    fits: bool = True
    is_hung: bool = False
    keys: list[str | None] = field(default_factory=list)


class FakeApi:
    """Objects by path. ``refusals`` maps "verb plural" to a status.

    Watches do not deliver the plurals in ``silenced``. Every request for a namespace in
    ``lost_namespaces`` is refused.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Manifest] = {}
        self.requests: list[Request] = []
        self.refusals: dict[str, int] = {}
        self.silenced: set[str] = set()
        self.lost_namespaces: set[str] = set()
        self.engine = FakeEngine()
        self.port = 0
        self.version = 100
        self._watches: list[tuple[str, asyncio.Queue[Manifest | None]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def writes(self) -> list[Request]:
        return [request for request in self.requests if request.is_write]

    def put(self, path: str, manifest: Manifest) -> Manifest:
        """Store an object under a new version, and send it to the watches."""
        self.version += 1
        name = path.rpartition("/")[2]
        kind = "ADDED" if path not in self.objects else "MODIFIED"
        metadata = {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-of-{name}",
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            **manifest.get("metadata", {}),
            "resourceVersion": str(self.version),
        }
        self.objects[path] = {**manifest, "metadata": metadata}
        self._send_event(kind, path)
        return self.objects[path]

    def remove(self, path: str) -> None:
        self._send_event("DELETED", path)
        del self.objects[path]

    def end_watches(self) -> None:
        """Close every watch, as a server that restarts."""
        for _, queue in self._watches:
            queue.put_nowait(None)

    def send_error(self, plural: str, code: int) -> None:
        """Send an ERROR event to the watches of a kind, as for a version that is too old."""
        for watched, queue in self._watches:
            if watched.endswith(f"/{plural}"):
                queue.put_nowait({"type": "ERROR", "object": {"kind": "Status", "code": code}})

    def _send_event(self, kind: str, path: str) -> None:
        collection = path.rpartition("/")[0]
        if collection.rpartition("/")[2] in self.silenced:
            return
        for watched, queue in self._watches:
            if watched == collection:
                queue.put_nowait({"type": kind, "object": self.objects[path]})

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[FakeApi]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = runner.addresses[0][1]
        try:
            yield self
        finally:
            self.end_watches()
            await runner.cleanup()

    def write_kubeconfig(self, path: Path) -> Path:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
            "users": [{"name": "fake", "user": {"token": "a-token"}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
        }
        path.write_text(yaml.safe_dump(config))
        return path

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        text = await request.text()
        body = json.loads(text) if text else None
        received = Request(
            request.method, request.path, dict(request.query), request.content_type, body
        )
        if (answer := self.answer_engine(request)) is not None:
            if self.engine.is_hung:
                await asyncio.Event().wait()
            return answer
        self.requests.append(received)
        if (discovered := _discover(request.path)) is not None:
            return web.json_response(discovered)
        collection, name, subresource = _split(request.path)
        if collection.split("/")[-2] in self.lost_namespaces:
            return _failure(403)
        verb = "watch" if received.is_watch else request.method.lower()
        if name is None and verb in ("get", "post"):
            verb = {"get": "list", "post": "create"}[verb]
        plural = collection.rpartition("/")[2]
        if (status := self.refusals.get(f"{verb} {plural}")) is not None:
            return _failure(status)
        if received.is_watch:
            return await self._watch(request, collection)
        if name is None and request.method == "GET":
            return web.json_response(self._list(collection, received.query))
        return self._change(received, collection, name, subresource)

    def _list(self, collection: str, query: dict[str, str]) -> Manifest:
        wanted = [term.split("=") for term in query.get("labelSelector", "").split(",") if term]
        items = [
            manifest
            for path, manifest in self.objects.items()
            if path.rpartition("/")[0] == collection
            and all(manifest["metadata"].get("labels", {}).get(k) == v for k, v in wanted)
        ]
        begin = int(query.get("continue", 0))
        end = begin + int(query.get("limit", len(items) or 1))
        metadata = {"resourceVersion": str(self.version)}
        if end < len(items):
            metadata["continue"] = str(end)
        return {"metadata": metadata, "items": items[begin:end]}

    def _change(
        self, received: Request, collection: str, name: str | None, subresource: str | None
    ) -> web.Response:
        path = f"{collection}/{name or received.body['metadata']['name']}"
        existing = self.objects.get(path)
        if received.method == "POST":
            if existing is not None:
                return _failure(409)
            return web.json_response(self.put(path, received.body), status=201)
        if existing is None and not received.content_type.endswith("apply-patch+yaml"):
            return _failure(404)
        if received.method == "GET":
            return web.json_response(existing)
        if received.method == "DELETE":
            assert existing is not None
            uid = (received.body or {}).get("preconditions", {}).get("uid")
            if uid not in (None, existing["metadata"]["uid"]):
                return _failure(409)
            self.remove(path)
            return web.json_response({"kind": "Status", "status": "Success"})
        patch = received.body if subresource is None else _part(received.body, subresource)
        if (status := self._find_refusal(collection, existing, patch)) is not None:
            return _failure(status)
        if existing is not None and merge(existing, patch) == existing:
            # A write that changes nothing creates no version.
            return web.json_response(existing)
        return web.json_response(self.put(path, merge(existing or {}, patch)))

    def _find_refusal(
        self, collection: str, existing: Manifest | None, patch: Manifest
    ) -> int | None:
        condition, found = patch.get("metadata", {}), (existing or {}).get("metadata", {})
        if "uid" in condition and condition["uid"] != found.get("uid"):
            return 409
        if existing is None:
            # An apply needs the right to create only now; the version is no condition then.
            return self.refusals.get(f"create {collection.rpartition('/')[2]}")
        if condition.get("resourceVersion", found["resourceVersion"]) != found["resourceVersion"]:
            return 409
        return None

    async def _watch(self, request: web.Request, collection: str) -> web.StreamResponse:
        queue: asyncio.Queue[Manifest | None] = asyncio.Queue()
        self._watches.append((collection, queue))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        while (event := await queue.get()) is not None:
            await response.write(json.dumps(event).encode() + b"\n")
        return response

    def _forget_pods(self) -> None:
        """Make all pods unready, as when an engine drains."""
        pods = [path for path in self.objects if path.rpartition("/")[0].endswith("/pods")]
        for path in pods:
            unready = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
            self.put(path, merge(self.objects[path], unready))

    def answer_engine(self, request: web.Request) -> web.Response | None:
        if request.path not in ("/v1/registry", "/admin/fit", "/admin/drain"):
            return None
        engine = self.engine
        engine.keys.append(request.headers.get("authorization"))
        if request.path == "/admin/drain":
            engine.is_draining = True
            self._forget_pods()
            return web.json_response({})
        if request.path == "/admin/fit":
            sizes = {"required_bytes": 1, "available_bytes": 2, "short_by_bytes": 0}
            return web.json_response({"fits": engine.fits, **sizes})
        profile = {
            "model": "reference",
            "lanes": engine.lanes,
            "entries": engine.entries,
            "anchors": 2,
            "current_state": "keep",
            "max_context_tokens": 4096,
        }
        load = {"running": engine.running, "queued": 0, "is_draining": engine.is_draining}
        return web.json_response({"profile": profile, **load})


def path_of(plural: str, name: str | None = None) -> str:
    """Return where objects of a kind are in the namespace of the tests."""
    (group,) = (group for group, kinds in KINDS.items() if plural in kinds)
    collection = f"{group}/namespaces/{NAMESPACE}/{plural}"
    return collection if name is None else f"{collection}/{name}"


def merge(old: Any, patch: Any) -> Any:
    """Merge as the API server does; lists of named things by their names, others as a whole."""
    if isinstance(old, dict) and isinstance(patch, dict):
        merged = {k: merge(old.get(k), v) for k, v in patch.items() if v is not None}
        return {k: v for k, v in old.items() if k not in patch} | merged
    if isinstance(patch, dict):
        return {k: merge(None, v) for k, v in patch.items() if v is not None}
    if isinstance(old, list) and isinstance(patch, list):
        key = next((k for k in ("mountPath", "name") if all(k in i for i in [*old, *patch])), None)
        if key is not None:
            by_key = {item[key]: item for item in old}
            by_key |= {item[key]: merge(by_key.get(item[key]), item) for item in patch}
            return list(by_key.values())
    return patch


def _part(body: Manifest, subresource: str) -> Manifest:
    return {key: body[key] for key in ("metadata", subresource) if key in body}


def _split(path: str) -> tuple[str, str | None, str | None]:
    """Return the collection, the name and the subresource of a path."""
    head, _, tail = path.partition("/namespaces/")
    parts = tail.split("/")
    collection = f"{head}/namespaces/{'/'.join(parts[:2])}"
    name = parts[2] if len(parts) > 2 else None
    return collection, name, parts[3] if len(parts) > 3 else None


def _failure(status: int) -> web.Response:
    body = {"kind": "Status", "status": "Failure", "code": status, "message": "refused here"}
    headers = {"Retry-After": "7"} if status == 429 else {}
    return web.json_response(body, status=status, headers=headers)


def _discover(path: str) -> Manifest | None:
    if path == "/api":
        return {"versions": ["v1"]}
    if path == "/apis":
        return {"groups": list(_groups())}
    if path in KINDS:
        return {
            "groupVersion": path.removeprefix("/apis/"),
            "resources": [
                {
                    "name": plural,
                    "singularName": kind.lower(),
                    "kind": kind,
                    "namespaced": kind not in ("Namespace", "CustomResourceDefinition"),
                    "verbs": ["get", "list", "watch", "patch", "create", "delete"],
                }
                for plural, kind in KINDS[path].items()
            ],
        }
    return None


def _groups() -> Iterator[Manifest]:
    for path in KINDS:
        if path.startswith("/apis/"):
            group, version = path.removeprefix("/apis/").split("/")
            its_version = {"groupVersion": f"{group}/{version}", "version": version}
            yield {"name": group, "versions": [its_version], "preferredVersion": its_version}

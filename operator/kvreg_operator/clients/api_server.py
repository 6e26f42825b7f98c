"""The API server: a few verbs on a few kinds, with objects as plain dictionaries.

Owns paths, content types, preconditions and how a failure is classed. It never retries: the next
reconcile does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp
from kubernetes_asyncio.client.api_client import ApiClient
from kubernetes_asyncio.client.configuration import Configuration
from kubernetes_asyncio.client.exceptions import ApiException
from kubernetes_asyncio.config import ConfigException, load_incluster_config, load_kube_config

from kvreg_operator.clients.errors import (
    Conflict,
    NotServed,
    OperatorError,
    PermanentError,
    TemporaryError,
    class_of,
)
from kvreg_operator.crd.profile import FIELD_MANAGER, GROUP, PLURAL, VERSION

# A list of a few thousand objects takes a second.
TIMEOUT_S = 15.0
RETRY_DELAY_S = 5.0
# Objects of a list that are in memory at once.
PAGE_SIZE = 500
# The object was written between the observation and this write: observe it again.
CONFLICT_DELAY_S = 1.0

_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_JSON = "application/json"

Method = Literal["GET", "POST", "PATCH", "DELETE"]
Manifest = dict[str, Any]


@dataclass(frozen=True)
class ResourceKind:
    """A kind of object, by its path in the API."""

    group_path: str
    plural: str

    def path(self, namespace: str, name: str | None = None, subresource: str | None = None) -> str:
        """Return the path of a collection, of one object, or of a subresource."""
        parts = [self.group_path, "namespaces", namespace, self.plural, name, subresource]
        return "/".join(part for part in parts if part is not None)

    @property
    def full_name(self) -> str:
        """The plural with its group, as kubectl writes it."""
        return f"{self.plural}.{self.group_path.split('/')[2]}"


PROFILES = ResourceKind(f"/apis/{GROUP}/{VERSION}", PLURAL)
STATEFUL_SETS = ResourceKind("/apis/apps/v1", "statefulsets")
PODS = ResourceKind("/api/v1", "pods")
CONFIG_MAPS = ResourceKind("/api/v1", "configmaps")
EVENTS = ResourceKind("/api/v1", "events")
JOBS = ResourceKind("/apis/batch/v1", "jobs")


@dataclass(frozen=True)
class ClusterApi:
    """Sends requests through one ``ApiClient``, which its owner closes.

    Every method may raise a ``TemporaryError`` or a ``PermanentError``.
    """

    client: ApiClient

    async def find(self, kind: ResourceKind, namespace: str, name: str) -> Manifest | None:
        """Return the object, if it exists."""
        try:
            return await self._request("GET", kind.path(namespace, name))
        except NotServed:
            return None

    async def each(
        self, kind: ResourceKind, namespace: str, selector: str | None = None
    ) -> AsyncIterator[Manifest]:
        """Yield the objects of a namespace that match the label selector."""
        query = {} if selector is None else {"labelSelector": selector}
        async for page in self._pages(kind.path(namespace), query):
            for manifest in page:
                yield manifest

    async def list_all(
        self, kind: ResourceKind, namespace: str, selector: str | None = None
    ) -> list[Manifest]:
        """Return the objects of a namespace, as ``each`` yields them."""
        return [manifest async for manifest in self.each(kind, namespace, selector)]

    async def require_list(self, kind: ResourceKind, namespace: str) -> None:
        """Require that the objects of a namespace can be listed; request one of them."""
        await self._request("GET", kind.path(namespace), {"limit": "1"})

    async def apply(self, kind: ResourceKind, manifest: Manifest) -> Manifest:
        """Apply the fields of ``manifest``, server-side, and return the object.

        It is forced: the fields belong to the operator, and no other manager has a use for another
        value. Fields that the manifest does not contain keep their owners.
        """
        metadata = manifest["metadata"]
        path = kind.path(metadata["namespace"], metadata["name"])
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._request("PATCH", path, query, manifest, _APPLY)

    async def merge_patch(
        self,
        kind: ResourceKind,
        namespace: str,
        name: str,
        patch: Manifest,
        subresource: str | None = None,
    ) -> Manifest | None:
        """Merge a patch into an object and return it, or None if the object does not exist."""
        path = kind.path(namespace, name, subresource)
        try:
            return await self._request(
                "PATCH", path, {"fieldManager": FIELD_MANAGER}, patch, _MERGE
            )
        except NotServed:
            return None

    async def ensure_created(self, kind: ResourceKind, manifest: Manifest) -> bool:
        """Create an object; return False if one of that name exists."""
        path, query = kind.path(manifest["metadata"]["namespace"]), {"fieldManager": FIELD_MANAGER}
        try:
            await self._request("POST", path, query, manifest)
        except Conflict:
            return False
        return True

    async def ensure_deleted(
        self, kind: ResourceKind, namespace: str, name: str, uid: str | None = None
    ) -> None:
        """Delete an object, if it exists and has the uid that is given.

        Kubernetes deletes its dependents in the background.
        """
        options: Manifest = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
        }
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        try:
            await self._request("DELETE", kind.path(namespace, name), {}, options)
        except (NotServed, Conflict):
            return

    async def _pages(self, path: str, query: dict[str, str]) -> AsyncIterator[list[Manifest]]:
        query = {**query, "limit": str(PAGE_SIZE)}
        while True:
            answer = await self._request("GET", path, query)
            yield answer.get("items") or []
            token = (answer.get("metadata") or {}).get("continue")
            if not token:
                return
            query["continue"] = token

    async def _request(
        self,
        method: Method,
        path: str,
        query: dict[str, str] | None = None,
        body: Manifest | None = None,
        content_type: str = _JSON,
    ) -> Manifest:
        headers = {"Accept": _JSON, "Content-Type": content_type}
        try:
            answer: Any = await self.client.call_api(
                path,
                method,
                query_params=list((query or {}).items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
                response_types_map=dict.fromkeys((200, 201, 202), "object"),
                _return_http_data_only=True,
                _request_timeout=TIMEOUT_S,
            )
        except ApiException as err:
            raise _translate(f"{method} {path}", err) from err
        except (aiohttp.ClientError, TimeoutError, OSError) as err:
            message = f"{method} {path}: {type(err).__name__}: {err}"
            raise TemporaryError(message, delay_s=RETRY_DELAY_S) from err
        if not isinstance(answer, dict):
            raise TemporaryError(f"{method} {path}: no object", delay_s=RETRY_DELAY_S)
        return answer


def _translate(what: str, err: ApiException) -> OperatorError:
    message = f"{what}: {err.status} {err.reason}: {_shorten(err.body)}"
    if err.status == 404:
        return NotServed(message)
    if err.status == 409:
        return Conflict(message, delay_s=CONFLICT_DELAY_S)
    # 401: a rotated token is reloaded within a minute. 410: the continue token of a list has
    # expired, and the next list begins again.
    if err.status in (401, 410) or class_of(None, err.status or 500) == "temporary":
        return TemporaryError(message, delay_s=_retry_after_s(err))
    return PermanentError(message)


def _retry_after_s(err: ApiException) -> float:
    text = str(err.headers.get("Retry-After", "")) if err.headers else ""
    return float(text) if text.isdecimal() else RETRY_DELAY_S


def _shorten(body: object) -> str:
    return str(body or "")[:500]


@asynccontextmanager
async def connect_to_cluster() -> AsyncIterator[ClusterApi]:
    """Connect with the service account of the pod, or else with a kubeconfig.

    Raises:
        PermanentError: There is neither.
    """
    async with ApiClient(await _load_configuration()) as client:
        client.user_agent = FIELD_MANAGER
        yield ClusterApi(client)


async def _load_configuration() -> Configuration:
    configuration = Configuration()
    try:
        load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except ConfigException:
        try:
            await load_kube_config(client_configuration=configuration)
        except ConfigException as err:
            raise PermanentError(
                f"neither a service account nor a kubeconfig was found: {err}"
            ) from err
    return configuration

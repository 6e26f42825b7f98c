"""Authenticates each request by its API key, before its body is read.

Owns which paths need a key, which of them an administrator's key, and which headers carry it. The
tenant directory maps keys to tenants.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from kvreg_service.api.errors import ErrorNote, response_to
from kvreg_service.core.errors import Forbidden, KvregError, Unauthorized
from kvreg_service.tenants.directory import TenantDirectory
from kvreg_service.tenants.keyring import KEYLESS_TENANT, Tenant

# Probes, metrics, documentation and the static page; none of them shows data of a tenant. Every
# other path needs a key, so a route that is added is closed by default.
OPEN_PATHS = frozenset(
    {
        "/livez",
        "/readyz",
        "/startupz",
        "/health",
        "/metrics",
        "/ui",
        "/ui/page.css",
        "/ui/page.js",
        "/ui/icon.svg",
        "/openapi.json",
        "/docs",
        "/docs/oauth2-redirect",
        "/redoc",
    }
)
_ADMIN_PATH = "/admin"
_SCHEME = "bearer"


class Authentication:
    """Middleware that sets the tenant of each request, or responds with 401 or 403."""

    def __init__(self, app: ASGIApp, directory: TenantDirectory, note: ErrorNote) -> None:
        self._app = app
        self._directory = directory
        self._note = note

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Authenticate the request and call the application, or respond with an error."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            request = Request(scope)
            try:
                request.state.tenant = self._authenticate(request)
            except KvregError as err:
                self._note(request, err)
                await response_to(err, request)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _authenticate(self, request: Request) -> Tenant:
        if not self._directory.needs_keys:
            return KEYLESS_TENANT
        keys = _keys_of(request)
        key = keys.pop() if len(keys) == 1 else None
        tenant = None if key is None else self._directory.find(key)
        if tenant is None:
            raise Unauthorized(
                "a valid API key is required: 'Authorization: Bearer KEY' or 'x-api-key: KEY'"
            )
        path: str = request.scope["path"]
        if (path == _ADMIN_PATH or path.startswith(f"{_ADMIN_PATH}/")) and not tenant.is_admin:
            raise Forbidden("the tenant of this API key is not an administrator")
        return tenant


def tenant_of(request: Request) -> Tenant:
    """Return the tenant that the middleware found by the API key."""
    tenant = request.state.tenant
    assert isinstance(tenant, Tenant)
    return tenant


def _keys_of(request: Request) -> set[str | None]:
    """The distinct keys in both headers; None stands for another authorization scheme.

    Clients may send the same key in both headers, or leave one of them empty.
    """
    keys: set[str | None] = {value.strip() for value in request.headers.getlist("x-api-key")}
    for value in request.headers.getlist("authorization"):
        scheme, _, key = value.strip().partition(" ")
        keys.add(key.strip() if scheme.lower() in ("", _SCHEME) else None)
    return keys - {""}

"""Who calls: lets a request through to its route only with a key that its path asks for.

Owns which paths need a key, which an administrator's, and where in a request the key stands. Whose
a key is, the tenants' directory knows. It comes before everything else, so that nothing of a
stranger's request but its head is read.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from kvreg_service.api.errors import ErrorNote, response_to
from kvreg_service.core.errors import Forbidden, KvregError, Unauthorized
from kvreg_service.tenants.directory import TenantDirectory
from kvreg_service.tenants.keyring import KEYLESS_TENANT, Tenant

# What probes, scrapers, readers of the documentation and the page itself ask; none of it shows a
# conversation. Any other path, also one that a later route adds, needs a key.
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
    """Middleware that notes the tenant of each request, or answers 401 or 403 in its place."""

    def __init__(self, app: ASGIApp, directory: TenantDirectory, note: ErrorNote) -> None:
        self._app = app
        self._directory = directory
        self._note = note

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
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
                "a valid API key is needed, as 'Authorization: Bearer KEY' or 'x-api-key: KEY'"
            )
        path: str = request.scope["path"]
        if (path == _ADMIN_PATH or path.startswith(f"{_ADMIN_PATH}/")) and not tenant.is_admin:
            raise Forbidden("the tenant of this key is no administrator")
        return tenant


def tenant_of(request: Request) -> Tenant:
    """Return whose request it is. It never depends on the body."""
    tenant = request.state.tenant
    assert isinstance(tenant, Tenant)
    return tenant


def _keys_of(request: Request) -> set[str | None]:
    """The different keys in the headers; None stands for what is no key of ours.

    Clients may send their key in both places, and nothing in one of them.
    """
    keys: set[str | None] = {value.strip() for value in request.headers.getlist("x-api-key")}
    for value in request.headers.getlist("authorization"):
        scheme, _, key = value.strip().partition(" ")
        keys.add(key.strip() if scheme.lower() in ("", _SCHEME) else None)
    return keys - {""}

"""``/ui``, a status page in the browser, and the recent requests that it shows.

The page is static and needs no API key: it prompts for one, and calls the routes that need it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.resources import files

from fastapi import APIRouter, Request
from fastapi.responses import Response

from kvreg_service.api.authentication import tenant_of
from kvreg_service.telemetry import ui
from kvreg_service.telemetry.ui.recent_requests import RecentActivity, RecentRequests

_HEADERS = {
    # Injected markup can neither run, nor load from nor send to another server.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Page and script must come from the same version of the engine.
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True)
class _PageFile:
    path: str
    name: str
    media_type: str


_FILES = (
    _PageFile("/ui", "page.html", "text/html"),
    _PageFile("/ui/page.css", "page.css", "text/css"),
    _PageFile("/ui/page.js", "page.js", "text/javascript"),
    _PageFile("/ui/icon.svg", "icon.svg", "image/svg+xml"),
)


def build_ui_router(recent: RecentRequests) -> APIRouter:
    """Build the routes."""
    router = APIRouter()
    for file in _FILES:
        router.get(file.path, include_in_schema=False)(_serve(file))

    @router.get("/v1/registry/requests", summary="Show the recent requests", tags=["registry"])
    async def get_requests(request: Request) -> RecentActivity:
        return recent.show(tenant_of(request).view)

    return router


def _serve(file: _PageFile) -> Callable[[], Awaitable[Response]]:
    content = files(ui).joinpath(file.name).read_bytes()

    async def get_file() -> Response:
        return Response(content, media_type=file.media_type, headers=_HEADERS)

    return get_file

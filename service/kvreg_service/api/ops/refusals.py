"""Counts refusals: generation requests that the engine did not accept.

Owns the distinction. The engine counts the requests that it accepted, so that both together are all
generation requests.
"""

from __future__ import annotations

from fastapi import Request

from kvreg_service.api.errors import MESSAGES_PATH, code_of
from kvreg_service.telemetry.metrics.metrics import FAILURES, Metrics

GENERATION_PATHS = frozenset({"/v1/chat/completions", MESSAGES_PATH})


class Refusals:
    """Counts refusals; does nothing without ``metrics``."""

    def __init__(self, metrics: Metrics | None) -> None:
        self._metrics = metrics

    def note(self, request: Request, error: Exception) -> None:
        """Count an error that becomes the response to ``request``, if it is a refusal."""
        if self._metrics is None:
            return
        is_call = request.method == "POST" and request.scope["path"] in GENERATION_PATHS
        if is_call and not isinstance(error, FAILURES):
            self._metrics.request_refused(code_of(error))

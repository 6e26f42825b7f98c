"""Which errors were refusals: calls for an answer that the engine never accepted.

Owns the line between the two: together with the requests that the engine has told of, refusals are
all calls for an answer.
"""

from __future__ import annotations

from fastapi import Request

from kvreg_service.api.errors import MESSAGES_PATH, code_of
from kvreg_service.telemetry.metrics.metrics import FAILURES, Metrics

ANSWERING_PATHS = frozenset({"/v1/chat/completions", MESSAGES_PATH})


class Refusals:
    """Counts refusals, or does nothing where nobody asks for metrics."""

    def __init__(self, metrics: Metrics | None) -> None:
        self._metrics = metrics

    def note(self, request: Request, error: Exception) -> None:
        """Take note of an error that becomes the answer to ``request``."""
        if self._metrics is None:
            return
        is_call = request.method == "POST" and request.scope["path"] in ANSWERING_PATHS
        if is_call and not isinstance(error, FAILURES):
            self._metrics.request_refused(code_of(error))

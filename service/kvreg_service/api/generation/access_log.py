"""The access log: one line per generation request whose body was valid, when the request ends.

Owns the fields of the line. They never hold text of a prompt or of a response.
"""

from __future__ import annotations

import logging
from typing import Any

from kvreg_service.api.generation.output import GenerationOutput
from kvreg_service.core.errors import KvregError
from kvreg_service.core.labels import Outcome

_logger = logging.getLogger(__name__)


def log_request(
    *,
    request_id: str,
    is_streamed: bool,
    output: GenerationOutput | None,
    error: Exception | None,
    total_s: float,
) -> None:
    """Write the line. ``output`` is None if the request ended before its prompt was built."""
    admission = output.admission if output is not None else None
    finished = output.finished if output is not None else None
    outcome = Outcome.CANCELLED
    if finished is not None:
        outcome = Outcome.FINISHED
    elif error is not None:
        outcome = Outcome.FAILED
    fields: dict[str, Any] = {
        "request_id": request_id,
        "outcome": outcome,
        "stream": is_streamed,
        "total_s": round(total_s, 6),
    }
    if error is not None:
        fields["code"] = error.code if isinstance(error, KvregError) else "internal_error"
    if output is not None and admission is not None:
        fields |= {
            "prompt_tokens": admission.prompt_tokens,
            "cached_tokens": admission.cached_tokens,
            "completion_tokens": output.completion_tokens,
            "reuse_path": admission.reuse_path,
            "attach": admission.attach,
            "queue_s": round(admission.queue_s, 6),
            "diverged_at": admission.diverged_at,
            "regret_tokens": admission.regret_tokens,
        }
    if finished is not None:
        fields |= {
            "finish_reason": finished.finish_reason,
            "ttft_s": round(finished.timings.ttft_s, 6),
        }
    _logger.info("request %s", outcome, extra=fields)

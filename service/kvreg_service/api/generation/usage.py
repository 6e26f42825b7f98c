"""The parts of a response that both APIs have: where the prompt came from, and the times."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from kvreg_service.api.generation.output import GenerationOutput
from kvreg_service.core.labels import Attach, ReusePath


class KvregUsage(BaseModel):
    """Where the prompt came from. ``computed_tokens`` and the cached ones add up to the prompt."""

    reuse_path: ReusePath
    attach: Attach
    computed_tokens: int


class ResponseTimings(BaseModel):
    """The times of one request in seconds; ``ttft_s`` counts from its arrival at the engine."""

    queue_s: float
    attach_s: float
    prefill_s: float
    decode_s: float
    ttft_s: float


def reuse_of(output: GenerationOutput) -> dict[str, Any]:
    """Build ``usage.kvreg``."""
    admission = output.admission
    assert admission is not None, "the usage is known after the first event"
    return {
        "reuse_path": admission.reuse_path,
        "attach": admission.attach,
        "computed_tokens": admission.computed_tokens,
    }

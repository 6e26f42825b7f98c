"""The parts of a response that both APIs have: how much was reused, and the timings."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from kvreg_service.api.generation.output import GenerationOutput
from kvreg_service.core.labels import Attach, ReusePath


class KvregUsage(BaseModel):
    """What was reused. ``computed_tokens`` and the cached tokens add up to the prompt."""

    reuse_path: ReusePath
    attach: Attach
    computed_tokens: int


class ResponseTimings(BaseModel):
    """The timings of one request in seconds; ``ttft_s`` starts when the engine accepts it."""

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

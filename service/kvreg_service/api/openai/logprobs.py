"""The ``logprobs`` of a chat completion: their models, and how token reports become them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

from kvreg_service.engine.interface.generation import SpelledToken, TokenReport

# JSON has no infinity; OpenAI uses this value for a probability of 0.
_MIN_LOGPROB = -9999.0


class TopLogprob(BaseModel):
    """A candidate token. It may be part of a character; ``bytes`` is exact."""

    token: str
    logprob: float
    bytes: list[int]


class ContentLogprob(TopLogprob):
    """The chosen token, with the most likely candidates."""

    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(BaseModel):
    """The log probabilities of an answer, without its reasoning."""

    content: list[ContentLogprob]
    refusal: None = None


def logprobs_of(reports: Iterable[TokenReport]) -> dict[str, Any]:
    """Build the ``logprobs`` of a choice."""
    content = [
        {**_entry(report.chosen), "top_logprobs": [_entry(token) for token in report.top]}
        for report in reports
    ]
    return {"content": content, "refusal": None}


def _entry(token: SpelledToken) -> dict[str, Any]:
    return {
        "token": token.spelling.decode("utf-8", errors="replace"),
        "logprob": token.logprob if math.isfinite(token.logprob) else _MIN_LOGPROB,
        "bytes": list(token.spelling),
    }

"""The sampling fields of both APIs, with their limits."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from kvreg_service.api.body.request_body import RequestBody, unsupported
from kvreg_service.core.requests.sampling_params import SamplingParams

_MAX_BIASED_TOKENS = 1024


class SamplingFields(RequestBody):
    """Sampling parameters. A missing field takes the model's default."""

    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    # -1 means "off", as in vLLM.
    top_k: int | None = Field(default=None, ge=-1, le=1_000_000)
    min_p: float | None = Field(default=None, ge=0, le=1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, gt=0, le=10)
    seed: int | None = Field(default=None, ge=-(2**63), le=2**63 - 1)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        default=None, max_length=_MAX_BIASED_TOKENS
    )

    @field_validator("logit_bias")
    @classmethod
    def _token_ids(cls, value: dict[str, float] | None) -> dict[str, float] | None:
        for key in value or {}:
            if not (key.isascii() and key.isdecimal() and len(key) < 12):
                raise unsupported("key '{key}' is not a token id", key=key[:60])
        return value

    def sampling(self, defaults: SamplingParams) -> SamplingParams:
        """Build the sampling parameters; missing fields come from ``defaults``."""
        top_k = self.top_k if self.top_k is None or self.top_k > 0 else None
        return SamplingParams(
            temperature=_or(self.temperature, defaults.temperature),
            top_p=_or(self.top_p, defaults.top_p),
            top_k=defaults.top_k if self.top_k is None else top_k,
            min_p=_or(self.min_p, defaults.min_p),
            presence_penalty=_or(self.presence_penalty, defaults.presence_penalty),
            frequency_penalty=_or(self.frequency_penalty, defaults.frequency_penalty),
            repetition_penalty=_or(self.repetition_penalty, defaults.repetition_penalty),
            seed=self.seed,
            logit_bias={int(key): bias for key, bias in (self.logit_bias or {}).items()},
        )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value

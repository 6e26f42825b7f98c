"""The settings of the operator's process, from the environment only.

Owns names, types, limits and defaults. The settings of engines are in their profiles. The
Kubernetes client finds the cluster itself.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_core import ErrorDetails, PydanticCustomError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

ENV_PREFIX = "KVREG_OPERATOR_"
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
# Kubernetes sets these in every pod beside a Service named "kvreg-operator".
_SERVICE_LINK = re.compile(rf"{ENV_PREFIX}(SERVICE_HOST|SERVICE_PORT|PORT)(_.*)?")


class InvalidSettings(Exception):
    """The environment holds settings that the process cannot start with."""


class Settings(BaseSettings):
    """The settings. Use ``load_settings``, which reports every problem.

    An empty variable counts as not set.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
    )

    # No default: the operator has rights only in the namespaces of its Roles.
    namespaces: Annotated[tuple[str, ...], NoDecode] = Field(
        min_length=1, description="Namespaces whose profiles are applied, separated by commas."
    )
    # A file can change while the operator runs; each reconcile reads it again.
    api_key_file: Path | None = Field(
        default=None, description="File with an administrator's API key of the engines."
    )
    # Without configuration, only this machine reaches the process; a pod sets 0.0.0.0.
    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on.")
    metrics_port: int = Field(default=9090, ge=1, le=65535, description="Port of /metrics.")
    liveness_port: int = Field(default=8080, ge=1, le=65535, description="Port of /healthz.")
    # What sends no event, such as an engine that becomes idle, is noticed after this time.
    resync_s: float = Field(
        default=30.0,
        gt=0,
        le=3600,
        description="Time between two reconciles of every profile without an event.",
    )
    # Four lists; with the delays of the probe and of the end still within two minutes.
    deaf_after_s: float = Field(
        default=60.0,
        gt=0,
        le=3600,
        description="Time without a complete list in any namespace until the probe fails.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Lowest level that is logged."
    )

    @field_validator("namespaces", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        return tuple(dict.fromkeys(name for part in value.split(",") if (name := part.strip())))

    @field_validator("namespaces")
    @classmethod
    def _names_are_exact(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        wrong = [name for name in value if _NAMESPACE.fullmatch(name) is None]
        if wrong:
            raise PydanticCustomError(
                "no_namespace",
                "must be names of namespaces, without patterns; {wrong} is not one",
                {"wrong": ", ".join(wrong)},
            )
        return value

    @field_validator("api_key_file")
    @classmethod
    def _file_is_there(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_file():
            raise PydanticCustomError("no_file", "must be a file")
        return value


def load_settings() -> Settings:
    """Load the settings from the environment.

    Raises:
        InvalidSettings: Any setting is invalid; the message lists every problem, one per line.
    """
    problems = _find_unknown_names()
    settings: Settings | None = None
    try:
        settings = Settings()  # type: ignore[call-arg]
    except ValidationError as err:
        problems += [_describe(details) for details in err.errors(include_url=False)]
    if settings is None or problems:
        lines = "".join(f"\n  {problem}" for problem in problems)
        raise InvalidSettings(f"the settings are not valid:{lines}")
    return settings


def _find_unknown_names() -> list[str]:
    known = {ENV_PREFIX + name.upper() for name in Settings.model_fields}
    problems = []
    for name in sorted(os.environ):
        if not name.upper().startswith(ENV_PREFIX) or name.upper() in known:
            continue
        hint = ""
        if _SERVICE_LINK.fullmatch(name.upper()):
            hint = "; Kubernetes sets it unless enableServiceLinks is false in the pod"
        problems.append(f"{name}: there is no such setting{hint}")
    return problems


def _describe(details: ErrorDetails) -> str:
    name = str(details["loc"][0])
    if details["type"] == "missing":
        return f"{ENV_PREFIX}{name.upper()}: is required"
    value = details["input"]
    if isinstance(value, tuple):
        value = ",".join(value)
    limit = details["msg"].removeprefix("Input ")
    return f"{ENV_PREFIX}{name.upper()} = {str(value)[:80]}: {limit}"

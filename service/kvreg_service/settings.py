"""The settings of one engine: read once, validated together, frozen.

Owns names, types, limits, defaults and the sources of a value (flag over environment over config
file over default). It is the only module that reads the environment. It does not open model files
and computes no derived values.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails, PydanticCustomError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings.sources import InitSettingsSource

from kvreg_service.core.errors import ConfigurationError
from kvreg_service.core.labels import CurrentState
from kvreg_service.reference_model import REFERENCE_MODEL_PATH
from kvreg_service.setting_names import ENV_PREFIX, environment_name, flag_name

# Variables of the test harnesses, which share the prefix but are not settings.
FOREIGN_ENV_PREFIXES = ("KVREG_TEST_", "KVREG_CLUSTER_")
# Kubernetes sets these in every pod of a namespace with a Service named "kvreg".
_SERVICE_LINK = re.compile(r"KVREG_(SERVICE_HOST|SERVICE_PORT|PORT_\d+_(TCP|UDP|SCTP))(_.*)?")

_KEY_VARIABLES = tuple(environment_name(name) for name in ("api_keys", "api_keys_file"))

MAX_LANES = 64
MAX_ENTRIES = 4096
MAX_ANCHORS = 64
EvictionName = Literal["cost", "lru", "priority", "none"]


class Settings(BaseSettings):
    """The settings of one engine. Use ``load_settings``, which reports all problems at once.

    An empty environment variable counts as not set, except those of the API keys.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        validate_default=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )

    config_file: Path | None = Field(default=None, description="A JSON or TOML file of settings.")
    # Set by the operator together with the mounted file; shown in the effective profile.
    profile: str | None = Field(default=None, description="Name of the mounted profile.")

    # The default works without a download.
    model: Path = Field(
        default=REFERENCE_MODEL_PATH, description="Folder of the model, in the Hugging Face layout."
    )
    served_model_name: str | None = Field(
        default=None, min_length=1, max_length=256, description="Model id in the API."
    )

    # An unconfigured server is reachable from this machine only.
    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port; 0 takes a free one.")

    # The main use of the registry: one lane, one session, interrupted by side requests.
    lanes: int = Field(default=1, ge=1, le=MAX_LANES, description="Requests that run at once.")
    current_state: CurrentState = Field(
        default=CurrentState.KEEP,
        description="Whether displaced sessions keep their frontier.",
    )
    prefix_reuse: bool = Field(default=True, description="Whether prompts may resume kept states.")
    # One entry keeps the session; in measurements a second one gains nothing with one lane.
    entries: int = Field(
        default=1, ge=0, le=MAX_ENTRIES, description="Displaced sessions that are surely kept."
    )
    # One for the head of the main conversations, one for sub-agents or side requests.
    anchors: int = Field(
        default=2,
        ge=0,
        le=MAX_ANCHORS,
        description="State slots beside those, for heads that conversations share.",
    )
    eviction: EvictionName = Field(
        default="cost", description="Eviction policy; none frees nothing for others."
    )

    max_context: int | None = Field(
        default=None, ge=1, description="Context length, prompt and answer; by default what fits."
    )
    device: Literal["cpu", "cuda"] = Field(default="cpu", description="Where the model runs.")
    tp: int = Field(default=1, ge=1, le=8, description="Tensor-parallel GPUs.")
    mtp: int = Field(default=0, ge=0, le=8, description="Tokens drafted per decode step.")
    kv_dtype: Literal["auto", "fp32", "fp16", "int8"] = Field(
        default="auto",
        description="Data type of the KV cache; auto depends on the device.",
    )
    # Small for any laptop, and enough for dozens of full sessions of the bundled model.
    memory_gib: float = Field(default=1.0, gt=0, description="CPU memory for states and KV pages.")
    gpu_memory_gib: float | None = Field(
        default=None, gt=0, description="Memory of one GPU; by default all of it."
    )
    kv_pages: int | None = Field(
        default=None,
        ge=1,
        description="KV pages; by default as many as fit.",
    )
    # The most prompt tokens in a step with decodes; larger chunks gain little on any device.
    prefill_chunk_tokens: int = Field(
        default=512, ge=64, le=65536, multiple_of=64, description="Largest prefill chunk of a step."
    )
    # The bundled model is fastest on one thread; larger ones want one per core.
    threads: int = Field(default=1, ge=1, le=1024, description="CPU threads of the model.")

    queue_limit: int = Field(default=64, ge=0, description="Requests that may wait for a lane.")
    queue_timeout_s: float = Field(default=60.0, gt=0, description="Longest time in the queue.")
    # The default termination grace period of Kubernetes.
    drain_timeout_s: float = Field(
        default=30.0, ge=0, description="Time for running requests at shutdown."
    )
    # About eight million tokens of text: far more than any context, far less than any memory.
    max_body_bytes: int = Field(
        default=32 * 1024 * 1024, ge=1024, description="Largest request body."
    )
    # A file can change while the engine runs; a command line or a profile is not secret.
    api_keys_file: Path | None = Field(
        default=None, description="JSON or TOML file with tenants and their API keys."
    )
    api_keys: SecretStr | None = Field(
        default=None, description="The same as JSON text, for the environment."
    )
    otlp_endpoint: str | None = Field(
        default=None,
        description="Base URL of an OTLP collector; without it, tracing is off.",
    )
    # A request has few spans, and most callers make the sampling decision.
    trace_ratio: float = Field(
        default=1.0, ge=0, le=1, description="Sampling ratio of requests without a parent trace."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Lowest level that is logged."
    )
    # Off by default: it should be turned on deliberately.
    request_log: Path | None = Field(
        default=None, description="File of the request log; by default there is none."
    )
    # Times the number of files: half a gibibyte, weeks of one agent's traffic.
    request_log_max_bytes: int = Field(
        default=64 * 1024 * 1024, ge=65536, description="Size at which the file is rotated."
    )
    request_log_files: int = Field(
        default=8, ge=1, le=1000, description="Files to keep, including the current one."
    )
    # Random by default: guesses cannot be checked, and hashes are comparable within one run.
    request_log_salt: SecretStr | None = Field(
        default=None,
        min_length=16,
        description="Makes hashes in the log comparable across engines.",
    )

    @field_validator("model")
    @classmethod
    def _model_exists(cls, value: Path) -> Path:
        if (value / "config.json").is_file() or (value.name == "config.json" and value.is_file()):
            return value
        raise PydanticCustomError("no_model", "must be a folder that holds a config.json")

    @field_validator("entries")
    @classmethod
    def _entries_are_of_use(cls, value: int, info: ValidationInfo) -> int:
        if value > 0 and info.data.get("prefix_reuse") is False:
            raise PydanticCustomError(
                "reuse_disabled",
                "prefix_reuse = false and entries = {entries} exclude each other: "
                "nothing would ever read an entry; set entries to 0 or prefix_reuse to true",
                {"entries": value},
            )
        if value == 0 and info.data.get("current_state") is CurrentState.DROP:
            raise PydanticCustomError(
                "nothing_to_drop",
                "current_state = drop and entries = 0 exclude each other: "
                "only entries drop a state; set entries to at least 1 or current_state to keep",
            )
        return value

    @field_validator("api_keys_file")
    @classmethod
    def _form_is_known(cls, value: Path | None) -> Path | None:
        if value is not None and value.suffix not in (".json", ".toml"):
            raise PydanticCustomError("no_form", "must end in .json or .toml")
        return value

    @field_validator("api_keys")
    @classmethod
    def _keys_have_one_source(
        cls, value: SecretStr | None, info: ValidationInfo
    ) -> SecretStr | None:
        if value is not None and info.data.get("api_keys_file") is not None:
            raise PydanticCustomError(
                "two_sources", "api_keys and api_keys_file exclude each other; set one of them"
            )
        return value

    @field_validator("otlp_endpoint")
    @classmethod
    def _endpoint_is_a_base(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            url = urlsplit(value)
            has_host = bool(url.hostname) and url.port != 0
        except ValueError:
            has_host = False
        if not has_host or url.scheme not in ("http", "https"):
            raise PydanticCustomError("no_url", "must be like http://collector:4318")
        if url.username is not None or url.password is not None or url.query or url.fragment:
            raise PydanticCustomError("no_base", "must have neither a user nor a query")
        if url.path.rstrip("/").endswith("/v1/traces"):
            raise PydanticCustomError("no_base", "is a base address: /v1/traces is added to it")
        return value

    @property
    def model_id(self) -> str:
        """The model id in the API."""
        if self.served_model_name is not None:
            return self.served_model_name
        if self.model == REFERENCE_MODEL_PATH:
            return "kvreg-reference"
        return self.model.resolve().name

    @property
    def profile_hash(self) -> str:
        """A digest of all settings that affect memory or reuse, the same in every process."""
        decisive = {name: str(getattr(self, name)) for name in _DECISIVE_FIELDS}
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is the library's
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order the sources: flag, environment, config file."""
        path = init_settings().get("config_file") or env_settings().get("config_file")
        if path is None:
            return init_settings, env_settings
        values = _read_config_file(Path(path))
        return init_settings, env_settings, InitSettingsSource(settings_cls, values)


_DECISIVE_FIELDS = (
    "model", "lanes", "entries", "anchors", "current_state", "prefix_reuse", "eviction",
    "max_context", "device", "tp", "mtp", "kv_dtype", "memory_gib", "gpu_memory_gib", "kv_pages",
    "prefill_chunk_tokens",
)  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """An invalid setting: its name, its value, the source of the value, and the limit."""

    name: str
    value: object
    origin: str
    limit: str

    def __str__(self) -> str:
        shown = "" if self.value is None else f" = {str(self.value)[:80]}"
        return f"{self.name}{shown} ({self.origin}): {self.limit}"


def load_settings(flags: Mapping[str, object] | None = None) -> Settings:
    """Read flags, environment and config file into one frozen object.

    ``flags`` maps field names to values, text or typed; None means that the flag was not given.

    Raises:
        ConfigurationError: A setting is invalid. ``fields["problems"]`` has every ``Problem``, and
            the message lists them, one per line.
    """
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    problems = _find_unknown_environment_names()
    settings: Settings | None = None
    try:
        settings = Settings(**cast(dict[str, Any], given))
    except ValidationError as err:
        problems += [_describe(details, given) for details in err.errors(include_url=False)]
    if settings is None or problems:
        lines = "".join(f"\n  {problem}" for problem in problems)
        raise ConfigurationError(f"the settings are not valid:{lines}", problems=tuple(problems))
    return settings


def require_servable(settings: Settings) -> None:
    """Check that the settings can be served: some can be planned, but are not implemented yet.

    Raises:
        ConfigurationError: The message lists every setting that is not implemented.
    """
    missing = []
    if not settings.model.is_dir():
        missing.append(f"model = {settings.model}: a folder with weights is needed, not its config")
    if settings.device == "cuda":
        missing.append("device = cuda: the model runs on the CPU only so far")
    if settings.tp > 1:
        missing.append(f"tp = {settings.tp}: there is no tensor parallel execution yet; use 1")
    if settings.mtp > 0:
        missing.append(f"mtp = {settings.mtp}: tokens are not drafted yet; use 0")
    if settings.kv_dtype == "int8":
        missing.append("kv_dtype = int8: keys and values are not quantised yet; use auto or fp32")
    if missing:
        lines = "".join(f"\n  {line}" for line in missing)
        raise ConfigurationError(f"planned with `kvreg plan`, but not served yet:{lines}")


def _find_unknown_environment_names() -> list[Problem]:
    known = {environment_name(name) for name in Settings.model_fields}
    problems = []
    for name in sorted(os.environ):
        upper = name.upper()
        if not upper.startswith(ENV_PREFIX) or upper.startswith(FOREIGN_ENV_PREFIXES):
            continue
        if upper in _KEY_VARIABLES and not os.environ[name]:
            # If it counted as not set, the server would need no keys.
            problems.append(Problem(name, None, "environment", "is empty; set it or remove it"))
        if upper not in known:
            limit = "there is no such setting"
            if _SERVICE_LINK.fullmatch(upper):
                limit += "; Kubernetes sets it unless enableServiceLinks is false in the pod"
            problems.append(Problem(name, None, "environment", limit))
    return problems


def _read_config_file(path: Path) -> dict[str, Any]:
    readers = {".json": json.loads, ".toml": tomllib.loads}
    if path.suffix not in readers:
        raise ConfigurationError(f"config_file = {path}: must end in {' or '.join(readers)}")
    try:
        values = readers[path.suffix](path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise ConfigurationError(f"config_file = {path}: cannot be read: {err}") from err
    if not isinstance(values, dict):
        raise ConfigurationError(f"config_file = {path}: must hold one table of settings")
    return values


def _describe(details: ErrorDetails, flags: Mapping[str, object]) -> Problem:
    name = str(details["loc"][0]) if details["loc"] else "settings"
    # A key or a salt is never shown, even under a misspelled name.
    is_secret = any(word in name.lower() for word in ("api_key", "salt"))
    value = None if is_secret and name != "api_keys_file" else details["input"]
    environment = {key.upper() for key, value in os.environ.items() if value}
    if name in flags:
        origin = flag_name(name)
    elif environment_name(name) in environment:
        origin = environment_name(name)
    elif details["type"] == "extra_forbidden":
        return Problem(name, value, "config file", "there is no such setting")
    else:
        origin = "config file or default"
    limit = details["msg"].removeprefix("Input ")
    return Problem(name, value, origin, limit)

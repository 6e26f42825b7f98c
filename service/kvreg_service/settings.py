"""All settings of one engine: read once, checked together, frozen.

Owns names, types, limits, defaults and where a value may come from (a flag over the environment
over the mounted file over the default). It is the only place that reads the environment. It does
not open model files and computes no memory; what follows from the settings, its users compute.
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

# Names of the test harnesses; they share the prefix and are no settings.
FOREIGN_ENV_PREFIXES = ("KVREG_TEST_", "KVREG_CLUSTER_")
# Kubernetes puts these into every pod beside a Service called "kvreg".
_SERVICE_LINK = re.compile(r"KVREG_(SERVICE_HOST|SERVICE_PORT|PORT_\d+_(TCP|UDP|SCTP))(_.*)?")

_KEY_VARIABLES = tuple(environment_name(name) for name in ("api_keys", "api_keys_file"))

MAX_LANES = 64
MAX_ENTRIES = 4096
MAX_ANCHORS = 64
EvictionName = Literal["cost", "lru", "lfu", "fifo", "slru", "priority", "none"]


class Settings(BaseSettings):
    """What one engine is asked to be. Use ``load_settings``, which reports every problem at once.

    An environment variable that is set to nothing counts as not set, but for those of the API keys.
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
    # The name under which an operator mounted the file; shown in the effective profile.
    profile: str | None = Field(default=None, description="Name of the mounted profile.")

    # A laptop serves something without any download.
    model: Path = Field(
        default=REFERENCE_MODEL_PATH, description="Folder of the model, in the Hugging Face layout."
    )
    served_model_name: str | None = Field(
        default=None, min_length=1, max_length=256, description="Model id of the API."
    )

    # Nothing but this machine reaches a server that nobody configured.
    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port; 0 takes a free one.")

    # The case the registry exists for: one lane, one session, interrupted by side requests.
    lanes: int = Field(default=1, ge=1, le=MAX_LANES, description="Requests that run at once.")
    current_state: CurrentState = Field(
        default=CurrentState.KEEP,
        description="Whether entries keep the frontier state beside the checkpoint.",
    )
    prefix_reuse: bool = Field(default=True, description="Whether a prompt may reuse what is kept.")
    # One entry keeps the session; measured, a second one buys nothing at one lane.
    entries: int = Field(
        default=1, ge=0, le=MAX_ENTRIES, description="Displaced sequences that are kept."
    )
    # The head of the main conversations and that of one kind of sub-agent or side request.
    anchors: int = Field(
        default=2,
        ge=0,
        le=MAX_ANCHORS,
        description="Shared beginnings of prompts that are kept; one state slot each.",
    )
    exchange: bool = Field(
        default=True,
        description="Whether a returning sequence swaps places with the displaced one.",
    )
    eviction: EvictionName = Field(
        default="cost", description="Which kept sequence goes first; none evicts nobody."
    )

    max_context: int | None = Field(
        default=None, ge=1, description="Tokens of prompt and answer; by default what fits."
    )
    device: Literal["cpu", "cuda"] = Field(default="cpu", description="Where the model runs.")
    tp: int = Field(default=1, ge=1, le=8, description="Cards that share one model.")
    mtp: int = Field(default=0, ge=0, le=8, description="Tokens drafted per decode round.")
    kv_dtype: Literal["auto", "fp32", "fp16", "int8"] = Field(
        default="auto",
        description="Precision of keys and values; auto is the model's on its device.",
    )
    # Small beside any laptop's memory, and dozens of full sessions of the bundled model.
    memory_gib: float = Field(
        default=1.0, gt=0, description="On the CPU: memory for states, keys and values."
    )
    gpu_memory_gib: float | None = Field(
        default=None, gt=0, description="On cards: memory of one card; by default what it has."
    )
    kv_pages: int | None = Field(
        default=None,
        ge=1,
        description="Pages of keys and values; by default what the memory holds.",
    )
    # A decode step waits at most this many prompt tokens; larger chunks gain little on any device.
    prefill_chunk_tokens: int = Field(
        default=512, ge=64, le=65536, multiple_of=64, description="Prompt tokens of one step."
    )
    # The bundled model is fastest on one thread; larger ones want one per core.
    threads: int = Field(default=1, ge=1, le=1024, description="Threads of the model on the CPU.")

    queue_limit: int = Field(default=64, ge=0, description="Requests that wait for a lane.")
    queue_timeout_s: float = Field(default=60.0, gt=0, description="Longest wait for a lane.")
    # Kubernetes' own grace period before it kills.
    drain_timeout_s: float = Field(
        default=30.0, ge=0, description="Time that running requests have to finish at the end."
    )
    # About eight million tokens of text: far over any context, far under any memory.
    max_body_bytes: int = Field(
        default=32 * 1024 * 1024, ge=1024, description="Longest request body."
    )
    # A file can change while the engine runs, and a command line or a profile is no secret.
    api_keys_file: Path | None = Field(
        default=None, description="JSON or TOML file of tenants and their API keys."
    )
    api_keys: SecretStr | None = Field(
        default=None, description="The same as JSON text, for the environment."
    )
    otlp_endpoint: str | None = Field(
        default=None,
        description="Base address of a collector of traces; without it, none are made.",
    )
    # One request is a few spans, and most callers have sampled already.
    trace_ratio: float = Field(
        default=1.0, ge=0, le=1, description="Part of the requests traced without a caller's say."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least level that is logged."
    )
    # What it is for, and that it holds no text, is for whoever serves to know before it is on.
    request_log: Path | None = Field(
        default=None, description="File of one JSON line a request; by default there is none."
    )
    # With the number of files: half a gibibyte, weeks of one agent's traffic.
    request_log_max_bytes: int = Field(
        default=64 * 1024 * 1024, ge=65536, description="Size at which a new file begins."
    )
    request_log_files: int = Field(
        default=8, ge=1, le=1000, description="Files kept, the current one included."
    )
    # Random by default: nobody can check a guess, and names are good until the engine ends.
    request_log_salt: SecretStr | None = Field(
        default=None, min_length=16, description="Makes names in the log last across engines."
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
        """The name under which the API serves the model."""
        if self.served_model_name is not None:
            return self.served_model_name
        if self.model == REFERENCE_MODEL_PATH:
            return "kvreg-reference"
        return self.model.resolve().name

    @property
    def profile_hash(self) -> str:
        """A digest of every setting that decides memory or reuse, the same in every process."""
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
        """Order the sources: flag, environment, mounted file."""
        path = init_settings().get("config_file") or env_settings().get("config_file")
        if path is None:
            return init_settings, env_settings
        values = _read_config_file(Path(path))
        return init_settings, env_settings, InitSettingsSource(settings_cls, values)


_DECISIVE_FIELDS = (
    "model", "lanes", "entries", "anchors", "current_state", "prefix_reuse", "exchange", "eviction",
    "max_context", "device", "tp", "mtp", "kv_dtype", "memory_gib", "gpu_memory_gib", "kv_pages",
    "prefill_chunk_tokens",
)  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """One setting that is not valid: its name, its value, where that came from, and the limit."""

    name: str
    value: object
    origin: str
    limit: str

    def __str__(self) -> str:
        shown = "" if self.value is None else f" = {str(self.value)[:80]}"
        return f"{self.name}{shown} ({self.origin}): {self.limit}"


def load_settings(flags: Mapping[str, object] | None = None) -> Settings:
    """Read flags, environment and mounted file into one frozen object.

    ``flags`` maps field names to values, text or typed; None means that the flag was not given.

    Raises:
        ConfigurationError: Anything is invalid. ``fields["problems"]`` holds every ``Problem``, and
            the message lists them all, one a line.
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
    """Refuse what can be planned but not served yet.

    Raises:
        ConfigurationError: Names every setting that no code stands behind so far.
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
            # Taken for not set, it would open the server to everybody.
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
    # Whatever its name really should have been, a key or a salt is not shown.
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

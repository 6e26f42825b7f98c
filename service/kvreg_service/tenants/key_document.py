"""The document that lists tenants and their keys: its schema, its limits and its problems.

Owns the format of configured keys, JSON or TOML. Messages never contain a key, or text that may be
one: problems refer to it by its path.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from kvreg_service.core.errors import ConfigurationError
from kvreg_service.core.states.quota import Quota
from kvreg_service.tenants.keyring import Keyring, Tenant, digest_of

DocumentForm = Literal["json", "toml"]

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
# Other characters do not pass through an HTTP header unchanged.
_KEY = re.compile(r"[!-~]+")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_TOML_PLACE = re.compile(r"\(at [^()]*\)\Z")
_MAX_SHOWN_CHARACTERS = 80


def _require_key(value: str) -> str:
    if not value:
        raise PydanticCustomError("no_key", "is empty")
    if not _KEY.fullmatch(value):
        raise PydanticCustomError("no_key", "must be visible ASCII characters without spaces")
    return value


def _require_digest(value: str) -> str:
    if not _DIGEST.fullmatch(value):
        raise PydanticCustomError(
            "no_digest",
            "has {length} characters and must be 64 hexadecimal digits",
            {"length": len(value)},
        )
    return value


class TenantTable(BaseModel):
    """One tenant: its keys, or their SHA-256 digests, and its quota."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)

    keys: list[Annotated[str, AfterValidator(_require_key)]] = []
    key_sha256: list[Annotated[str, AfterValidator(_require_digest)]] = []
    entries: int | None = Field(default=None, ge=0)
    pages: int | None = Field(default=None, ge=0)
    anchors: int | None = Field(default=None, ge=0)
    is_admin: bool = False

    @model_validator(mode="after")
    def _quota_is_whole(self) -> TenantTable:
        if (self.entries is None) != (self.pages is None):
            raise PydanticCustomError("half_quota", "entries and pages are given only together")
        if self.anchors is not None and self.entries is None:
            raise PydanticCustomError("half_quota", "anchors are given only with entries and pages")
        return self

    def tenant(self, name: str) -> Tenant:
        """Build the tenant."""
        quota = None
        if self.entries is not None and self.pages is not None:
            quota = Quota(self.entries, self.pages, self.anchors or 0)
        return Tenant(name, quota, self.is_admin)

    def digests(self) -> Iterator[tuple[str, bytes]]:
        """Yield the path and the digest of every key."""
        for i, key in enumerate(self.keys):
            yield f"keys[{i}]", digest_of(key)
        for i, digest in enumerate(self.key_sha256):
            yield f"key_sha256[{i}]", bytes.fromhex(digest)


class KeyDocument(BaseModel):
    """The whole document."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)

    tenants: dict[str, TenantTable]


def parse_keyring(raw: bytes, form: DocumentForm, origin: str) -> Keyring:
    """Parse a document. ``origin`` names its source in messages.

    Raises:
        ConfigurationError: Anything is invalid; the message lists every problem, one a line.
    """
    try:
        document = KeyDocument.model_validate(_decode(raw, form, origin))
    except ValidationError as err:
        # Not `from err`: printing the cause would print the keys.
        raise _invalid(origin, [_describe(details) for details in err.errors()]) from None
    problems = [
        f"tenants.{_shown(name)}: the name of a tenant is 1 to 64 of A-Z a-z 0-9 . _ -"
        for name in document.tenants
        if not _NAME.fullmatch(name)
    ]
    places: dict[bytes, tuple[str, str]] = {}
    for name, table in document.tenants.items():
        for place, digest in table.digests():
            owner, first = places.setdefault(digest, (name, place))
            if owner != name:
                problems.append(
                    f"tenants.{_shown(name)}.{place}: is also tenants.{_shown(owner)}.{first}, "
                    "and a key has one tenant"
                )
    if problems:
        raise _invalid(origin, problems)
    return Keyring(
        {name: table.tenant(name) for name, table in document.tenants.items()},
        {digest: name for digest, (name, _) in places.items()},
    )


def _decode(raw: bytes, form: DocumentForm, origin: str) -> Any:
    try:
        text = raw.decode()
        if form == "json":
            return json.loads(text, object_pairs_hook=_without_repetition)
        return tomllib.loads(text)
    except UnicodeDecodeError as err:
        problem = f"is not UTF-8 at byte {err.start}"
    except json.JSONDecodeError as err:
        problem = f"is not JSON at line {err.lineno}, column {err.colno}: {err.msg}"
    except tomllib.TOMLDecodeError as err:
        # The rest of the message may quote the document.
        place = _TOML_PLACE.search(str(err))
        problem = f"is not TOML {place.group() if place else ''}".rstrip()
    except (ValueError, RecursionError) as err:
        problem = "is nested too deeply" if isinstance(err, RecursionError) else str(err)
    raise _invalid(origin, [problem])


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("has the same name twice in one table")
    return table


def _describe(details: Any) -> str:
    *outer, last = details["loc"] or ("document",)
    # Keys may have been written in place of tenant names.
    may_be_key = len(details["loc"]) in (1, 2) and details["type"] in (
        "extra_forbidden",
        "model_type",
    )
    parts = [*outer, f"{last[:4]}..." if may_be_key else last]
    place = "".join(
        f"[{part}]" if isinstance(part, int) else f".{_shown(part)}" for part in parts
    ).removeprefix(".")
    value = details["input"]
    # A string may be a key in the wrong place, and a table may contain keys.
    shown = f" = {str(value)[:_MAX_SHOWN_CHARACTERS]}" if isinstance(value, int | float) else ""
    return f"{place}{shown}: {details['msg'].removeprefix('Input ')}"


def _shown(name: str) -> str:
    return name[:_MAX_SHOWN_CHARACTERS] if name.isprintable() else repr(name)[:80]


def _invalid(origin: str, problems: list[str]) -> ConfigurationError:
    lines = "".join(f"\n  {problem}" for problem in problems)
    return ConfigurationError(f"{origin} is not valid:{lines}", problems=tuple(problems))

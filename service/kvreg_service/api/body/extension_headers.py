"""Headers that set extension fields, for clients whose bodies cannot be changed.

Owns their names and the syntax of their values. Meaning and limits are those of the fields.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kvreg_service.core.errors import InvalidRequest

MAX_TTL_S = 30 * 24 * 3600.0
MAX_PRIORITY = 1000

RETAIN_HEADER = "x-kvreg-retain-prefix"
REUSE_HEADER = "x-kvreg-reuse-prefix"
TTL_HEADER = "x-kvreg-cache-ttl-s"
PRIORITY_HEADER = "x-kvreg-priority"

# As JSON schemas, for the OpenAPI document.
HEADER_SCHEMAS: Mapping[str, dict[str, object]] = {
    RETAIN_HEADER: {"type": "boolean"},
    REUSE_HEADER: {"type": "boolean"},
    TTL_HEADER: {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_TTL_S},
    PRIORITY_HEADER: {"type": "integer", "minimum": -MAX_PRIORITY, "maximum": MAX_PRIORITY},
}

_FLAGS = {"true": True, "false": False}
# JSON's syntax; `float` accepts more, such as underscores and nan.
_NUMBER = re.compile(r"[0-9]{1,20}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?")
_INTEGER = re.compile(r"-?[0-9]{1,9}")
_MAX_SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class ExtensionHeaders:
    """The values of the extension headers of a request; None for a missing header."""

    retain_prefix: bool | None = None
    cache_prompt: bool | None = None
    cache_ttl_s: float | None = None
    priority: int | None = None


def read_extension_headers(headers: Mapping[str, str]) -> ExtensionHeaders:
    """Parse the extension headers.

    Raises:
        InvalidRequest: A value is invalid; ``param`` names the header.
    """
    return ExtensionHeaders(
        retain_prefix=_flag(headers, RETAIN_HEADER),
        cache_prompt=_flag(headers, REUSE_HEADER),
        cache_ttl_s=_ttl_s(headers, TTL_HEADER),
        priority=_priority(headers, PRIORITY_HEADER),
    )


def _flag(headers: Mapping[str, str], name: str) -> bool | None:
    value = headers.get(name)
    if value is None:
        return None
    flag = _FLAGS.get(value.strip().lower())
    if flag is None:
        raise _invalid(name, value, "true or false")
    return flag


def _ttl_s(headers: Mapping[str, str], name: str) -> float | None:
    value = headers.get(name)
    if value is None:
        return None
    if not _NUMBER.fullmatch(value.strip()) or not 0 < float(value) <= MAX_TTL_S:
        raise _invalid(name, value, f"a number above 0, at most {MAX_TTL_S:.0f}")
    return float(value)


def _priority(headers: Mapping[str, str], name: str) -> int | None:
    value = headers.get(name)
    if value is None:
        return None
    if not _INTEGER.fullmatch(value.strip()) or abs(int(value)) > MAX_PRIORITY:
        raise _invalid(name, value, f"an integer from -{MAX_PRIORITY} to {MAX_PRIORITY}")
    return int(value)


def _invalid(name: str, value: str, limit: str) -> InvalidRequest:
    shown = value[:_MAX_SHOWN_CHARACTERS]
    return InvalidRequest(f"header {name}: must be {limit} (got {shown!r})", param=name)

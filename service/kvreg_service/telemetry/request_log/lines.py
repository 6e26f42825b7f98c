"""The lines of the request log: one JSON object for each request, event and file.

Owns the names and formats of the fields. ``schema.json`` documents them for readers and changes
together with this module. A line never contains text of a prompt or an answer, a token id or the
name of a client.
"""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from kvreg_service.core import events
from kvreg_service.core.ids import PAGE_TOKENS
from kvreg_service.core.labels import CurrentState
from kvreg_service.engine.interface.record import RequestRecord
from kvreg_service.telemetry.request_log.hashes import LogHashes
from kvreg_service.telemetry.request_log.prefixes import Examined, NewPrefixes

SCHEMA_VERSION = 2

Fields = dict[str, Any]
Kind = Literal["engine", "request", "registry"]


@dataclass(frozen=True)
class EngineFacts:
    """The facts about an engine that a reader of the log needs. Byte sizes are per device."""

    version: str
    host: str
    model: str
    profile: str | None
    profile_hash: str
    lanes: int
    entries: int
    anchors: int
    current_state: CurrentState
    eviction: str
    prefix_reuse: bool
    max_context_tokens: int
    prefill_chunk_tokens: int
    queue_limit: int
    queue_timeout_s: float
    kv_dtype: str
    device: str
    num_pages: int
    page_bytes: int
    slot_bytes: int
    page_tokens: int = PAGE_TOKENS


class LineFormat:
    """Formats the lines of one engine.

    ``started_at_s`` is the start of the engine by the wall clock, ``started_s`` by the monotonic
    clock.
    """

    def __init__(
        self,
        facts: EngineFacts,
        hashes: LogHashes,
        *,
        engine_id: str,
        is_salt_kept: bool,
        started_at_s: float,
        started_s: float,
    ) -> None:
        self._facts = facts
        self._hashes = hashes
        self._engine_id = engine_id
        self._is_salt_kept = is_salt_kept
        self._started_at_s = started_at_s
        self._started_s = started_s

    def engine(self, event: Literal["start", "continue"]) -> Fields:
        """Return the fields of the line about the engine at the start of a file."""
        return {
            "event": event,
            "started_at": _time(self._started_at_s),
            "salt": "kept" if self._is_salt_kept else "random",
            **asdict(self._facts),
        }

    @staticmethod
    def end(*, num_lines: int, num_lost_lines: int) -> Fields:
        """Return the fields of the last line of an engine, with its counts of lines."""
        return {"event": "end", "num_lines": num_lines, "num_lost_lines": num_lost_lines}

    def request(self, record: RequestRecord, examined: Examined, new: NewPrefixes) -> Fields:
        """Return the fields of a request that has ended, without those that `line` adds."""
        admission, policy = record.admission, record.cache_policy
        return {
            "request_id": record.request_id,
            "tenant": self._hashes.tenant(record.tenant),
            "session": self._hashes.session(record.tenant, record.session),
            "profile_hash": self._facts.profile_hash,
            "outcome": record.outcome,
            "error_code": record.error_code,
            "finish_reason": record.finish_reason,
            "tail": record.tail,
            "prompt_tokens": record.prompt_tokens,
            "completion_tokens": len(record.output_ids),
            "max_tokens": record.max_tokens,
            "retain": policy.retain,
            "may_reuse": policy.may_reuse,
            "priority": policy.priority,
            "ttl_s": policy.ttl_s,
            "lane": admission.lane if admission else None,
            "session_id": admission.session_id if admission else None,
            "reuse_path": admission.reuse_path if admission else None,
            "attach": admission.attach if admission else None,
            "cached_tokens": admission.cached_tokens if admission else None,
            "gap_s": _seconds(admission.gap_s if admission else None),
            "diverged_at": admission.diverged_at if admission else None,
            "regret_tokens": admission.regret_tokens if admission else None,
            "arrived_s": _seconds(record.arrived_at_s - self._started_s),
            **_durations(record),
            "boundary_kind": record.boundary_kind,
            "turn_boundary": record.turn_boundary,
            "round_boundary": record.round_boundary,
            "message_boundary": record.message_boundary,
            "frontier": record.frontier,
            "heads": list(record.heads),
            "marked_heads": list(record.marked_heads),
            "kept_at": list(record.kept_at),
            "num_known_pages": new.num_known_pages,
            "known_page": new.known_page.hex() if new.known_page else None,
            "pages": b64encode(b"".join(new.pages)).decode(),
            "marks": [[position, name.hex()] for position, name in new.marks],
            "late_marks": [list(pair) for pair in examined.late],
        }

    def registry(self, event: events.Event) -> Fields:
        """Return the fields of an event.

        Raises:
            ValueError: Observers do not receive events of this type.
        """
        match event:
            case events.Detached(session_id, lane, num_states, held_bytes):
                return {
                    "event": "detach",
                    "session_id": session_id,
                    "lane": lane,
                    "num_states": num_states,
                    "bytes": held_bytes,
                }
            case events.Attached(request_id, session_id, lane, path):
                return {
                    "event": "attach",
                    "request_id": request_id,
                    "session_id": session_id,
                    "lane": lane,
                    "reuse_path": path,
                }
            case events.StateKept(state_id, session_id, request_id, kind, position, is_marked):
                return {
                    "event": "keep",
                    "request_id": request_id,
                    "session_id": session_id,
                    "state_id": state_id,
                    "state_kind": kind,
                    "tokens": position,
                    "is_marked": is_marked,
                }
            case events.Evicted(state_id, session_id, kind, reason, tenant, tokens, freed_bytes):
                return {
                    "event": "evict",
                    "reason": reason,
                    "tenant": self._hashes.tenant(tenant),
                    "session_id": session_id,
                    "state_id": state_id,
                    "state_kind": kind,
                    "tokens": tokens,
                    "bytes": freed_bytes,
                }
            case events.PinEnded(session_id):
                return {"event": "pin_end", "session_id": session_id}
            case _:
                raise ValueError(f"{type(event).__name__} is not an event of the registry")

    def line(self, kind: Kind, at_s: float, fields: Fields, number: int | None = None) -> bytes:
        """Return a complete line with its line break. ``at_s`` is wall clock time."""
        numbered = {} if number is None else {"number": number}
        line = {
            "schema_version": SCHEMA_VERSION,
            "kind": kind,
            "time": _time(at_s),
            "engine": self._engine_id,
            **numbered,
            **fields,
        }
        return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def _durations(record: RequestRecord) -> Fields:
    """Return the durations of the phases of a request; None for a phase that it did not reach."""
    return {
        "queue_s": _seconds(record.queue_s),
        "attach_s": _seconds(record.attach_s),
        "prefill_s": _seconds(record.prefill_s),
        "decode_s": _seconds(record.decode_s),
        "ttft_s": _seconds(record.ttft_s),
        "total_s": _seconds(record.total_s),
    }


def _seconds(value_s: float | None) -> float | None:
    return None if value_s is None else round(value_s, 6)


def _time(at_s: float) -> str:
    at = datetime.fromtimestamp(at_s, tz=UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")

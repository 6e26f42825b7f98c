"""The request log: one line for each request and for each change of kept states.

Owns the path from the step loop's thread to the file: a bounded queue, and a thread that hashes,
formats and writes. Errors of the file never affect requests: they are counted, logged once a minute
and retried. ``lines`` formats a line, ``prefixes`` finds the prefixes in it, and ``writer`` writes
it.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Literal, Protocol

from kvreg_service.core.events import Event
from kvreg_service.engine.interface.record import RequestRecord
from kvreg_service.telemetry.request_log.hashes import LogHashes
from kvreg_service.telemetry.request_log.lines import EngineFacts, LineFormat
from kvreg_service.telemetry.request_log.prefixes import Examined, FileContents, MarkTable
from kvreg_service.telemetry.request_log.writer import LogWriter

_logger = logging.getLogger(__name__)

LogLoss = Literal["write", "queue_full"]

MAX_QUEUED = 8192
"""Lines in the queue: minutes of traffic."""
MAX_QUEUED_TOKENS = 8_000_000
"""Tokens of the ledgers in the queue, 32 MB."""
RETRY_S = 1.0
PATIENCE_S = 60.0
"""A line is dropped if it could not be written for this long."""
REPORT_INTERVAL_S = 60.0
CLOSE_TIMEOUT_S = 5.0


class LogCounts(Protocol):
    """Counts lines. Called from two threads; must not block."""

    def log_line_written(self) -> None:
        """Count a line that was written."""
        ...

    def log_line_lost(self, reason: LogLoss) -> None:
        """Count a line that was dropped."""
        ...


class _Uncounted:
    def log_line_written(self) -> None:
        pass

    def log_line_lost(self, reason: LogLoss) -> None:
        pass


@dataclass(frozen=True)
class LogFile:
    """The file of the log, the limits of its size, and the salt of its hashes.

    There are at most ``max_files`` files, each of ``max_bytes`` and at most one more line. Without
    a ``salt``, hashes are comparable within one run of the engine only.
    """

    path: Path
    max_bytes: int = 64 << 20
    max_files: int = 8
    salt: str | None = None


_Observed = tuple[int, float, RequestRecord | Event]
"""The sequence number, the wall clock time, and the record or event."""

_OnWritten = Callable[[], None]
"""Called once a line is in the file."""
_Line = Callable[[], tuple[bytes, _OnWritten | None]]


class RequestLog:
    """Writes the request log of one engine. Implements `engine.interface.observer.Observer`.

    A callback takes microseconds, whatever the state of the file. Beyond the limits of the queue,
    lines are dropped and counted. `close` writes the rest of the queue.
    """

    def __init__(
        self,
        file: LogFile,
        facts: EngineFacts,
        counts: LogCounts | None = None,
        *,
        retry_s: float = RETRY_S,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        hashes = LogHashes(file.salt)
        self._path = file.path
        self._writer = LogWriter(file.path, max_bytes=file.max_bytes, max_files=file.max_files)
        self._format = LineFormat(
            facts,
            hashes,
            engine_id=secrets.token_hex(8),
            is_salt_kept=file.salt is not None,
            started_at_s=time.time(),
            started_s=time.monotonic(),
        )
        self._marks = MarkTable(hashes)
        self._contents = FileContents(hashes)
        self._counts = counts or _Uncounted()
        self._retry_s = retry_s
        self._patience_s = patience_s
        self._clock = clock
        self._queue: SimpleQueue[_Observed | None] = SimpleQueue()
        self._is_closing = threading.Event()
        # Each of these is written by one thread only.
        self._num_observed = 0
        self._num_refused = 0
        self._num_tokens_put = 0
        self._num_tokens_taken = 0
        self._num_written = 0
        self._num_given_up = 0
        self._lacks_head = True
        self._is_failing = False
        self._reported_at_s: float | None = None
        self._num_refused_reported = 0
        self._thread = threading.Thread(target=self._run, name="kvreg-request-log", daemon=True)
        self._thread.start()

    # Called by the step loop's thread.

    def request_ended(self, record: RequestRecord) -> None:
        """Log a finished request."""
        self._enqueue(record, record.prompt_tokens + len(record.output_ids))

    def registry_changed(self, event: Event) -> None:
        """Log an event of the registry."""
        self._enqueue(event, 0)

    def state_copied(self, seconds: float) -> None:
        """Do nothing: the line of the request has its durations."""

    def token_followed(self, gap_s: float) -> None:
        """Do nothing: single tokens are not logged."""

    def _enqueue(self, what: RequestRecord | Event, num_tokens: int) -> None:
        self._num_observed += 1
        num_waiting_tokens = self._num_tokens_put - self._num_tokens_taken
        if self._queue.qsize() >= MAX_QUEUED or num_waiting_tokens > MAX_QUEUED_TOKENS:
            self._num_refused += 1
            self._counts.log_line_lost("queue_full")
            return
        self._num_tokens_put += num_tokens
        self._queue.put((self._num_observed, time.time(), what))

    # Called at shutdown.

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Write the rest of the queue and close the file. Idempotent and thread-safe.

        Returns:
            False if that took longer than ``timeout_s``; the thread then continues until the
            process ends.
        """
        if not self._is_closing.is_set():
            self._is_closing.set()
            self._queue.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # Called by the thread of the log.

    def _run(self) -> None:
        # The line about the engine is in the file before any traffic.
        self._persist(None)
        while (observed := self._queue.get()) is not None:
            number, at_s, what = observed
            try:
                self._persist(self._line_of(number, at_s, what))
            except Exception as error:  # noqa: BLE001 - logged; the next line may succeed
                self._give_up()
                self._report("a line could not be formatted", error)
            if isinstance(what, RequestRecord):
                self._num_tokens_taken += what.prompt_tokens + len(what.output_ids)
            if self._num_refused > self._num_refused_reported:
                self._report("the queue was full")
        self._persist(self._end)
        self._writer.close()

    def _line_of(self, number: int, at_s: float, what: RequestRecord | Event) -> _Line:
        if not isinstance(what, RequestRecord):
            fields = self._format.registry(what)
            return lambda: (self._format.line("registry", at_s, fields, number), None)
        examined = self._examine(what, number)

        def line() -> tuple[bytes, _OnWritten]:
            new = self._contents.missing(examined)
            fields = self._format.request(what, examined, new)
            on_written = partial(self._contents.add, examined, new)
            return self._format.line("request", at_s, fields, number), on_written

        return line

    def _examine(self, record: RequestRecord, number: int) -> Examined:
        ledger = record.prompt
        boundaries = (record.turn_boundary, record.round_boundary, record.message_boundary)
        positions = [len(ledger), *record.heads, *record.kept_at]
        positions += [one for one in boundaries if one is not None]
        if record.frontier is not None:
            positions.append(record.frontier)
            # The last token was sampled but never computed.
            ledger = ledger.copy(len(ledger))
            for token in record.output_ids[:-1]:
                ledger.append(token)
        return self._marks.examine(
            ledger,
            positions,
            number=number,
            arrived_at_s=record.arrived_at_s,
            ended_at_s=record.ended_at_s,
        )

    def _end(self) -> tuple[bytes, None]:
        lost = self._num_refused + self._num_given_up
        fields = self._format.end(num_lines=self._num_written, num_lost_lines=lost)
        return self._format.line("engine", time.time(), fields), None

    def _persist(self, line: _Line | None) -> None:
        """Write a line, or only the head of the file, and retry for up to ``patience_s``.

        The line is formatted again for each attempt, because its prefixes depend on the file.
        """
        started_s = self._clock()
        while True:
            try:
                self._begin_file()
                if line is not None:
                    text, on_written = line()
                    self._writer.write(text)
                    self._count_written()
                    if on_written is not None:
                        on_written()
                return
            except OSError as error:
                self._report(f"it cannot be written: {error}")
                if self._is_closing.is_set() or self._clock() - started_s >= self._patience_s:
                    if line is not None:
                        self._give_up()
                    return
                self._is_closing.wait(self._retry_s)

    def _begin_file(self) -> None:
        """Start a new file with the line about the engine, so that it can be read on its own."""
        if self._writer.prepare():
            self._lacks_head = True
            self._contents.clear()
        if self._lacks_head:
            event: Literal["start", "continue"] = "continue" if self._num_written else "start"
            self._writer.write(self._format.line("engine", time.time(), self._format.engine(event)))
            self._lacks_head = False
            self._count_written()

    def _count_written(self) -> None:
        self._num_written += 1
        self._counts.log_line_written()
        if self._is_failing:
            self._is_failing = False
            _logger.info("writing to the request log %s succeeds again", self._path)

    def _give_up(self) -> None:
        self._num_given_up += 1
        self._counts.log_line_lost("write")

    def _report(self, problem: str, error: Exception | None = None) -> None:
        """Log a problem of the request log, at most once a minute."""
        self._num_refused_reported = self._num_refused
        now_s = self._clock()
        if self._reported_at_s is not None and now_s - self._reported_at_s < REPORT_INTERVAL_S:
            return
        self._reported_at_s = now_s
        self._is_failing = True
        num_lost = self._num_refused + self._num_given_up
        _logger.error(
            "the request log %s has a problem: %s; %d lines are lost so far",
            self._path, problem, num_lost, exc_info=error,
        )  # fmt: skip

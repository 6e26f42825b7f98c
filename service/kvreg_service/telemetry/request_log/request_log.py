"""The request log: what happened to each request and each kept sequence, as lines of a file.

Owns the way from the step loop's thread to the file: a bounded queue, and a thread that hashes,
formats and writes. Nothing that goes wrong with the file reaches those who serve: it is counted,
told to the process's own log once a minute, and tried again. What a line says is in ``lines``,
which prefixes it names in ``prefixes``, and where it goes in ``writer``.
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
from kvreg_service.engine.observer import RequestRecord
from kvreg_service.telemetry.request_log.hashes import LogHashes
from kvreg_service.telemetry.request_log.lines import EngineFacts, LineFormat
from kvreg_service.telemetry.request_log.prefixes import Examined, FileNotes, MarkTable
from kvreg_service.telemetry.request_log.writer import LogWriter

_logger = logging.getLogger(__name__)

LogLoss = Literal["write", "queue_full"]

MAX_QUEUED = 8192
"""Lines that wait for the writer: minutes of traffic."""
MAX_QUEUED_TOKENS = 8_000_000
"""Tokens of ledgers that wait for the writer, 32 MB."""
RETRY_S = 1.0
PATIENCE_S = 60.0
"""A line that could not be written for so long is given up."""
NOTICE_INTERVAL_S = 60.0
CLOSE_TIMEOUT_S = 5.0


class LogCounts(Protocol):
    """Who counts the lines. Called on two threads, and must not block."""

    def log_line_written(self) -> None:
        """A line is in the file."""
        ...

    def log_line_lost(self, reason: LogLoss) -> None:
        """A line will never be in the file."""
        ...


class _Uncounted:
    def log_line_written(self) -> None:
        pass

    def log_line_lost(self, reason: LogLoss) -> None:
        pass


@dataclass(frozen=True)
class LogFile:
    """Where the log goes, how large it may get, and under which salt it names things.

    There are at most ``max_files`` files of ``max_bytes``, and one line more in each. Without a
    ``salt`` names are good within one run of the engine only.
    """

    path: Path
    max_bytes: int = 64 << 20
    max_files: int = 8
    salt: str | None = None


_Told = tuple[int, float, RequestRecord | Event]
"""Which one in order, the time of the wall clock, and what happened."""

_Said = Callable[[], None]
"""Notes that a line is in the file."""
_Line = Callable[[], tuple[bytes, _Said | None]]


class RequestLog:
    """Writes the request log of one engine. Implements `engine.observer.Observer`.

    What is observed takes microseconds, whatever the file is like; beyond the limits of the queue
    it is dropped and counted. `close` writes what is left.
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
        self._notes = FileNotes(hashes)
        self._counts = counts or _Uncounted()
        self._retry_s = retry_s
        self._patience_s = patience_s
        self._clock = clock
        self._queue: SimpleQueue[_Told | None] = SimpleQueue()
        self._is_closing = threading.Event()
        # Each of these is written by one thread only.
        self._num_told = 0
        self._num_refused = 0
        self._num_tokens_put = 0
        self._num_tokens_taken = 0
        self._num_written = 0
        self._num_given_up = 0
        self._lacks_head = True
        self._is_in_trouble = False
        self._noticed_at_s: float | None = None
        self._num_refused_noticed = 0
        self._thread = threading.Thread(target=self._run, name="kvreg-request-log", daemon=True)
        self._thread.start()

    # On the step loop's thread.

    def request_ended(self, record: RequestRecord) -> None:
        """Log a request."""
        self._tell(record, record.prompt_tokens + len(record.output_ids))

    def registry_changed(self, event: Event) -> None:
        """Log what was moved."""
        self._tell(event, 0)

    def states_moved(self, seconds: float, *, is_attach: bool, is_detach: bool) -> None:
        """Do nothing: the request's own line says it."""

    def token_followed(self, gap_s: float) -> None:
        """Do nothing: single tokens are not logged."""

    def _tell(self, what: RequestRecord | Event, num_tokens: int) -> None:
        self._num_told += 1
        num_waiting_tokens = self._num_tokens_put - self._num_tokens_taken
        if self._queue.qsize() >= MAX_QUEUED or num_waiting_tokens > MAX_QUEUED_TOKENS:
            self._num_refused += 1
            self._counts.log_line_lost("queue_full")
            return
        self._num_tokens_put += num_tokens
        self._queue.put((self._num_told, time.time(), what))

    # At the end of the process.

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Write what is left and close the file, from any thread. Idempotent.

        Returns:
            False when that took longer than ``timeout_s``; it is left to the end of the process.
        """
        if not self._is_closing.is_set():
            self._is_closing.set()
            self._queue.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # On the log's own thread.

    def _run(self) -> None:
        # Whoever looks at a file finds the engine in it before any traffic.
        self._persist(None)
        while (told := self._queue.get()) is not None:
            number, at_s, what = told
            try:
                self._persist(self._line_of(number, at_s, what))
            except Exception as error:  # noqa: BLE001 - logged; the next line may be better
                self._give_up()
                self._notice("a line could not be made", error)
            if isinstance(what, RequestRecord):
                self._num_tokens_taken += what.prompt_tokens + len(what.output_ids)
            if self._num_refused > self._num_refused_noticed:
                self._notice("lines came faster than they could be written")
        self._persist(self._end)
        self._writer.close()

    def _line_of(self, number: int, at_s: float, what: RequestRecord | Event) -> _Line:
        if not isinstance(what, RequestRecord):
            fields = self._format.registry(what)
            return lambda: (self._format.line("registry", at_s, fields, number), None)
        examined = self._examine(what, number)

        def line() -> tuple[bytes, _Said]:
            news = self._notes.news(examined)
            fields = self._format.request(what, examined, news)
            said = partial(self._notes.add, examined, news)
            return self._format.line("request", at_s, fields, number), said

        return line

    def _examine(self, record: RequestRecord, number: int) -> Examined:
        ledger = record.prompt
        boundaries = (record.boundary, record.turn_boundary, record.round_boundary)
        positions = [len(ledger), *(one for one in boundaries if one is not None)]
        if record.frontier is not None:
            positions.append(record.frontier)
            # The last token was sampled and never computed.
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
        """Write a line, or the head of the file alone, as often as it takes within its patience.

        The line is asked for at each try, because what it has to say depends on the file.
        """
        started_s = self._clock()
        while True:
            try:
                self._begin_file()
                if line is not None:
                    text, said = line()
                    self._writer.write(text)
                    self._count_written()
                    if said is not None:
                        said()
                return
            except OSError as error:
                self._notice(f"it cannot be written: {error}")
                if self._is_closing.is_set() or self._clock() - started_s >= self._patience_s:
                    if line is not None:
                        self._give_up()
                    return
                self._is_closing.wait(self._retry_s)

    def _begin_file(self) -> None:
        """Give a file that begins its head, so that it can be read without the ones before."""
        if self._writer.prepare():
            self._lacks_head = True
            self._notes.clear()
        if self._lacks_head:
            event: Literal["start", "continue"] = "continue" if self._num_written else "start"
            self._writer.write(self._format.line("engine", time.time(), self._format.engine(event)))
            self._lacks_head = False
            self._count_written()

    def _count_written(self) -> None:
        self._num_written += 1
        self._counts.log_line_written()
        if self._is_in_trouble:
            self._is_in_trouble = False
            _logger.info("the request log %s is written again", self._path)

    def _give_up(self) -> None:
        self._num_given_up += 1
        self._counts.log_line_lost("write")

    def _notice(self, trouble: str, error: Exception | None = None) -> None:
        """Tell the process's own log, but not more often than once a minute."""
        self._num_refused_noticed = self._num_refused
        now_s = self._clock()
        if self._noticed_at_s is not None and now_s - self._noticed_at_s < NOTICE_INTERVAL_S:
            return
        self._noticed_at_s = now_s
        self._is_in_trouble = True
        num_lost = self._num_refused + self._num_given_up
        _logger.error(
            "the request log %s has trouble: %s; %d lines are lost so far",
            self._path, trouble, num_lost, exc_info=error,
        )  # fmt: skip

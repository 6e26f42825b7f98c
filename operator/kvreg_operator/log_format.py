"""The form of the log: one JSON object a line on standard output, as the engine's.

Owns the format and how it is installed, which only the program's entry does.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime


class JsonLines(logging.Formatter):
    """Formats a record as JSON. ``extra={"fields": {...}}`` adds fields to the line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, tz=UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = getattr(record, "fields", None)
        if isinstance(fields, dict):
            line |= fields
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def install_json_log(level: str) -> None:
    """Send every record of ``level`` and above to standard output.

    Effects: replaces the handlers of the root logger.
    """
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # One line for each request, event and probe tells nobody anything.
    for name in ("httpx", "httpcore", "aiohttp.access", "kopf.objects", "kopf.activities"):
        logging.getLogger(name).setLevel(max(root.level, logging.WARNING))
    # Kopf warns that it gets no signals in its threads; they are the program's.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)

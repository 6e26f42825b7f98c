"""The log of the process: one JSON object per line on standard output, as the engine's.

Owns which fields a line has, and which loggers are quieter than the rest. Only the program's entry
installs it.
"""

from __future__ import annotations

import logging
import sys

from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter

# Kopf puts objects of its own into its records.
_FOREIGN_FIELDS = ("k8s_ref", "k8s_skip", "settings")


def build_formatter() -> logging.Formatter:
    """Build the formatter. ``extra={...}`` adds fields to a line."""
    return JsonFormatter(
        ("time", "levelname", "name", "message"),
        rename_fields={"levelname": "level", "name": "logger", "exc_info": "exception"},
        timestamp="time",
        json_ensure_ascii=False,
        reserved_attrs=(*RESERVED_ATTRS, *_FOREIGN_FIELDS),
    )


def install_json_log(level: str) -> None:
    """Send every record of ``level`` and above to standard output.

    Effects: replaces the handlers of the root logger.
    """
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(build_formatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # One line per request, event and probe would bury the others.
    for name in ("httpx", "httpcore", "aiohttp.access", "kopf.objects", "kopf.activities"):
        logging.getLogger(name).setLevel(max(root.level, logging.WARNING))
    # Kopf warns that it gets no signals in its threads. The program handles them.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)

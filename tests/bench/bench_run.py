"""What every bench is given, and how it refuses to measure."""

from __future__ import annotations

from dataclasses import dataclass

from rich.progress import Progress


@dataclass(frozen=True)
class BenchRun:
    """The options of one run. ``peer_url`` is an OpenAI-compatible server, or None."""

    rounds: int
    peer_url: str | None
    peer_name: str
    progress: Progress


class RedError(Exception):
    """A wrong answer, or something that a bench needs and did not find."""

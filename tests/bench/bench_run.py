"""The options of a bench, and the error that ends one."""

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


class BenchFailed(Exception):
    """The engine's output is wrong, or a precondition of a bench does not hold."""

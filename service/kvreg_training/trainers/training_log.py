"""The progress bar and the log of a training run, as JSON lines.

Owns the bar and the log file of one phase. Only the first rank has one.
"""

from __future__ import annotations

import json
import time
from collections import deque
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

_STEPS_PER_LINE = 20


class TrainingLog:
    """Reports steps as they end. Use it as a context manager.

    Appends to the file, so that a continued run keeps its history.
    """

    def __init__(self, title: str, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._recent: deque[dict[str, float]] = deque(maxlen=_STEPS_PER_LINE)
        self._num_steps = 0
        self._num_tokens = 0
        self._start_s = time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[status]}"),
            console=Console(),
        )
        self._task = self._progress.add_task(title, total=1.0, status="")

    def __enter__(self) -> TrainingLog:
        self._progress.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def step(self, time_share: float, num_tokens: int, **values: float) -> None:
        """Reports a step. ``num_tokens`` counts those of all ranks, including padding."""
        self._num_steps += 1
        self._num_tokens += num_tokens
        self._recent.append(values)
        means = {
            name: sum(step[name] for step in self._recent) / len(self._recent) for name in values
        }
        tokens_per_s = self._num_tokens / (time.monotonic() - self._start_s)
        status = f"step {self._num_steps} " + " ".join(
            f"{name} {mean:.4f}" for name, mean in means.items()
        )
        self._progress.update(
            self._task, completed=time_share, status=f"{status} {tokens_per_s:.0f} tok/s"
        )
        if self._num_steps % _STEPS_PER_LINE == 0:
            self.write(time_share=time_share, tokens_per_s=tokens_per_s, **means)

    def write(self, **values: object) -> None:
        """Appends a line with the step and token count and these values."""
        line = {"step": self._num_steps, "tokens": self._num_tokens, **values}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def print(self, text: str) -> None:
        """Prints a line above the bar."""
        self._progress.console.print(text)

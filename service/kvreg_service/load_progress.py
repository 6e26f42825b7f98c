"""Shows a person how far the loading of a model has come. A log gets no progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn


@contextmanager
def show_loading(model_name: str) -> Iterator[Callable[[str, int, int], None]]:
    """Draw a bar on standard error while the block runs, if that is a terminal.

    Yields:
        What the loader calls after each tensor: its name, the bytes read and the bytes in all.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("loading {task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(model_name, total=None)

        def on_progress(_name: str, done_bytes: int, total_bytes: int) -> None:
            progress.update(task, completed=done_bytes, total=total_bytes)

        yield on_progress

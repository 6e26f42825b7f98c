"""The progress bar of model loading, shown on a terminal only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn


@contextmanager
def show_loading(model_name: str) -> Iterator[Callable[[str, int, int], None]]:
    """Show a progress bar on standard error during the block, if that is a terminal.

    Yields:
        The callback of the loader, called after each tensor with its name, the bytes read so far
        and the total bytes.
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

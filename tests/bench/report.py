"""The report of a run: printed tables, and a Markdown document with a JSON file."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from machine import Machine
from rich.console import Console
from rich.table import Table as RichTable


@dataclass(frozen=True)
class Table:
    """Rows of text under a title; the first column names the row."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Plot:
    """A PNG image, written next to the document as ``<date>-<name>.png``."""

    name: str
    title: str
    png: bytes


@dataclass(frozen=True)
class Section:
    """The result of one bench: its method, tables, and the data of the tables.

    A section that is not timed holds counts, which are the same in every run.
    """

    name: str
    method: str
    tables: Sequence[Table]
    data: dict[str, Any] = field(default_factory=dict)
    plots: Sequence[Plot] = ()
    is_timed: bool = True


@dataclass(frozen=True)
class Report:
    """The sections of one run, with the machine and the command."""

    name: str
    command: str
    date: datetime.date
    machine: Machine
    remark: str
    sections: Sequence[Section]

    def show(self, console: Console) -> None:
        """Print the tables."""
        for section in self.sections:
            for table in section.tables:
                shown = RichTable(*table.columns, title=table.title, title_justify="left")
                for row in table.rows:
                    shown.add_row(*row)
                console.print(shown)

    def write(self, folder: Path) -> Path:
        """Write ``<date>-<name>.md`` and ``.json``, and the plots; return the path of the first."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.date.isoformat()}-{self.name}.md"
        path.write_text("\n".join(self._lines()) + "\n", encoding="utf-8")
        content = {
            "date": self.date.isoformat(),
            "command": self.command,
            "remark": self.remark,
            "machine": self.machine.as_json(),
            "sections": {section.name: section.data for section in self.sections},
        }
        path.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        for section in self.sections:
            for plot in section.plots:
                (folder / self._file_name(plot)).write_bytes(plot.png)
        return path

    def _file_name(self, plot: Plot) -> str:
        return f"{self.date.isoformat()}-{plot.name}.png"

    def _lines(self) -> Iterator[str]:
        machine = self.machine
        yield f"# Measurements of {self.date.isoformat()}: {self.name}"
        yield ""
        yield f"- Command: `{self.command}`"
        yield (
            f"- Device: {machine.processor}, {machine.cores} cores with "
            f"{machine.threads_per_core} thread each; {machine.model_threads} model thread"
        )
        yield f"- Load average before the first measurement: {machine.load:.2f}"
        versions = ", ".join(f"{name} {number}" for name, number in machine.versions.items())
        yield f"- Versions: {versions}"
        if self.remark:
            yield f"- {self.remark}"
        if any(section.is_timed for section in self.sections):
            yield ""
            yield "Values are medians, with minimum and maximum in parentheses."
        for section in self.sections:
            yield ""
            yield f"## {section.name.replace('_', ' ').capitalize()}"
            yield ""
            yield section.method
            for plot in section.plots:
                yield ""
                yield f"![{plot.title}]({self._file_name(plot)})"
            for table in section.tables:
                yield ""
                yield f"**{table.title}**"
                yield ""
                yield from _markdown(table)


def goal_text(is_met: bool, goal: str) -> str:
    """Return a goal and whether it is met."""
    return f"{goal}: {'met' if is_met else 'missed'}"


def _markdown(table: Table) -> Iterator[str]:
    yield "| " + " | ".join(table.columns) + " |"
    yield "|" + "---|" * len(table.columns)
    for row in table.rows:
        yield "| " + " | ".join(row) + " |"

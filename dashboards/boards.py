"""All dashboards, and the files that hold them."""

from __future__ import annotations

from pathlib import Path

from dashboards.board import Board, write_json
from dashboards.operator_board import build_operator_board
from dashboards.panels import DOCS_URL
from dashboards.registry_board import build_registry_board
from dashboards.serving_board import build_serving_board

GENERATED = Path(__file__).parent / "generated"


def build_boards() -> list[Board]:
    """Build all dashboards."""
    return [build_registry_board(), build_serving_board(), build_operator_board()]


def write_all(folder: Path, *, docs_url: str = DOCS_URL) -> None:
    """Write each dashboard to a file of its name, and remove other JSON files."""
    folder.mkdir(exist_ok=True)
    written = {
        f"{board.name}.json": write_json(board).replace(DOCS_URL, docs_url)
        for board in build_boards()
    }
    for old in folder.glob("*.json"):
        if old.name not in written:
            old.unlink()
    for name, text in written.items():
        (folder / name).write_text(text, encoding="utf-8")

"""The rooms of a package have no import cycle, and the number of arrows is limited.

A room is a sub-package, or a module at the package's root; an arrow is a pair of rooms of which one
imports the other.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest

Arrows = dict[str, set[str]]

# The most arrows of each package; None where only cycles are forbidden.
MAX_ARROWS = {
    "kvreg_service.api": 29,
    "kvreg_operator": 21,
    "kvreg_service.chat": None,
    "kvreg_service.telemetry": None,
}


@pytest.fixture(scope="module")
def imports() -> grimp.ImportGraph:
    return grimp.build_graph("kvreg_service", "kvreg_operator", cache_dir=None)


def arrows_between_rooms(imports: grimp.ImportGraph, package: str) -> Arrows:
    """Return for each room of ``package`` the other rooms that its modules import."""
    arrows: Arrows = {}
    for room in imports.find_children(package):
        modules = {room, *imports.find_descendants(room)}
        imported = {name for x in modules for name in imports.find_modules_directly_imported_by(x)}
        arrows[room] = {
            other
            for other in imports.find_children(package) - {room}
            if imported & {other, *imports.find_descendants(other)}
        }
    return arrows


@pytest.mark.parametrize("package", MAX_ARROWS)
def test_rooms_have_no_import_cycle(imports: grimp.ImportGraph, package: str) -> None:
    try:
        TopologicalSorter(arrows_between_rooms(imports, package)).prepare()
    except CycleError as err:
        pytest.fail(f"import cycle between rooms: {' -> '.join(reversed(err.args[1]))}")


@pytest.mark.parametrize(
    ("package", "max_arrows"), [(name, n) for name, n in MAX_ARROWS.items() if n is not None]
)
def test_number_of_arrows_is_limited(
    imports: grimp.ImportGraph, package: str, max_arrows: int
) -> None:
    arrows = arrows_between_rooms(imports, package)
    assert sum(len(targets) for targets in arrows.values()) <= max_arrows, arrows

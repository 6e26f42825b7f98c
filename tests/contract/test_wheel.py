"""The wheel contains every file of its packages and no training code."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[2]
PACKAGES = ("service/kvreg_service", "kernels/kvreg_kernels", "operator/kvreg_operator")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build the wheel and the editable wheel of the working tree."""
    folder = tmp_path_factory.mktemp("wheels")
    built = {}
    for version in ("standard", "editable"):
        (wheel,) = WheelBuilder(str(ROOT)).build(
            directory=str(folder / version), versions=[version]
        )
        built[version] = Path(wheel)
    return built


def in_package(package: str) -> set[str]:
    """Return the files of a package as paths inside a wheel."""
    root = ROOT / package
    return {
        str(file.relative_to(root.parent))
        for file in root.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }


def test_wheel_contains_exactly_the_files_of_its_packages(wheels: dict[str, Path]) -> None:
    expected = set().union(*map(in_package, PACKAGES))
    assert "kvreg_service/reference_model/model.safetensors" in expected
    carried = set(ZipFile(wheels["standard"]).namelist())
    assert {name for name in carried if ".dist-info/" not in name} == expected


def test_wheel_does_not_contain_kvreg_training(wheels: dict[str, Path]) -> None:
    assert in_package("service/kvreg_training")
    names = ZipFile(wheels["standard"]).namelist()
    assert not [name for name in names if "kvreg_training" in name]


def test_editable_install_can_import_kvreg_training(wheels: dict[str, Path]) -> None:
    wheel = ZipFile(wheels["editable"])
    (path_file,) = (name for name in wheel.namelist() if name.endswith(".pth"))
    roots = map(Path, wheel.read(path_file).decode().splitlines())
    assert ROOT / "service" in set(roots)

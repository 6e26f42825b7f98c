"""What the engine's wheel carries: every file that serves, and not the training of its model."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[2]
PACKAGES = ("service/kvreg_service", "kernels/kvreg_kernels", "operator/kvreg_operator")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel and the editable wheel of the working tree."""
    folder = tmp_path_factory.mktemp("wheels")
    built = {}
    for version in ("standard", "editable"):
        (wheel,) = WheelBuilder(str(ROOT)).build(
            directory=str(folder / version), versions=[version]
        )
        built[version] = Path(wheel)
    return built


def in_package(package: str) -> set[str]:
    """Return the files of a package, as paths inside of a wheel."""
    root = ROOT / package
    return {
        str(file.relative_to(root.parent))
        for file in root.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }


def test_wheel_carries_every_file_of_its_packages_and_no_other(wheels: dict[str, Path]) -> None:
    expected = set().union(*map(in_package, PACKAGES))
    assert "kvreg_service/reference_model/model.safetensors" in expected
    carried = set(ZipFile(wheels["standard"]).namelist())
    assert {name for name in carried if ".dist-info/" not in name} == expected


def test_wheel_does_not_carry_the_training(wheels: dict[str, Path]) -> None:
    assert in_package("service/kvreg_training")
    names = ZipFile(wheels["standard"]).namelist()
    assert not [name for name in names if "kvreg_training" in name]


def test_editable_install_finds_the_training(wheels: dict[str, Path]) -> None:
    wheel = ZipFile(wheels["editable"])
    (path_file,) = (name for name in wheel.namelist() if name.endswith(".pth"))
    roots = map(Path, wheel.read(path_file).decode().splitlines())
    assert ROOT / "service" in set(roots)

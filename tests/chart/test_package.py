"""The chart with Helm: lint, package, versions, and the stored renderings."""

from __future__ import annotations

import tarfile
import tomllib
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from tests.chart import golden
from tests.chart.helm import CHART, EXAMPLES, render, run_helm, select
from tests.chart.renderings import CASES, Case
from tests.chart.renderings import EXAMPLES as EXAMPLE_NAMES

from kvreg_operator.crd.definition import build_crd

ROOT = CHART.parents[1]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    run_helm("package", str(CHART), "--destination", str(folder))
    (path,) = folder.iterdir()
    return path


@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_lint_finds_nothing(name: str) -> None:
    text = run_helm("lint", str(CHART), "--strict", "-f", str(EXAMPLES / f"values-{name}.yaml"))
    assert "[WARNING]" not in text
    assert "[ERROR]" not in text


def test_every_values_file_of_the_examples_is_rendered() -> None:
    assert {path.stem.removeprefix("values-") for path in EXAMPLES.glob("*.yaml")} == set(
        EXAMPLE_NAMES
    )


def test_package_has_the_files_behind_the_links(package: Path) -> None:
    with tarfile.open(package) as archive:
        assert all(member.isfile() for member in archive)
        for folder in ("rules", "generated"):
            for source in (ROOT / "dashboards" / folder).iterdir():
                linked = "rules" if folder == "rules" else "dashboards"
                member = archive.extractfile(f"kvreg/files/{linked}/{source.name}")
                assert member is not None
                assert member.read() == source.read_bytes()


def test_package_renders_what_the_folder_renders(package: Path) -> None:
    values = EXAMPLES / "values-v100-tp2.yaml"
    texts = [
        run_helm("template", "kvreg", str(chart), "-f", str(values)) for chart in (CHART, package)
    ]
    assert texts[0] == texts[1]


def test_versions_are_the_distribution_s() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert chart["appVersion"] == version
    assert chart["version"] == version.replace(".dev", "-dev")


@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_rendering_is_the_stored_one(name: str) -> None:
    stored = (golden.FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    assert golden.golden_text(name) == stored, "if it is meant: python -m tests.chart.golden"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_object_is_named_once(case: Case) -> None:
    names = [
        (part["kind"], part["metadata"].get("namespace"), part["metadata"]["name"])
        for part in case.render()
    ]
    assert len(names) == len(set(names))


def test_definition_is_the_operator_s_and_is_kept() -> None:
    crd = select(render(), "CustomResourceDefinition")
    assert crd["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert crd == build_crd()

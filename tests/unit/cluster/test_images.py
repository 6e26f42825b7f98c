"""An image is rebuilt exactly when one of its sources has changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cluster.harness import images
from tests.cluster.harness.images import RECIPES, Recipe, Record
from tests.cluster.harness.places import REPOSITORY
from tests.cluster.harness.release import merge

RECIPE = Recipe("Dockerfile", ("code", "pins.txt"))


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(images, "REPOSITORY", tmp_path)
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    (tmp_path / "pins.txt").write_text("one==1\n")
    (tmp_path / "code" / "__pycache__").mkdir(parents=True)
    (tmp_path / "code" / "one.py").write_text("")
    return tmp_path


@pytest.mark.parametrize("name", ["Dockerfile", "pins.txt", "code/one.py", "code/two.py"])
def test_digest_covers_every_copied_file(repository: Path, name: str) -> None:
    before = RECIPE.digest()
    (repository / name).write_text("changed")
    assert RECIPE.digest() != before


@pytest.mark.parametrize("name", ["other.txt", "code/__pycache__/one.pyc"])
def test_digest_ignores_other_files(repository: Path, name: str) -> None:
    before = RECIPE.digest()
    (repository / name).write_text("changed")
    assert RECIPE.digest() == before


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda recipe: recipe.dockerfile)
def test_recipe_lists_every_path_that_its_dockerfile_copies(recipe: Recipe) -> None:
    copied: set[str] = set()
    for line in (REPOSITORY / recipe.dockerfile).read_text().splitlines():
        words = line.split()
        if words[:1] == ["COPY"] and not words[1].startswith("--"):
            copied |= {word.partition("/")[0] for word in words[1:-1]}
    assert copied == {source.partition("/")[0] for source in recipe.sources}


def test_record_is_read_by_the_next_run(tmp_path: Path) -> None:
    Record(tmp_path / "record.json").set("built", "engine", "abc")
    assert Record(tmp_path / "record.json").get("built", "engine") == "abc"
    assert Record(tmp_path / "record.json").get("brought", "engine") is None


def test_record_is_written_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    Record(path).set("built", "engine", "abc")
    write = Path.write_text

    def write_half(self: Path, text: str) -> int:
        write(self, text[: len(text) // 2])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", write_half)
    with pytest.raises(KeyboardInterrupt):
        Record(path).set("built", "engine", "def")
    assert Record(path).get("built", "engine") == "abc"


def test_values_are_merged_as_by_helm() -> None:
    values = {"engine": {"replicas": 1, "image": {"tag": "a"}}, "crd": {"install": True}}
    changes = {"engine": {"image": {"tag": "b"}}, "crd": None}
    assert merge(values, changes) == {
        "engine": {"replicas": 1, "image": {"tag": "b"}},
        "crd": None,
    }

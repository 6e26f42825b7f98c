"""The sources of settings, their precedence, and errors that list all problems at once."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pydantic
import pytest

from kvreg_service.core.errors import ConfigurationError
from kvreg_service.reference_model import REFERENCE_MODEL_PATH
from kvreg_service.settings import Problem, load_settings, require_servable


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith("KVREG_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"lanes": 3, "entries": 3, "queue_limit": 3}))
    return path


def problems_of(flags: dict[str, Any] | None = None) -> dict[str, Problem]:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(flags)
    problems = caught.value.fields["problems"]
    assert isinstance(problems, tuple)
    return {problem.name: problem for problem in problems}


def test_defaults_serve_the_bundled_model_on_the_loopback() -> None:
    settings = load_settings()
    assert (settings.model, settings.host, settings.port) == (
        REFERENCE_MODEL_PATH,
        "127.0.0.1",
        8000,
    )


def test_flag_overrides_environment_overrides_file_overrides_default(
    monkeypatch: pytest.MonkeyPatch, config_file: Path
) -> None:
    monkeypatch.setenv("KVREG_LANES", "2")
    monkeypatch.setenv("KVREG_ENTRIES", "2")
    settings = load_settings({"lanes": "1", "config_file": str(config_file)})
    assert (settings.lanes, settings.entries, settings.queue_limit) == (1, 2, 3)
    assert settings.threads == 1


def test_path_of_the_config_file_can_be_set_in_the_environment(
    monkeypatch: pytest.MonkeyPatch, config_file: Path
) -> None:
    monkeypatch.setenv("KVREG_CONFIG_FILE", str(config_file))
    assert load_settings().lanes == 3


def test_file_may_be_toml(tmp_path: Path) -> None:
    path = tmp_path / "profile.toml"
    path.write_text('lanes = 2\ncurrent_state = "drop"\neviction = "lru"\n')
    settings = load_settings({"config_file": path})
    assert (settings.lanes, settings.current_state, settings.eviction) == (2, "drop", "lru")


def test_unset_flag_does_not_override_other_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVREG_LANES", "2")
    assert load_settings({"lanes": None}).lanes == 2


def test_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVREG_LANES", "")
    assert load_settings().lanes == 1


def test_settings_are_immutable() -> None:
    settings = load_settings()
    with pytest.raises(pydantic.ValidationError):
        settings.lanes = 2  # type: ignore[misc]


def test_all_invalid_values_are_reported_together(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"tp": 0, "lanse": 2}))
    monkeypatch.setenv("KVREG_ENTRIES", "-1")
    monkeypatch.setenv("KVREG_LAYNES", "1")
    problems = problems_of({"lanes": "many", "config_file": path})
    assert set(problems) == {"KVREG_LAYNES", "lanes", "entries", "tp", "lanse"}


def test_problem_has_value_origin_and_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVREG_LANES", "65")
    problem = problems_of()["lanes"]
    assert str(problem) == "lanes = 65 (KVREG_LANES): should be less than or equal to 64"


def test_problem_of_a_flag_names_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVREG_MAX_CONTEXT", "64")
    assert problems_of({"max_context": "0"})["max_context"].origin == "--max-context"


def test_unknown_policy_lists_the_known_ones() -> None:
    limit = problems_of({"eviction": "lucky"})["eviction"].limit
    assert "'cost'" in limit
    assert "'none'" in limit


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "65536"),
        ("port", "-1"),
        ("lanes", "0"),
        ("lanes", "65"),
        ("entries", "-1"),
        ("current_state", "lose"),
        ("max_context", "0"),
        ("device", "tpu"),
        ("tp", "0"),
        ("mtp", "-1"),
        ("kv_dtype", "fp8"),
        ("memory_gib", "0"),
        ("memory_gib", "nan"),
        ("memory_gib", "inf"),
        ("kv_pages", "0"),
        ("prefill_chunk_tokens", "100"),
        ("prefill_chunk_tokens", "0"),
        ("queue_limit", "-1"),
        ("queue_timeout_s", "0"),
        ("drain_timeout_s", "-1"),
        ("max_body_bytes", "1"),
        ("threads", "0"),
        ("log_level", "loud"),
        ("served_model_name", ""),
        ("prefix_reuse", "perhaps"),
        ("model", "/nowhere"),
    ],
)
def test_value_out_of_range_is_refused(name: str, value: str) -> None:
    assert set(problems_of({name: value})) == {name}


def test_entries_without_reuse_are_refused_with_both_values() -> None:
    limit = problems_of({"prefix_reuse": False, "entries": 2})["entries"].limit
    assert "prefix_reuse = false" in limit
    assert "entries = 2" in limit


def test_drop_without_entries_is_refused_with_both_values() -> None:
    limit = problems_of({"current_state": "drop", "entries": 0})["entries"].limit
    assert "current_state = drop" in limit
    assert "entries = 0" in limit


def test_reuse_may_be_disabled_without_entries() -> None:
    assert load_settings({"prefix_reuse": False, "entries": 0}).prefix_reuse is False


@pytest.mark.parametrize("name", ["KVREG_TEST_GPU", "KVREG_CLUSTER_NAME", "KVREGISTRY"])
def test_unrelated_variables_are_ignored(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "1")
    load_settings()


def test_kubernetes_service_link_variable_is_an_error_with_its_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KVREG_SERVICE_HOST", "10.0.0.1")
    assert "enableServiceLinks" in problems_of()["KVREG_SERVICE_HOST"].limit


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("profile.yaml", "lanes: 1"),
        ("profile.json", "{"),
        ("profile.json", "[]"),
        ("profile.toml", "lanes"),
    ],
)
def test_unreadable_file_is_an_error_with_its_path(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=name):
        load_settings({"config_file": path})


def test_missing_file_is_an_error_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"absent\.json"):
        load_settings({"config_file": tmp_path / "absent.json"})


def test_default_model_name_is_the_folder_name(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert load_settings({"model": folder}).model_id == "my-model"


def test_model_name_can_be_set() -> None:
    assert load_settings({"served_model_name": "chat"}).model_id == "chat"


@pytest.mark.parametrize("name", ["KVREG_API_KEYS", "KVREG_API_KEYS_FILE"])
def test_empty_api_keys_are_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "")
    assert "is empty" in problems_of()[name].limit


def test_api_keys_from_two_sources_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVREG_API_KEYS", "sk-secret")
    problems = problems_of({"api_keys_file": "keys.json"})
    assert "exclude each other" in problems["api_keys"].limit


@pytest.mark.parametrize("name", ["keys", "keys.yaml"])
def test_key_file_with_an_unknown_extension_is_refused(name: str) -> None:
    assert ".toml" in problems_of({"api_keys_file": name})["api_keys_file"].limit


@pytest.mark.parametrize(
    "values",
    [
        {"api_keys": {"tenants": {"a": {"keys": ["sk-secret"]}}}},
        {"api_keys": "sk-secret", "api_keys_file": "keys.json"},
        {"api_key": "sk-secret"},
        {"kvreg_api_keys": "sk-secret"},
    ],
    ids=lambda value: next(iter(value)),
)
def test_problems_contain_no_key(tmp_path: Path, values: dict[str, Any]) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(values))
    with pytest.raises(ConfigurationError) as caught:
        load_settings({"config_file": path})
    assert "secret" not in caught.value.message
    assert "secret" not in str(caught.value.fields)


def test_text_of_settings_contains_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVREG_API_KEYS", "sk-secret")
    settings = load_settings()
    assert "secret" not in f"{settings!r} {settings} {settings.model_dump_json()}"


def test_profile_hash_ignores_settings_without_effect_on_memory_or_reuse() -> None:
    assert load_settings({"port": 1, "log_level": "debug"}).profile_hash == (
        load_settings().profile_hash
    )


@pytest.mark.parametrize(
    "flags", [{"lanes": 2}, {"entries": 2}, {"current_state": "drop"}, {"eviction": "lru"}], ids=str
)
def test_profile_hash_differs_between_profiles(flags: dict[str, Any]) -> None:
    assert load_settings(flags).profile_hash != load_settings().profile_hash


def test_all_unsupported_settings_are_reported_together() -> None:
    settings = load_settings({"tp": 2, "mtp": 1, "device": "cuda", "kv_dtype": "int8"})
    with pytest.raises(ConfigurationError) as caught:
        require_servable(settings)
    for part in ("tp = 2", "mtp = 1", "device = cuda", "kv_dtype = int8"):
        assert part in caught.value.message


def test_defaults_are_supported() -> None:
    require_servable(load_settings())

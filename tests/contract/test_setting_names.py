"""Names of settings, flags and engine policies agree."""

from __future__ import annotations

import typing

from kvreg_service.cli import OPTIONS, PLAN_OPTIONS
from kvreg_service.core.states.policies import POLICIES
from kvreg_service.settings import EvictionName, Settings


def test_every_setting_is_an_option_of_serve() -> None:
    # The model is a positional argument. Secrets are not options: `ps` shows command lines.
    elsewhere = {"model", "api_keys", "request_log_salt"}
    assert {option.name for option in OPTIONS} | elsewhere == set(Settings.model_fields)


def test_every_option_of_plan_is_a_setting() -> None:
    assert {option.name for option in PLAN_OPTIONS} <= set(Settings.model_fields)


def test_boolean_settings_are_switches() -> None:
    switches = {option.name for option in OPTIONS if option.metavar is None}
    booleans = {name for name, f in Settings.model_fields.items() if f.annotation is bool}
    assert switches == booleans


def test_help_shows_the_defaults_of_the_settings() -> None:
    shown = {
        option.name: option.help.rpartition("[")[2].removesuffix("]")
        for option in OPTIONS
        if option.help.endswith("]")
    }
    assert shown == {name: as_shown(Settings.model_fields[name].default) for name in shown}


def as_shown(default: object) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    return f"{default:g}" if isinstance(default, float) else str(default)


def test_eviction_names_equal_the_policy_names() -> None:
    assert set(typing.get_args(EvictionName)) == set(POLICIES)

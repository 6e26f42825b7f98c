"""The hash of a profile changes with everything that requires other pods, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from tests.operator.objects import hash_of, make_profile

from kvreg_operator.manifests.desired_state import render_settings

# Every field of the spec that changes an engine, with another value.
EDITS: list[dict[str, Any]] = [
    {"lanes": 2},
    {"registryEntries": 3},
    {"currentState": "Drop"},
    {"anchors": 2},
    {"restartId": "monday"},
]
# Every other field.
OTHER_EDITS: list[dict[str, Any]] = [
    {"rollout": {"strategy": "OnDelete"}},
    {"rollout": {"waitForIdle": False}},
    {"rollout": {"idleTimeoutSeconds": 5}},
    {"rollout": {"force": True}},
    {"rollout": {"paused": True}},
    {"canary": {"pods": 1}},
]


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: next(iter(edit)))
def test_edit_of_an_engine_setting_changes_the_hash(edit: dict[str, Any]) -> None:
    assert hash_of(make_profile(**edit)) != hash_of(make_profile())


@pytest.mark.parametrize("edit", OTHER_EDITS, ids=str)
def test_edit_of_the_rollout_keeps_the_hash(edit: dict[str, Any]) -> None:
    assert hash_of(make_profile(**edit)) == hash_of(make_profile())


def test_every_field_of_the_spec_is_in_one_of_the_two_lists() -> None:
    fields = {f.alias for f in type(make_profile().spec).model_fields.values()}
    named = {name for edit in EDITS + OTHER_EDITS for name in edit}
    # The target cannot be edited.
    assert fields == named | {"targetRef"}


def test_default_written_out_keeps_the_hash() -> None:
    assert hash_of(make_profile(currentState="Keep")) == hash_of(make_profile())


def test_hash_of_a_released_version_stays() -> None:
    # With another value here, an upgrade of the operator restarts every engine.
    assert hash_of(make_profile("small", lanes=1, registryEntries=2)) == "54ef9d18241a7fe0"


def test_hash_is_the_same_in_another_process() -> None:
    code = "from tests.operator.objects import *; print(hash_of(make_profile()))"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == hash_of(make_profile())


def test_anchors_that_are_not_set_are_left_to_the_engine() -> None:
    document = render_settings(make_profile())
    assert "anchors" not in json.loads(document.text)


def test_zero_anchors_are_rendered() -> None:
    document = render_settings(make_profile(anchors=0))
    assert json.loads(document.text)["anchors"] == 0

"""docs/api.md names every route, field, error code and value of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fastapi import FastAPI

from kvreg_service.api.anthropic import request as messages_request
from kvreg_service.api.anthropic.request import MessagesRequest
from kvreg_service.api.errors import ERROR_TABLE
from kvreg_service.api.openai import request as chat_request
from kvreg_service.api.openai.request import ChatRequest
from kvreg_service.core.labels import Attach, ReusePath
from kvreg_service.core.states.quota import Quota
from kvreg_service.tenants.key_document import TenantTable, parse_keyring
from kvreg_service.tenants.keyring import Tenant

DOCUMENT = Path(__file__).parents[2] / "docs" / "api.md"
# Errors of the start, and those that no request alone can cause.
NEVER_ANSWERED = {
    "kvreg_error",
    "invalid_configuration",
    "does_not_fit",
    "invalid_model_files",
    "current_slot_dropped",
}


@pytest.fixture(scope="module")
def named() -> set[str]:
    """Every word of the page in code font."""
    codes = re.findall(r"`([^`\n]+)`", DOCUMENT.read_text(encoding="utf-8"))
    return {word for code in codes for word in re.findall(r"[\w/{}-]+", code)}


@pytest.mark.parametrize("model", [ChatRequest, MessagesRequest])
def test_every_field_that_is_read_is_named(
    named: set[str], model: type[ChatRequest] | type[MessagesRequest]
) -> None:
    assert set(model.model_fields) <= named


@pytest.mark.parametrize("module", [chat_request, messages_request])
def test_every_field_without_effect_is_named(named: set[str], module: object) -> None:
    assert set(module.IGNORED_FIELDS) <= named  # type: ignore[attr-defined]


def test_every_route_is_named(named: set[str], app: FastAPI) -> None:
    assert {path.replace(":path", "") for path in app.openapi()["paths"]} <= {
        *named,
        "/v1/models/{model_id}",
    }


def test_every_code_is_named(named: set[str]) -> None:
    codes = {error.code for error in ERROR_TABLE}
    assert codes - NEVER_ANSWERED <= named


def test_every_reuse_path_is_named(named: set[str]) -> None:
    assert {*ReusePath, *Attach} <= named


def test_example_of_a_key_file_is_valid() -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    keyring = parse_keyring(example.encode(), "toml", "docs/api.md")
    assert keyring.quotas == {"alpha": Quota(entries=2, pages=200, anchors=1)}
    assert keyring.find("sk-operations-51aa") == Tenant("operations", is_admin=True)


def test_every_field_of_a_key_file_is_named(named: set[str]) -> None:
    assert set(TenantTable.model_fields) <= named

"""The meaning of a key document, and that errors list all problems without keys."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from kvreg_service.core.errors import ConfigurationError
from kvreg_service.core.states.quota import Quota
from kvreg_service.tenants.key_document import parse_keyring
from kvreg_service.tenants.keyring import Keyring

SECRET = "sk-very-secret"


def parse(tenants: dict[str, Any]) -> Keyring:
    return parse_keyring(json.dumps({"tenants": tenants}).encode(), "json", "here")


def problems_of(raw: bytes | dict[str, Any], form: Any = "json") -> list[str]:
    raw = raw if isinstance(raw, bytes) else json.dumps({"tenants": raw}).encode()
    with pytest.raises(ConfigurationError) as caught:
        parse_keyring(raw, form, "here")
    problems = caught.value.fields["problems"]
    assert isinstance(problems, tuple)
    assert all(problem in caught.value.message for problem in problems)
    return list(problems)


def name_of(keyring: Keyring, key: str) -> str | None:
    tenant = keyring.find(key)
    return None if tenant is None else tenant.name


def test_key_finds_its_tenant() -> None:
    keyring = parse({"alpha": {"keys": ["a1", "a2"]}, "beta": {"keys": ["b1"]}})
    assert [name_of(keyring, key) for key in ("a1", "a2", "b1", "c1", "")] == [
        "alpha",
        "alpha",
        "beta",
        None,
        None,
    ]


@pytest.mark.parametrize("form", [str.lower, str.upper], ids=["lower", "upper"])
def test_key_is_found_by_its_digest(form: Any) -> None:
    digest = form(hashlib.sha256(b"a1").hexdigest())
    keyring = parse({"alpha": {"key_sha256": [digest]}})
    assert name_of(keyring, "a1") == "alpha"
    assert keyring.find(digest) is None


def test_same_document_may_be_toml() -> None:
    text = b"[tenants.alpha]\nkeys = ['a1']\nentries = 2\npages = 200\nis_admin = true\n"
    tenant = parse_keyring(text, "toml", "here").find("a1")
    assert tenant is not None
    assert (tenant.name, tenant.quota, tenant.is_admin) == ("alpha", Quota(2, 200, 0), True)


def test_quota_is_only_that_of_a_tenant_that_names_one() -> None:
    keyring = parse(
        {"alpha": {"keys": ["a1"], "entries": 2, "pages": 200, "anchors": 1}, "beta": {}}
    )
    assert keyring.quotas == {"alpha": Quota(2, 200, 1)}


def test_tenant_is_no_administrator_by_default() -> None:
    tenant = parse({"alpha": {"keys": ["a1"]}}).find("a1")
    assert tenant is not None
    assert (tenant.is_admin, tenant.view) == (False, "alpha")


def test_administrator_sees_all_tenants() -> None:
    tenant = parse({"alpha": {"keys": ["a1"], "is_admin": True}}).find("a1")
    assert tenant is not None
    assert tenant.view is None


def test_no_tenants_means_no_keys() -> None:
    assert len(parse({})) == 0


def test_tenant_may_have_a_key_twice() -> None:
    digest = hashlib.sha256(b"a1").hexdigest()
    assert len(parse({"alpha": {"keys": ["a1", "a1"], "key_sha256": [digest]}})) == 1


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"keys": [""]}, "tenants.alpha.keys[0]: is empty"),
        ({"keys": ["a b"]}, "tenants.alpha.keys[0]: must be visible ASCII"),
        ({"keys": ["\u00e4"]}, "tenants.alpha.keys[0]: must be visible ASCII"),
        ({"keys": SECRET}, "tenants.alpha.keys: should be a valid list"),
        ({"keys": [5]}, "tenants.alpha.keys[0] = 5: should be a valid string"),
        ({"key_sha256": [SECRET]}, "tenants.alpha.key_sha256[0]: has 14 characters and must be 64"),
        (
            {"entries": -1, "pages": 1},
            "tenants.alpha.entries = -1: should be greater than or equal",
        ),
        ({"entries": 1, "pages": -2}, "tenants.alpha.pages = -2: should be greater than or equal"),
        (
            {"entries": 1, "pages": 2, "anchors": -3},
            "tenants.alpha.anchors = -3: should be greater than or equal",
        ),
        ({"entries": 1.5, "pages": 1}, "tenants.alpha.entries = 1.5: should be a valid integer"),
        ({"entries": 1}, "tenants.alpha: entries and pages are given only together"),
        ({"pages": 1}, "tenants.alpha: entries and pages are given only together"),
        ({"anchors": 1}, "tenants.alpha: anchors are given only with entries and pages"),
        ({"is_admin": "yes"}, "tenants.alpha.is_admin: should be a valid boolean"),
        ({"key": [SECRET]}, "tenants.alpha.key: Extra inputs"),
        ([SECRET], "tenants.alph...: should be a valid dictionary"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_problem_names_tenant_field_value_and_limit(table: Any, problem: str) -> None:
    (told,) = problems_of({"alpha": table})
    assert told.startswith(problem)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a\n", "\u00e4", "a" * 65])
def test_name_of_a_tenant_is_checked(name: str) -> None:
    (told,) = problems_of({name: {"keys": ["a1"]}})
    assert "1 to 64 of" in told


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "a" * 64])
def test_names_of_tenants(name: str) -> None:
    assert name_of(parse({name: {"keys": ["a1"]}}), "a1") == name


def test_key_of_two_tenants_is_reported_with_both_paths() -> None:
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    told = problems_of({"alpha": {"keys": ["a1", SECRET]}, "beta": {"key_sha256": [digest]}})
    assert told == [
        "tenants.beta.key_sha256[0]: is also tenants.alpha.keys[1], and a key has one tenant"
    ]


def test_all_problems_are_reported_together() -> None:
    told = problems_of({"alpha": {"keys": [""], "entries": -1, "pages": 1}, "beta": {"pages": 1}})
    assert len(told) == 3


@pytest.mark.parametrize(
    ("raw", "form", "problem"),
    [
        (b"", "json", "is not JSON"),
        (b'{"tenants": {"alpha": {"keys": ["sk-very-secret]}}}', "json", "line 1, column 33"),
        (b"", "toml", "tenants: Field required"),
        (b'[tenants.alpha]\nkeys = ["sk-very-secret"', "toml", "(at end of document)"),
        (b"[tenants.alpha]\nkeys = {sk-very-secret=1,sk-very-secret=2}", "toml", "is not TOML"),
        (b"{}", "json", "tenants: Field required"),
        (b"[]", "json", "document: "),
        (b'{"tenants": {}, "sk-very-secret": "alpha"}', "json", "sk-v...: Extra inputs"),
        (b'{"tenants": {"sk-very-secret": "alpha"}}', "json", "tenants.sk-v...: should be"),
        (b'{"tenants": {"a": {}, "a": {}}}', "json", "same name twice"),
        (b"\xff", "json", "not UTF-8 at byte 0"),
        (b"[" * 100_000, "json", "too deeply"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_document_of_another_shape_is_refused(raw: bytes, form: Any, problem: str) -> None:
    (told,) = problems_of(raw, form)
    assert problem in told
    assert SECRET not in told


def test_no_problem_shows_a_key_anywhere() -> None:
    # Neither the message nor the causes that a traceback would print.
    with pytest.raises(ConfigurationError) as caught:
        parse({"alpha": {"keys": [SECRET, ""], "key_sha256": [SECRET], "entries": SECRET}})
    error: BaseException | None = caught.value
    assert SECRET not in str(error)
    assert error is not None
    assert error.__cause__ is None
    assert error.__suppress_context__

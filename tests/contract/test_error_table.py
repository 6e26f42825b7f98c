"""Every error class has a code and a row in the table that maps errors to HTTP statuses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvreg_service.api.errors import ERROR_TABLE
from kvreg_service.core.errors import KvregError


def subclasses_of(base: type[KvregError]) -> Iterator[type[KvregError]]:
    for child in base.__subclasses__():
        yield child
        yield from subclasses_of(child)


ALL_ERRORS = (KvregError, *subclasses_of(KvregError))


@pytest.mark.parametrize("error", ALL_ERRORS, ids=lambda error: error.__name__)
def test_every_error_has_an_http_status(error: type[KvregError]) -> None:
    assert error in ERROR_TABLE


@pytest.mark.parametrize("error", ALL_ERRORS, ids=lambda error: error.__name__)
def test_every_error_has_a_unique_code(error: type[KvregError]) -> None:
    assert "code" in vars(error)
    assert [other for other in ALL_ERRORS if other.code == error.code] == [error]


@pytest.mark.parametrize("error", ALL_ERRORS, ids=lambda error: error.__name__)
def test_every_status_is_4xx_or_5xx(error: type[KvregError]) -> None:
    assert 400 <= ERROR_TABLE[error].status < 600

"""The tree of errors and the table that maps it to HTTP name the same classes."""

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
def test_every_error_has_a_row(error: type[KvregError]) -> None:
    assert error in ERROR_TABLE


@pytest.mark.parametrize("error", ALL_ERRORS, ids=lambda error: error.__name__)
def test_every_error_has_a_code_of_its_own(error: type[KvregError]) -> None:
    assert "code" in vars(error)
    assert [other for other in ALL_ERRORS if other.code == error.code] == [error]


@pytest.mark.parametrize("error", ALL_ERRORS, ids=lambda error: error.__name__)
def test_every_row_is_a_failure(error: type[KvregError]) -> None:
    assert 400 <= ERROR_TABLE[error].status < 600

"""A test that is marked slow without a reason fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.slow_marks import require_reason


def marked(*marks: pytest.MarkDecorator) -> pytest.Item:
    """Return a test with these marks."""
    return cast(Any, SimpleNamespace(iter_markers=lambda _: (each.mark for each in marks)))


EXPLAINED = pytest.mark.slow(reason="starts a server")


@pytest.mark.parametrize("marks", [(), (EXPLAINED,)], ids=["fast", "slow"])
def test_fast_test_and_slow_test_with_a_reason_pass(marks: tuple[pytest.MarkDecorator]) -> None:
    require_reason(marked(*marks))


@pytest.mark.parametrize(
    "mark",
    [
        pytest.mark.slow,
        pytest.mark.slow(reason=""),
        pytest.mark.slow(reason=" "),
        pytest.mark.slow(reason=None),
        pytest.mark.slow("starts a server"),
        pytest.mark.slow(why="starts a server"),
    ],
    ids=["bare", "empty", "blank", "none", "positional", "other-name"],
)
def test_slow_test_without_a_reason_fails(mark: pytest.MarkDecorator) -> None:
    with pytest.raises(pytest.fail.Exception, match="write the reason"):
        require_reason(marked(EXPLAINED, mark))

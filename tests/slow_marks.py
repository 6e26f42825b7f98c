"""The mark ``slow``, which leaves a test out of ``make test-fast``: it always has a reason.

Owns the check of that. Which tests are slow is decided in their own files.
"""

from __future__ import annotations

import pytest


def require_reason(item: pytest.Item) -> None:
    """Fail a test that is marked slow in any other form than ``slow(reason="...")``."""
    if not all(map(_has_reason, item.iter_markers("slow"))):
        pytest.fail('write the reason: @pytest.mark.slow(reason="starts a server")', pytrace=False)


def _has_reason(mark: pytest.Mark) -> bool:
    reason = mark.kwargs.get("reason")
    return isinstance(reason, str) and bool(reason.strip()) and not mark.args

"""A failure is that request's alone: who was there before it is there after it."""

from __future__ import annotations

import pytest

from kvreg_service.core.errors import KvregError
from kvreg_service.core.events import Attached, Failed

SESSION = list(range(200))


def _with_session(make_core, **options):
    core = make_core(entries=1, **options)
    core.run([*SESSION, 1, 2], boundary=200)
    return core


def _session_cached(core) -> int:
    return core.run([*SESSION, 3, 4], boundary=200).cached


def test_a_failed_first_chunk_of_a_side_request_does_not_cost_the_displaced_session(make_core):
    core = _with_session(make_core)
    core.runner.fails_moves = False
    core.step(fail=[core.submit([9] * 50)])
    assert _session_cached(core) == 200

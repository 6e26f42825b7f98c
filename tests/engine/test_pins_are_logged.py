"""Pins override the eviction policy, so the log records each pin with its TTL."""

from __future__ import annotations

import logging

import pytest
from engine_bench import token_prompt

from kvreg_service.core.errors import SessionNotFound


@pytest.fixture
def messages(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="kvreg_service.engine.engine")
    return caplog


def test_pin_and_unpin_are_logged(make_bench, ids, messages):
    bench = make_bench()
    bench.run(bench.request(token_prompt(ids(1, 70), 69)))
    sequence_id = bench.resting_on(0).sequence_id
    bench.engine.pin(sequence_id, 90.0)
    bench.engine.unpin(sequence_id)
    assert [record.args for record in messages.records] == [(sequence_id, 90.0), (sequence_id,)]


def test_refused_pin_is_not_logged(make_bench, messages):
    bench = make_bench()
    with pytest.raises(SessionNotFound):
        bench.engine.pin(5, 90.0)
    assert messages.records == []

"""The log says what was pinned and for how long: a pin keeps it whatever the policy says."""

from __future__ import annotations

import logging

import pytest
from engine_bench import token_prompt

from kvreg_service.core.errors import SessionNotFound


@pytest.fixture
def messages(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="kvreg_service.engine.engine")
    return caplog


def test_pin_and_its_end_by_hand_are_logged(make_bench, ids, messages):
    bench = make_bench()
    bench.run(bench.request(token_prompt(ids(1, 70), 69)))
    sequence_id = bench.resting_on(0).sequence_id
    bench.engine.pin(sequence_id, 90.0)
    bench.engine.unpin(sequence_id)
    assert [record.args for record in messages.records] == [(sequence_id, 90.0), (sequence_id,)]


def test_pin_that_is_refused_is_not_logged(make_bench, messages):
    bench = make_bench()
    with pytest.raises(SessionNotFound):
        bench.engine.pin(5, 90.0)
    assert messages.records == []

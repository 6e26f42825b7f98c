"""The resumable position of a sequence, and its invariants."""

from __future__ import annotations

import pytest

from kvreg_service.core.errors import InvariantBroken
from kvreg_service.core.requests.identity import Identity
from kvreg_service.core.ids import SequenceId
from kvreg_service.core.labels import CheckpointKind
from kvreg_service.core.requests.ledger import TokenLedger
from kvreg_service.core.sequence import Checkpoint, Sequence


def _sequence(frontier, checkpoint=None, *, has_current=True, tokens=200, num_pages=4):
    return Sequence(
        sequence_id=SequenceId(1),
        ledger=TokenLedger(Identity(b"epoch", "tenant"), range(tokens)),
        created_s=0.0,
        last_used_s=0.0,
        frontier=frontier,
        has_current=has_current,
        checkpoint=None if checkpoint is None else Checkpoint(checkpoint, CheckpointKind.TURN),
        pages=list(range(num_pages)),
    )


@pytest.mark.parametrize(
    ("frontier", "checkpoint", "has_current", "reusable"),
    [
        (150, 100, True, 150),
        (150, None, True, 150),
        (150, 100, False, 100),
        (150, None, False, 0),
        (0, None, True, 0),
    ],
)
def test_reusable_tokens_is_the_last_position_with_a_state(
    frontier, checkpoint, has_current, reusable
):
    sequence = _sequence(frontier, checkpoint, has_current=has_current)
    assert sequence.reusable_tokens == reusable


@pytest.mark.parametrize(
    "broken",
    [
        _sequence(100, checkpoint=101),
        _sequence(201, tokens=200),
        _sequence(129, num_pages=2),
        _sequence(200, checkpoint=129, has_current=False, num_pages=2),
    ],
    ids=["checkpoint beyond frontier", "frontier beyond ledger", "pages", "checkpoint's pages"],
)
def test_an_inconsistent_sequence_breaks_an_invariant(broken):
    with pytest.raises(InvariantBroken):
        broken.check_invariants()


def test_without_current_the_pages_need_to_reach_the_checkpoint_only():
    _sequence(200, checkpoint=128, has_current=False, num_pages=2).check_invariants()

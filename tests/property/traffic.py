"""What the requests, faults and administrators of random traffic are drawn from."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kvreg_service.core.requests.identity import Identity

MAX_CONTEXT = 512
CONTEXT_PAGES = MAX_CONTEXT // 64

CONVERSATIONS = st.integers(0, 2)
NUM_WORDS = st.sampled_from([1, 3, 20, 40, 62, 63, 64, 65])
THINK = st.sampled_from([0, 1, 4])
MAX_TOKENS = st.sampled_from([1, 2, 7, 20, 10_000])
MINE, THEIRS = Identity(b"epoch", "mine"), Identity(b"epoch", "theirs")
OLD = Identity(b"old", "mine")
"""Of an earlier model."""
USUALLY = st.sampled_from([True, True, True, True, False])
CHANGES = ["cut", "mutate", "tenant", "epoch"]
FAULTS = ["cancel", "fail moves", "fail work", "fail capture", "drop", "wait"]
ADMIN_ACTIONS = ["pin", "pin", "unpin", "quota", "no quota"]
SYSTEM_TOKENS = (0, 70, 140)
PLAIN: dict[str, Any] = {}
# Cache options of a request; most requests set none.
EXTRAS = [
    *[PLAIN] * 6,
    {"ttl_s": 3.0},
    {"ttl_s": 100.0, "priority": 1},
    {"priority": -1},
    {"priority": 2},
    {"may_reuse": False},
]
UNTIL_IDLE = 1000
# The number of steps that run after a request is submitted.
THEN = st.sampled_from([UNTIL_IDLE, UNTIL_IDLE, UNTIL_IDLE, 3, 0])

"""A conversation of many turns survives small side requests between two of its turns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from served_chats import PAUSES, THINK_TOKENS, Ask, Service, layouts

NUM_TURNS = 10
RESIDENT = 0


def _serve_turns(service: Service, num_words: int, pause: int) -> None:
    for _ in range(NUM_TURNS):
        service.ask(Ask(RESIDENT, num_words), pause)


@given(
    layout=layouts(),
    num_words=st.integers(20, 1000),
    share=st.floats(0, 1),
    pause=PAUSES,
)
def test_resident_survives_small_side_requests_of_one_size(layout, num_words, share, pause):
    service = Service(layout)
    _serve_turns(service, num_words, pause)
    for _ in range(layout.entries + 3):
        service.ask(Ask(None, max(1, round(share * (num_words - THINK_TOKENS)))), pause)
    boundary = service.chats[RESIDENT].boundary
    assert service.cached_in_next_turn(RESIDENT) >= boundary


@given(
    layout=layouts().filter(lambda layout: layout.anchors >= 1),
    num_words=st.integers(20, 1000),
    share=st.floats(0, 1),
    pause=PAUSES,
)
def test_resident_survives_side_requests_of_descending_sizes(layout, num_words, share, pause):
    service = Service(layout)
    _serve_turns(service, num_words, pause)
    num_sides = layout.entries + 3
    for left in range(num_sides, 0, -1):
        size = max(left, round(share * (num_words - THINK_TOKENS) * left / num_sides))
        service.ask(Ask(None, size), pause)
    boundary = service.chats[RESIDENT].boundary
    assert service.cached_in_next_turn(RESIDENT) >= boundary

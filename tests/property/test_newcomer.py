"""A conversation whose first turn was just answered survives a side request smaller than itself.

This holds whatever was served before: nothing is known of a newcomer yet, and its next turn is the
most likely request of all.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from served_chats import PAUSES, SIZES, THINK_TOKENS, Ask, Service, histories, layouts

FIRST, SECOND = 100, 101
MIN_PROMPT = 1 + 1 + THINK_TOKENS
"""Prompt tokens of a request of one word: the word, and the openers."""


def _first_turns(chat: int) -> st.SearchStrategy[Ask]:
    """Return first turns whose boundary is longer than the shortest side requests."""
    return st.builds(
        Ask,
        chat=st.just(chat),
        num_words=SIZES.map(lambda size: size + MIN_PROMPT),
        num_answer=st.sampled_from([1, 3, 40]),
        is_tool_result=st.booleans(),
    )


def _side_requests(shorter_than: int) -> st.SearchStrategy[Ask]:
    return st.builds(
        Ask,
        chat=st.none(),
        num_words=st.integers(1, shorter_than - MIN_PROMPT),
        num_answer=st.sampled_from([1, 3, 40]),
        retain=st.booleans(),
    )


@given(layouts(), histories(), _first_turns(FIRST), PAUSES, st.data())
def test_newcomer_survives_a_smaller_side_request(layout, history, first, pause, data):
    service = Service(layout)
    service.serve_history(history)
    service.ask(first, pause)
    boundary = service.chats[FIRST].boundary
    service.ask(data.draw(_side_requests(boundary), label="side request"), pause)
    assert service.cached_in_next_turn(FIRST) >= boundary


@given(layouts(2), histories(), _first_turns(FIRST), _first_turns(SECOND), PAUSES, st.data())
def test_two_newcomers_survive_a_side_request_smaller_than_both(
    layout, history, first, second, pause, data
):
    service = Service(layout)
    service.serve_history(history)
    for ask in (first, second):
        service.ask(ask, pause)
    boundaries = {chat: service.chats[chat].boundary for chat in (FIRST, SECOND)}
    side = data.draw(_side_requests(min(boundaries.values())), label="side request")
    service.ask(side, pause)
    for chat, boundary in boundaries.items():
        assert service.cached_in_next_turn(chat) >= boundary

"""Decisions do not depend on the unit of time: faster or slower traffic gives the same plans."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from served_chats import PAUSES, Ask, Service, asks, layouts

from kvreg_service.core.events import Admitted, Event
from kvreg_service.core.memory.slots import SlotLayout
from kvreg_service.core.states.policies import POLICIES


def _serve(layout: SlotLayout, policy: str, tick_s: float, arrivals: list[tuple[int, Ask]]):
    """Serve requests that arrive a number of ticks after each other, whoever runs then."""
    service = Service(layout, policy, chunk_tokens=256, tick_s=tick_s)
    arrival = 0
    for pause, ask in arrivals:
        arrival += pause
        while service.scheduler.has_work and service.now < arrival:
            service.step()
        service.now = max(service.now, arrival)
        service.submit(ask)
    service.drain()
    return service


def _timeless(event: Event) -> Event:
    if not isinstance(event, Admitted):
        return event
    return replace(event, admission=replace(event.admission, queue_s=0.0, gap_s=None))


@given(
    layout=layouts(min_entries=0),
    policy=st.sampled_from(["cost", "cost", *POLICIES]),
    factor=st.sampled_from([0.001, 0.01, 0.3, 7.0, 1000.0]),
    arrivals=st.lists(st.tuples(st.one_of(PAUSES, st.integers(0, 20)), asks(4)), max_size=40),
)
def test_traffic_at_another_pace_has_the_same_plans_and_events(layout, policy, factor, arrivals):
    one, other = (_serve(layout, policy, tick_s, arrivals) for tick_s in (1.0, factor))
    assert other.plans == one.plans
    assert [*map(_timeless, other.events)] == [*map(_timeless, one.events)]
    assert other.cached_tokens() == one.cached_tokens()


@given(
    layout=layouts(),
    requests=st.lists(st.tuples(PAUSES, asks(4)), max_size=40),
)
def test_pauses_between_requests_change_no_plan(layout, requests):
    without, with_pauses = Service(layout), Service(layout)
    for pause, ask in requests:
        without.ask(ask)
        with_pauses.ask(ask, pause)
    assert with_pauses.plans == without.plans
    assert with_pauses.cached_tokens() == without.cached_tokens()

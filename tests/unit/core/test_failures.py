"""A failure is that request's alone: who was there before it is there after it."""

from __future__ import annotations

import pytest

from kvreg_service.core.events import Failed

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


class _Broken(RuntimeError):
    pass


def _raise(*_args, **_options):
    raise _Broken


# With exchange the session comes back from its entry while another one takes its place; without it
# the other is detached to an empty entry and a fork of the session stays.
@pytest.mark.parametrize(
    ("exchange", "owner", "name"),
    [
        (True, "registry", "exchange"),
        (True, "registry", "restore"),
        (True, "pages", "resume"),
        (True, "pages", "unseal"),
        (True, "placement", "_wake"),
        (True, "placement", "_announce"),
        (True, "placement", "_own_tail_page"),
        (False, "registry", "detach"),
        (False, "registry", "attach"),
        (False, "registry", "fork"),
        (False, "pages", "fork"),
    ],
)
def test_an_admission_that_raises_half_way_fails_alone_and_leaves_the_pools_consistent(
    make_core, monkeypatch, exchange, owner, name
):
    core = make_core(entries=2 if exchange else 3, exchange=exchange)
    others = [list(range(first, first + 150)) for first in (1000, 2000)]
    core.run([*SESSION, 1, 2], boundary=200)
    for prompt in others:
        core.run([*prompt, 1], boundary=150)
    placement = core.scheduler.placement
    owners = {"registry": placement.registry, "pages": placement.pages, "placement": placement}
    follow_up = [*SESSION, 1, 2, 3, 4]
    with monkeypatch.context() as patch:
        patch.setattr(owners[owner], name, _raise)
        core.submit(follow_up, boundary=202)
        _, happened = core.step()
    (failed,) = [event for event in happened if isinstance(event, Failed)]
    assert isinstance(failed.error.__cause__, _Broken)
    assert not core.scheduler.has_work
    for prompt in others:
        core.run([*prompt, 1, 2], boundary=150)
    assert core.run(follow_up, boundary=202).answer == make_core().run(follow_up).answer

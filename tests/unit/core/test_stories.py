"""Cache hits of typical request sequences, in tokens, by number of lanes and entries."""

from __future__ import annotations

import pytest

from kvreg_service.core.labels import Attach, ReusePath

# The boundary of the session's first turn, and the think block that follows it.
STABLE = 961
THINK = [3, 3, 3, 3]
HISTORY = list(range(10_000, 10_000 + STABLE))
TITLE = list(range(20_000, 20_038))
SIDE = list(range(30_000, 30_311))


def _chat(core, stable, **options):
    return core.run(stable + THINK, boundary=len(stable), **options)


class Client:
    """A client that sends each answer back, as a chat template with thinking renders it."""

    def __init__(self, core):
        self.core = core
        self.stable = HISTORY
        self.first = _chat(core, self.stable, max_tokens=52)

    @property
    def echo(self) -> list[int]:
        """The first prompt and its answer, token for token."""
        return HISTORY + THINK + self.first.answer

    def user_tail(self):
        return _chat(self.core, HISTORY + self.first.answer + [5] * 20)

    def assistant_tail(self):
        return self.core.run([*self.echo, *[6] * 8])


def _core(make_core, **options):
    return make_core(num_pages=128, max_context_tokens=4096, **options)


# A, B, A, B.


def _abab(make_core, **options):
    core = _core(make_core, **options)
    client = Client(core)
    first = _chat(core, SIDE)
    second = client.user_tail()
    return [client.first, first, second, _chat(core, SIDE)]


@pytest.mark.parametrize("keep", [True, False])
def test_the_session_and_the_side_request_hit_with_one_entry(make_core, keep):
    steps = _abab(make_core, entries=1, keep_current=keep)
    assert [step.cached for step in steps] == [0, 0, STABLE, len(SIDE)]
    assert steps[2].admission.reuse_path is ReusePath.RESTORE_TURN_CHECKPOINT
    assert steps[2].admission.attach is Attach.REGISTRY


# Capacity: turn 1, a title request, another side request, turn 2, that side request again.


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("entries", [1, 2, 3, 4])
def test_the_session_hits_after_two_side_requests(make_core, entries, keep):
    core = _core(make_core, entries=entries, keep_current=keep)
    client = Client(core)
    _chat(core, TITLE)
    _chat(core, SIDE)
    assert client.user_tail().cached == STABLE


@pytest.mark.parametrize("entries", [1, 2, 3, 4])
def test_a_side_request_hit_needs_one_entry(make_core, entries):
    core = _core(make_core, entries=entries)
    client = Client(core)
    _chat(core, TITLE)
    _chat(core, SIDE)
    client.user_tail()
    assert _chat(core, SIDE).cached == len(SIDE)


# Reuse path and attach of a session's second turn.

TURN_PATH, APPEND_PATH = ReusePath.RESTORE_TURN_CHECKPOINT, ReusePath.APPEND_FRONTIER


@pytest.mark.parametrize(
    ("keep", "side", "tail", "cached", "path", "attach"),
    [
        (True, False, "assistant", 1016, APPEND_PATH, Attach.NONE),
        (True, True, "assistant", 1016, APPEND_PATH, Attach.REGISTRY),
        (True, False, "user", STABLE, TURN_PATH, Attach.NONE),
        (True, True, "user", STABLE, TURN_PATH, Attach.REGISTRY),
        (False, False, "assistant", 1016, APPEND_PATH, Attach.NONE),
        (False, True, "assistant", STABLE, TURN_PATH, Attach.REGISTRY),
        (False, False, "user", STABLE, TURN_PATH, Attach.NONE),
        (False, True, "user", STABLE, TURN_PATH, Attach.REGISTRY),
    ],
)
def test_reuse_path_and_attach_depend_on_the_tail_and_a_side_request(
    make_core, keep, side, tail, cached, path, attach
):
    core = _core(make_core, entries=1, keep_current=keep)
    client = Client(core)
    if side:
        _chat(core, SIDE)
    outcome = client.assistant_tail() if tail == "assistant" else client.user_tail()
    reused = outcome.admission
    assert (reused.cached_tokens, reused.reuse_path, reused.attach) == (cached, path, attach)


@pytest.mark.parametrize("tail", ["assistant", "user"])
def test_keep_mode_drop_mode_and_cold_runs_have_the_same_output(make_core, tail):
    answers = []
    for options in ({"entries": 1}, {"entries": 1, "keep_current": False}, {"entries": 0}):
        core = _core(make_core, **options)
        client = Client(core)
        _chat(core, SIDE)
        outcome = client.assistant_tail() if tail == "assistant" else client.user_tail()
        answers.append(outcome.answer)
    assert answers[0] == answers[1] == answers[2]


# Traffic patterns that are known to defeat prefix caches.


def _turns(core, name, count):
    """Run the turns of a session one by one, and yield the cached tokens of each."""
    stable = [name * 1000 + i for i in range(200)]
    for turn in range(count):
        stable = stable + [name * 1000 + 500 + turn] * 10
        outcome = core.run(stable + THINK, boundary=len(stable), max_tokens=5)
        yield outcome.cached
        stable = stable + outcome.answer


@pytest.mark.parametrize(("lanes", "entries"), [(1, 1), (1, 4), (2, 2), (3, 1)])
@pytest.mark.parametrize("keep", [True, False])
def test_as_many_sessions_as_lanes_and_entries_all_hit(make_core, lanes, entries, keep):
    core = _core(make_core, lanes=lanes, entries=entries, keep_current=keep)
    clients = [_turns(core, name, 4) for name in range(1, lanes + entries + 1)]
    rounds = [[next(client) for client in clients] for _ in range(4)]
    assert rounds[0] == [0] * len(clients)
    assert all(cached >= 210 for played in rounds[1:] for cached in played)


@pytest.mark.parametrize("num_sides", [1, 2, 3, 4])
@pytest.mark.parametrize("entries", [1, 2, 4])
@pytest.mark.parametrize("keep", [True, False])
def test_side_requests_between_turns_preserve_the_session(make_core, keep, entries, num_sides):
    core = _core(make_core, entries=entries, keep_current=keep)
    client = _turns(core, 1, 10)
    next(client)
    for turn in range(9):
        for number in range(num_sides):
            core.run([50_000 + turn * 10 + number] * 60, boundary=55)
        assert next(client) >= 210


@pytest.mark.parametrize("keep", [True, False])
def test_two_interleaved_sessions_reuse_their_latest_boundaries(make_core, keep):
    core = _core(make_core, entries=1, keep_current=keep)
    clients = [_turns(core, name, 12) for name in (1, 2)]
    for turn in range(12):
        wanted = 210 + 15 * (turn - 1) if turn else 0
        assert [next(client) for client in clients] == [wanted, wanted]


def test_new_sessions_hit_after_many_abandoned_sessions(make_core):
    core = _core(make_core, entries=2)
    for number in range(15):
        for _ in _turns(core, 100 + number, 3):
            pass
    fresh = list(_turns(core, 1, 3))
    assert fresh == [0, 210, 225]


def test_conversations_that_share_a_head_hit_it_and_their_own_turns(make_core):
    core = _core(make_core, entries=2, anchors=1)
    head = HISTORY[:192]
    for question in range(10):
        prompt = [*head, *range(500 + 50 * question, 540 + 50 * question), 7]
        outcome = core.run(prompt, boundary=232, heads=(192,))
        assert outcome.cached == (192 if question else 0)
        assert outcome.answer == make_core().run(prompt).answer
        again = [*prompt, *outcome.answer, 5, 5]
        assert core.run(again, boundary=len(again) - 1).cached >= 232


def test_two_sessions_resumed_at_once_have_the_right_output(make_core):
    core = _core(make_core, entries=1)
    prompts = [[name * 1000 + i for i in range(200)] for name in (1, 2)]
    for prompt in prompts:
        core.run([*prompt, 7], boundary=200)
    ids = [core.submit([*prompt, 8], boundary=200) for prompt in prompts]
    outcome = core.drain()
    for request_id, prompt in zip(ids, prompts, strict=True):
        tokens = [
            event.token
            for event in outcome.events
            if getattr(event, "request_id", None) == request_id and hasattr(event, "token")
        ]
        assert tokens == make_core().run([*prompt, 8]).answer


@pytest.mark.parametrize("entries", [0, 1])
def test_a_repeated_request_hits_with_the_same_output(make_core, entries):
    core = _core(make_core, entries=entries)
    outcomes = [_chat(core, HISTORY, max_tokens=limit) for limit in (5, 5, 1, 200, 5)]
    assert [outcome.cached for outcome in outcomes] == [0, STABLE, STABLE, STABLE, STABLE]
    longest = outcomes[3].answer
    assert all(longest[: len(outcome.answer)] == outcome.answer for outcome in outcomes)


def test_a_pause_of_any_length_frees_nothing(make_core):
    core = _core(make_core, entries=1)
    clients = [_turns(core, name, 4) for name in (1, 2)]
    rounds = []
    for pause_s in (0.0, 3600.0, 1e7, 1e-3):
        core.now_s += pause_s
        rounds.append([next(client) for client in clients])
    assert all(cached >= 210 for played in rounds[1:] for cached in played)

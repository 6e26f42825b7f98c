"""Cases 5 and 12: a head that many conversations begin with is computed once.

A head ends at a page boundary, so what is found of it is up to 63 tokens shorter than what the
prompts share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import takewhile
from typing import Any

import pytest
from tests.cases.profiles import PROFILES, Profile, every_profile, some_profiles
from tests.cases.server import Message, Reply, Serve, Server
from tests.cases.session import ASKED, Session, assert_hit, assert_miss, write_head

from kvreg_service.chat.conversation import Conversation
from kvreg_service.chat.echo.echo_index import EchoIndex
from kvreg_service.chat.prompt.builder import PromptBuilder
from kvreg_service.engine.build import LoadedModel
from kvreg_service.model.cache import StateSlots

PAGE_TOKENS = 64
HEAD = write_head(30)
CountShared = Callable[..., int]


@pytest.fixture
def serve(serve: Serve) -> Serve:
    """Start servers that keep two heads unless they are told otherwise."""
    return partial(serve, anchors=2)


@pytest.fixture
def count_shared(loaded_model: LoadedModel) -> CountShared:
    """How many tokens the prompts of conversations have in common."""
    tokenizer = loaded_model.tokenizer
    builder = PromptBuilder(tokenizer, loaded_model.template, EchoIndex(tokenizer))

    def count(*conversations: Sequence[Message]) -> int:
        prompts = [builder.build(Conversation(list(one))).token_ids for one in conversations]
        return len(list(takewhile(lambda ids: len(set(ids)) == 1, zip(*prompts, strict=False))))

    return count


@pytest.fixture
def head_tokens(count_shared: CountShared) -> int:
    """|P|: what two conversations behind HEAD share."""
    return count_shared(_behind(HEAD, "What is 7 plus 5?"), _behind(HEAD, "Hello!"))


def _behind(head: str, text: str) -> list[Message]:
    return [{"role": "system", "content": head}, {"role": "user", "content": text}]


def assert_from_anchor(reply: Reply, shared_tokens: int) -> None:
    """The reply went on from a kept head, which ends in the last page that prompts share."""
    assert (reply.path, reply.attach) == ("restore_anchor", "anchor"), reply
    assert reply.cached == shared_tokens // PAGE_TOKENS * PAGE_TOKENS > 0, reply


def _anchors(server: Server) -> list[dict[str, Any]]:
    return [anchor for anchor in server.settle()["anchors"] if anchor["state"] == "kept"]


def _play_two_sessions(
    serve: Serve, profile: Profile, **settings: Any
) -> tuple[list[Reply], list[Reply]]:
    """A1 = P and a long message, B1 = P and a short one, A2, B2, A3."""
    server = serve(profile, **settings)
    a, b = Session(server, 51, head=HEAD), Session(server, 52, head=HEAD)
    a.opening += " " + " ".join(["The garden is behind the house."] * 20)
    with server.one_lane_left():
        of_a, of_b = [a.begin()], [b.begin()]
        of_a.append(a.say("What is 7 plus 5?"))
        of_b.append(b.recall())
        of_a.append(a.recall())
    return of_a, of_b


@every_profile
def test_case_5_second_session_begins_at_the_head_of_the_first(
    serve: Serve, profile: Profile, head_tokens: int
) -> None:
    _, (first, _) = _play_two_sessions(serve, profile)
    assert_from_anchor(first, head_tokens)


@pytest.mark.parametrize("profile", [p for p in PROFILES if p.entries], ids=str)
def test_case_5_sessions_with_one_head_hit_at_every_turn(serve: Serve, profile: Profile) -> None:
    (a1, a2, a3), (b1, b2) = _play_two_sessions(serve, profile)
    assert_hit(a2, a1)
    assert_hit(b2, b1)
    assert_hit(a3, a2)


@pytest.mark.parametrize("profile", [p for p in PROFILES if not p.entries], ids=str)
def test_case_5_sessions_fall_back_to_their_head_where_there_is_no_registry(
    serve: Serve, profile: Profile, head_tokens: int
) -> None:
    (_, a2, a3), (_, b2) = _play_two_sessions(serve, profile)
    for reply in (a2, b2, a3):
        assert_from_anchor(reply, head_tokens)


@some_profiles
def test_case_5_anchors_change_no_answer(serve: Serve, profile: Profile) -> None:
    with_anchors = _play_two_sessions(serve, profile)
    without = _play_two_sessions(serve, profile, anchors=0)
    for some, others in zip(with_anchors, without, strict=True):
        assert [reply.text for reply in some] == [reply.text for reply in others]


@every_profile
def test_case_12_new_conversation_begins_at_a_known_head(
    serve: Serve, profile: Profile, head_tokens: int
) -> None:
    server = serve(profile)
    assert_miss(server.ask(_behind(HEAD, "What is 7 plus 5?")))
    assert_from_anchor(server.ask(_behind(HEAD, "Hello!")), head_tokens)


@some_profiles
def test_case_12_new_conversation_misses_without_anchors(serve: Serve, profile: Profile) -> None:
    server = serve(profile, anchors=0)
    for text in ("What is 7 plus 5?", "Hello!"):
        assert_miss(server.ask(_behind(HEAD, text)))


@some_profiles
def test_case_12_two_heads_are_kept_side_by_side(serve: Serve, profile: Profile) -> None:
    server = serve(profile)
    teams = [f"Team {name}. {HEAD}" for name in ("one", "two")]
    for team in teams:
        assert_miss(server.ask(_behind(team, "What is 7 plus 5?")))
    replies = [server.ask(_behind(team, "Hello!")) for team in teams]
    assert [reply.attach for reply in replies] == ["anchor", "anchor"]


@every_profile
def test_title_in_between_does_not_cost_the_head(
    serve: Serve, profile: Profile, head_tokens: int
) -> None:
    server = serve(profile)
    with server.one_lane_left():
        server.ask(_behind(HEAD, "What is 7 plus 5?"))
        server.ask_side()
        assert_from_anchor(server.ask(_behind(HEAD, "Hello!")), head_tokens)


@some_profiles
def test_heads_that_nobody_repeats_do_not_cost_one_that_was_repeated(
    serve: Serve, profile: Profile
) -> None:
    server = serve(profile)
    # One page, so that the others are worth more.
    head = write_head(11)
    for text in ("What is 7 plus 5?", "Hello!"):
        server.ask(_behind(head, text), max_tokens=4)
    for number in range(3):
        stranger = Session(server, 120 + number, num_notes=60)
        assert_miss(stranger.peek("Thanks!", max_tokens=4))
    assert_from_anchor(server.ask(_behind(head, "Good morning!")), PAGE_TOKENS)


@some_profiles
def test_head_outlives_the_conversations_that_had_it(
    serve: Serve, profile: Profile, head_tokens: int
) -> None:
    server = serve(profile)
    server.ask(_behind(HEAD, "What is 7 plus 5?"))
    (anchor,) = _anchors(server)
    for place in server.occupied():
        if place["sequence_id"] != anchor["sequence_id"]:
            server.send("DELETE", f"/v1/registry/sequences/{place['sequence_id']}")
    assert [one["sequence_id"] for one in server.occupied()] == [anchor["sequence_id"]]
    assert_from_anchor(server.ask(_behind(HEAD, "Hello!")), head_tokens)


LONG_HEAD = write_head(800)
TASKS = ("What is 7 plus 5?", "Hello!", "Please remind me: what is my locker code?")


@pytest.mark.parametrize("profile", [Profile(1, 0), Profile(2, 2, "drop")], ids=str)
def test_sub_agents_compute_their_long_head_once(
    serve: Serve, profile: Profile, count_shared: CountShared
) -> None:
    server = serve(profile)
    shared = count_shared(*(_behind(LONG_HEAD, task) for task in TASKS))
    assert shared > 5000
    first, *others = [server.ask(_behind(LONG_HEAD, task), max_tokens=8) for task in TASKS]
    assert_miss(first)
    for reply in others:
        assert_from_anchor(reply, shared)


@pytest.mark.parametrize("profile", [Profile(1, 2), Profile(2, 2, "drop")], ids=str)
def test_unretained_sub_agents_share_their_head_and_cost_the_session_no_turn(
    serve: Serve, profile: Profile, head_tokens: int
) -> None:
    server = serve(profile)
    session = Session(server, 6)
    with server.one_lane_left():
        previous = session.begin()
        server.ask(_behind(HEAD, "Good morning!"))
        for task in TASKS:
            assert_from_anchor(server.ask(_behind(HEAD, task), retain_prefix=False), head_tokens)
            turn = session.recall()
            assert_hit(turn, previous)
            previous = turn


DOCUMENT = " ".join(f"Line {number}: all times are local times." for number in range(30))
QUESTIONS = ("What is 7 plus 5?", "Hello!")


def _about_document(question: str, mark: dict[str, Any] | None = None) -> list[Message]:
    return [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": DOCUMENT, **(mark or {})},
        {"role": "user", "content": question},
    ]


@some_profiles
def test_message_with_cache_anchor_is_a_head(
    serve: Serve, profile: Profile, count_shared: CountShared
) -> None:
    server = serve(profile)
    first, second = (_about_document(text, {"cache_anchor": True}) for text in QUESTIONS)
    assert_miss(server.ask(first))
    assert_from_anchor(server.ask(second), count_shared(*map(_about_document, QUESTIONS)))
    assert [anchor["is_marked"] for anchor in _anchors(server)] == [True]


@some_profiles
def test_document_without_a_mark_is_no_head(serve: Serve, profile: Profile) -> None:
    server = serve(profile)
    for text in QUESTIONS:
        assert_miss(server.ask(_about_document(text)))
    assert _anchors(server) == []


@some_profiles
def test_block_with_cache_control_is_a_head(
    serve: Serve, profile: Profile, count_shared: CountShared
) -> None:
    server = serve(profile)
    cached = []
    for text in QUESTIONS:
        block = {"type": "text", "text": DOCUMENT, "cache_control": {"type": "ephemeral"}}
        body = {
            "model": "kvreg-reference",
            "max_tokens": 16,
            "system": "You are a helpful assistant.",
            "messages": [
                {"role": "user", "content": [block]},
                {"role": "user", "content": text},
            ],
        }
        usage = server.send("POST", "/v1/messages", body).raise_for_status().json()["usage"]
        cached.append((usage["cache_read_input_tokens"], usage["kvreg"]["attach"]))
    shared = count_shared(*map(_about_document, QUESTIONS)) // PAGE_TOKENS * PAGE_TOKENS
    assert cached == [(0, "none"), (shared, "anchor")]


@some_profiles
def test_document_in_a_marked_block_before_the_question_is_a_head(
    serve: Serve, profile: Profile
) -> None:
    server = serve(profile)
    mark = {"cache_control": {"type": "ephemeral"}}
    usages = []
    for text in QUESTIONS:
        blocks = [{"type": "text", "text": DOCUMENT, **mark}, {"type": "text", "text": text}]
        body = {
            "model": "kvreg-reference",
            "max_tokens": 16,
            "messages": [{"role": "user", "content": blocks}],
        }
        answer = server.send("POST", "/v1/messages", body).raise_for_status()
        usages.append(answer.json()["usage"])
    assert usages[0]["cache_read_input_tokens"] == 0
    assert usages[1]["kvreg"]["attach"] == "anchor"
    assert usages[1]["input_tokens"] < 2 * PAGE_TOKENS


def _tools(*names: str) -> list[dict[str, Any]]:
    parameters = {
        "type": "object",
        "properties": {"path": {"type": "string", "description": "All times are local times."}},
    }
    return [
        {"type": "function", "function": {"name": name, "parameters": parameters}} for name in names
    ]


@some_profiles
def test_tools_in_the_same_order_are_a_head(serve: Serve, profile: Profile) -> None:
    server = serve(profile)
    replies = [
        server.ask([{"role": "user", "content": text}], tools=_tools("read", "write"))
        for text in QUESTIONS
    ]
    assert_miss(replies[0])
    assert (replies[1].attach, replies[1].computed < 2 * PAGE_TOKENS) == ("anchor", True)


@some_profiles
def test_tools_in_another_order_are_another_head(serve: Serve, profile: Profile) -> None:
    server = serve(profile)
    for names in (("read", "write"), ("write", "read")):
        assert_miss(server.ask([{"role": "user", "content": "Hello!"}], tools=_tools(*names)))


@some_profiles
def test_unretained_conversation_leaves_no_anchor(serve: Serve, profile: Profile) -> None:
    server = serve(profile)
    server.ask(_behind(HEAD, "What is 7 plus 5?"), retain_prefix=False)
    assert _anchors(server) == []
    assert_miss(server.ask(_behind(HEAD, "Hello!")))


@every_profile
def test_unretained_conversation_uses_an_anchor(
    serve: Serve, profile: Profile, head_tokens: int
) -> None:
    server = serve(profile)
    server.ask(_behind(HEAD, "What is 7 plus 5?"))
    before = {anchor["sequence_id"] for anchor in _anchors(server)}
    reply = server.ask(_behind(HEAD, "Hello!"), retain_prefix=False)
    assert_from_anchor(reply, head_tokens)
    assert {anchor["sequence_id"] for anchor in _anchors(server)} == before


@some_profiles
def test_conversation_does_not_know_what_another_with_its_head_was_told(
    serve: Serve, profile: Profile, head_tokens: int
) -> None:
    server = serve(profile)
    told = Session(server, 37, head=HEAD)
    told.begin()
    reply = server.ask(_behind(HEAD, ASKED))
    assert_from_anchor(reply, head_tokens)
    assert told.canary not in reply.text


@pytest.mark.parametrize("profile", [Profile(2, 0), Profile(2, 2, "drop")], ids=str)
def test_conversations_that_begin_at_one_head_at_once_know_their_own_canary_only(
    serve: Serve, profile: Profile
) -> None:
    server = serve(profile)
    server.ask(_behind(HEAD, "Hello!"))
    sessions = [Session(server, 370 + number, head=HEAD) for number in range(2)]
    with ThreadPoolExecutor(2) as both:
        began = list(both.map(lambda session: session.begin(), sessions))
        list(both.map(lambda session: session.recall(), sessions))
    assert [reply.attach for reply in began] == ["anchor", "anchor"]


def _draw_behind_head(serve: Serve, profile: Profile, *, is_known: bool) -> Reply:
    """A long answer from a hot distribution, which shows the last bit of a state."""
    server = serve(profile)
    if is_known:
        server.ask(_behind(HEAD, "What is 7 plus 5?"))
    options = {"temperature": 1.5, "seed": 11, "max_tokens": 160, **server.endless}
    return server.ask(_behind(HEAD, "Tell me a short story about Nora in Lisbon."), **options)


@some_profiles
def test_answer_from_an_anchor_is_byte_identical_to_one_that_was_computed(
    serve: Serve, profile: Profile
) -> None:
    computed = _draw_behind_head(serve, profile, is_known=False)
    forked = _draw_behind_head(serve, profile, is_known=True)
    assert (computed.attach, forked.attach) == ("none", "anchor")
    assert forked.text.encode() == computed.text.encode()


def test_answer_from_an_anchor_without_its_state_is_not(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = _draw_behind_head(serve, Profile(), is_known=False)
    # From here on every state that is copied arrives as nothing.
    monkeypatch.setattr(StateSlots, "copy", lambda states, _, target: states.zero(target))
    forked = _draw_behind_head(serve, Profile(), is_known=True)
    assert forked.attach == "anchor"
    assert forked.text != computed.text

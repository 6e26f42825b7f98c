"""Cases 5 and 12: a head that several conversations share is prefilled once.

An anchor ends at a page boundary, so that up to 63 tokens fewer are reused than the prompts share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import takewhile
from typing import Any

import pytest
from tests.canary import RECALL
from tests.cases.profiles import PROFILES, Profile, every_profile, some_profiles
from tests.cases.server import Message, Reply, Serve, Server
from tests.cases.session import Session, assert_hit, assert_miss, write_head

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
    """Start servers with two anchors by default."""
    return partial(serve, anchors=2)


@pytest.fixture
def count_shared(loaded_model: LoadedModel) -> CountShared:
    """Counts the tokens of the common prefix of several prompts."""
    tokenizer = loaded_model.tokenizer
    builder = PromptBuilder(tokenizer, loaded_model.template, EchoIndex(tokenizer))

    def count(*conversations: Sequence[Message]) -> int:
        prompts = [builder.build(Conversation(list(one))).token_ids for one in conversations]
        return len(list(takewhile(lambda ids: len(set(ids)) == 1, zip(*prompts, strict=False))))

    return count


@pytest.fixture
def head_tokens(count_shared: CountShared) -> int:
    """The number of prompt tokens that two conversations with HEAD share."""
    return count_shared(_with_head(HEAD, "What is 7 plus 5?"), _with_head(HEAD, "Hello!"))


def _with_head(head: str, text: str) -> list[Message]:
    return [{"role": "system", "content": head}, {"role": "user", "content": text}]


def assert_from_anchor(reply: Reply, shared_tokens: int) -> None:
    """Assert that an anchor was restored, up to the last full page that the prompts share."""
    assert (reply.path, reply.attach) == ("restore_anchor", "anchor"), reply
    assert reply.cached == shared_tokens // PAGE_TOKENS * PAGE_TOKENS > 0, reply


def _anchors(server: Server) -> list[dict[str, Any]]:
    return [anchor for anchor in server.settle()["anchors"] if anchor["state"] == "kept"]


def _play_two_sessions(
    serve: Serve, profile: Profile, **settings: Any
) -> tuple[list[Reply], list[Reply]]:
    """A1 (HEAD and a long message), B1 (HEAD and a short one), A2, B2, A3."""
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
def test_case_5_second_session_restores_the_anchor_of_the_shared_head(
    serve: Serve, profile: Profile, head_tokens: int
) -> None:
    _, (first, _) = _play_two_sessions(serve, profile)
    assert_from_anchor(first, head_tokens)


@pytest.mark.parametrize("profile", [p for p in PROFILES if p.entries], ids=str)
def test_case_5_sessions_with_a_shared_head_hit_at_every_turn(
    serve: Serve, profile: Profile
) -> None:
    (a1, a2, a3), (b1, b2) = _play_two_sessions(serve, profile)
    assert_hit(a2, a1)
    assert_hit(b2, b1)
    assert_hit(a3, a2)


@pytest.mark.parametrize("profile", [p for p in PROFILES if not p.entries], ids=str)
def test_case_5_sessions_fall_back_to_the_anchor_without_a_registry(
    serve: Serve, profile: Profile, head_tokens: int
) -> None:
    (_, a2, a3), (_, b2) = _play_two_sessions(serve, profile)
    for reply in (a2, b2, a3):
        assert_from_anchor(reply, head_tokens)


@some_profiles
def test_case_5_anchors_do_not_change_answers(serve: Serve, profile: Profile) -> None:
    with_anchors = _play_two_sessions(serve, profile)
    without = _play_two_sessions(serve, profile, anchors=0)
    for some, others in zip(with_anchors, without, strict=True):
        assert [reply.text for reply in some] == [reply.text for reply in others]


@every_profile
def test_case_12_new_conversation_restores_the_anchor_of_a_known_head(
    serve: Serve, profile: Profile, head_tokens: int
) -> None:
    server = serve(profile)
    assert_miss(server.ask(_with_head(HEAD, "What is 7 plus 5?")))
    assert_from_anchor(server.ask(_with_head(HEAD, "Hello!")), head_tokens)


@some_profiles
def test_case_12_new_conversation_misses_without_anchors(serve: Serve, profile: Profile) -> None:
    server = serve(profile, anchors=0)
    for text in ("What is 7 plus 5?", "Hello!"):
        assert_miss(server.ask(_with_head(HEAD, text)))


@some_profiles
def test_case_12_two_heads_have_an_anchor_each(serve: Serve, profile: Profile) -> None:
    server = serve(profile)
    teams = [f"Team {name}. {HEAD}" for name in ("one", "two")]
    for team in teams:
        assert_miss(server.ask(_with_head(team, "What is 7 plus 5?")))
    replies = [server.ask(_with_head(team, "Hello!")) for team in teams]
    assert [reply.attach for reply in replies] == ["anchor", "anchor"]


@every_profile
def test_title_request_does_not_evict_the_anchor(
    serve: Serve, profile: Profile, head_tokens: int
) -> None:
    server = serve(profile)
    with server.one_lane_left():
        server.ask(_with_head(HEAD, "What is 7 plus 5?"))
        server.ask_side()
        assert_from_anchor(server.ask(_with_head(HEAD, "Hello!")), head_tokens)


@some_profiles
def test_unrepeated_heads_do_not_evict_the_anchor_of_a_repeated_head(
    serve: Serve, profile: Profile
) -> None:
    server = serve(profile)
    # One page long, so that the other heads have a higher value.
    head = write_head(11)
    for text in ("What is 7 plus 5?", "Hello!"):
        server.ask(_with_head(head, text), max_tokens=4)
    for number in range(3):
        other = Session(server, 120 + number, num_notes=60)
        assert_miss(other.peek("Thanks!", max_tokens=4))
    assert_from_anchor(server.ask(_with_head(head, "Good morning!")), PAGE_TOKENS)


@some_profiles
def test_anchor_outlives_the_conversations_with_its_head(
    serve: Serve, profile: Profile, head_tokens: int
) -> None:
    server = serve(profile)
    server.ask(_with_head(HEAD, "What is 7 plus 5?"))
    (anchor,) = _anchors(server)
    for place in server.occupied():
        if place["sequence_id"] != anchor["sequence_id"]:
            server.send("DELETE", f"/v1/registry/sequences/{place['sequence_id']}")
    assert [one["sequence_id"] for one in server.occupied()] == [anchor["sequence_id"]]
    assert_from_anchor(server.ask(_with_head(HEAD, "Hello!")), head_tokens)


LONG_HEAD = write_head(800)
TASKS = ("What is 7 plus 5?", "Hello!", RECALL)


@pytest.mark.parametrize("profile", [Profile(1, 0), Profile(2, 2, "drop")], ids=str)
def test_sub_agents_prefill_their_shared_long_head_once(
    serve: Serve, profile: Profile, count_shared: CountShared
) -> None:
    server = serve(profile)
    shared = count_shared(*(_with_head(LONG_HEAD, task) for task in TASKS))
    assert shared > 5000
    first, *others = [server.ask(_with_head(LONG_HEAD, task), max_tokens=8) for task in TASKS]
    assert_miss(first)
    for reply in others:
        assert_from_anchor(reply, shared)


@pytest.mark.parametrize("profile", [Profile(1, 2), Profile(2, 2, "drop")], ids=str)
def test_unretained_sub_agents_reuse_the_anchor_and_the_session_still_hits(
    serve: Serve, profile: Profile, head_tokens: int
) -> None:
    server = serve(profile)
    session = Session(server, 6)
    with server.one_lane_left():
        previous = session.begin()
        server.ask(_with_head(HEAD, "Good morning!"))
        for task in TASKS:
            assert_from_anchor(server.ask(_with_head(HEAD, task), retain_prefix=False), head_tokens)
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
def test_message_with_cache_anchor_ends_a_head(
    serve: Serve, profile: Profile, count_shared: CountShared
) -> None:
    server = serve(profile)
    first, second = (_about_document(text, {"cache_anchor": True}) for text in QUESTIONS)
    assert_miss(server.ask(first))
    assert_from_anchor(server.ask(second), count_shared(*map(_about_document, QUESTIONS)))
    assert [anchor["is_marked"] for anchor in _anchors(server)] == [True]


@some_profiles
def test_unmarked_document_creates_no_anchor(serve: Serve, profile: Profile) -> None:
    server = serve(profile)
    for text in QUESTIONS:
        assert_miss(server.ask(_about_document(text)))
    assert _anchors(server) == []


@some_profiles
def test_block_with_cache_control_ends_a_head(
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
def test_marked_block_before_the_question_in_one_message_ends_a_head(
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
def test_tools_in_the_same_order_share_a_head(serve: Serve, profile: Profile) -> None:
    server = serve(profile)
    replies = [
        server.ask([{"role": "user", "content": text}], tools=_tools("read", "write"))
        for text in QUESTIONS
    ]
    assert_miss(replies[0])
    assert (replies[1].attach, replies[1].computed < 2 * PAGE_TOKENS) == ("anchor", True)


@some_profiles
def test_tools_in_another_order_share_no_head(serve: Serve, profile: Profile) -> None:
    server = serve(profile)
    for names in (("read", "write"), ("write", "read")):
        assert_miss(server.ask([{"role": "user", "content": "Hello!"}], tools=_tools(*names)))


@some_profiles
def test_unretained_conversation_creates_no_anchor(serve: Serve, profile: Profile) -> None:
    server = serve(profile)
    server.ask(_with_head(HEAD, "What is 7 plus 5?"), retain_prefix=False)
    assert _anchors(server) == []
    assert_miss(server.ask(_with_head(HEAD, "Hello!")))


@every_profile
def test_unretained_conversation_uses_an_anchor(
    serve: Serve, profile: Profile, head_tokens: int
) -> None:
    server = serve(profile)
    server.ask(_with_head(HEAD, "What is 7 plus 5?"))
    before = {anchor["sequence_id"] for anchor in _anchors(server)}
    reply = server.ask(_with_head(HEAD, "Hello!"), retain_prefix=False)
    assert_from_anchor(reply, head_tokens)
    assert {anchor["sequence_id"] for anchor in _anchors(server)} == before


@some_profiles
def test_conversation_with_a_shared_head_does_not_reveal_the_canary_of_another(
    serve: Serve, profile: Profile, head_tokens: int
) -> None:
    server = serve(profile)
    session = Session(server, 37, head=HEAD)
    session.begin()
    reply = server.ask(_with_head(HEAD, RECALL))
    assert_from_anchor(reply, head_tokens)
    assert session.canary not in reply.text


@pytest.mark.parametrize("profile", [Profile(2, 0), Profile(2, 2, "drop")], ids=str)
def test_concurrent_conversations_from_one_anchor_recall_only_their_own_canary(
    serve: Serve, profile: Profile
) -> None:
    server = serve(profile)
    server.ask(_with_head(HEAD, "Hello!"))
    sessions = [Session(server, 370 + number, head=HEAD) for number in range(2)]
    with ThreadPoolExecutor(2) as both:
        began = list(both.map(lambda session: session.begin(), sessions))
        list(both.map(lambda session: session.recall(), sessions))
    assert [reply.attach for reply in began] == ["anchor", "anchor"]


def _sample_with_head(serve: Serve, profile: Profile, *, is_anchored: bool) -> Reply:
    """Sample a long answer at a high temperature, so that any error in the state changes it."""
    server = serve(profile)
    if is_anchored:
        server.ask(_with_head(HEAD, "What is 7 plus 5?"))
    options = {"temperature": 1.5, "seed": 11, "max_tokens": 160, **server.endless}
    return server.ask(_with_head(HEAD, "Tell me a short story about Nora in Lisbon."), **options)


@some_profiles
def test_answer_from_an_anchor_is_byte_identical_to_one_from_a_full_prefill(
    serve: Serve, profile: Profile
) -> None:
    computed = _sample_with_head(serve, profile, is_anchored=False)
    forked = _sample_with_head(serve, profile, is_anchored=True)
    assert (computed.attach, forked.attach) == ("none", "anchor")
    assert forked.text.encode() == computed.text.encode()


def test_answer_from_an_anchor_with_a_zeroed_state_differs(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = _sample_with_head(serve, Profile(), is_anchored=False)
    # From here on every copied state is zero.
    monkeypatch.setattr(StateSlots, "copy", lambda states, _, target: states.zero(target))
    forked = _sample_with_head(serve, Profile(), is_anchored=True)
    assert forked.attach == "anchor"
    assert forked.text != computed.text

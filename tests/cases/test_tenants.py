"""Cases 78 and 79: isolation of tenants, quotas, keys, pins and time to live."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.cases.clock import Clock
from tests.cases.profiles import (
    WITH_REGISTRY,
    Profile,
    every_profile,
    some_profiles,
    with_registry,
)
from tests.cases.server import Message, Reply, Serve, Server
from tests.cases.session import Session, assert_hit, assert_miss, write_head

from kvreg_service.tenants import directory

PAGE_TOKENS = 64
NEW_KEY = "sk-x-new"
# One turn of a session of 24 notes needs five pages, three turns need eight.
QUOTA = {"entries": 1, "pages": 8}


class KeysFile:
    """The API keys file of the servers of a test, which may be rewritten while they run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tenants: dict[str, dict[str, Any]] = {
            "x": {"keys": ["sk-x"]},
            "y": {"keys": ["sk-y"]},
            "root": {"keys": ["sk-root"], "is_admin": True},
        }

    def write(self, **of_x: Any) -> None:
        """Change the settings of tenant x and write the whole file."""
        self.tenants["x"] |= of_x
        self.path.write_text(json.dumps({"tenants": self.tenants}))


@dataclass(frozen=True)
class Tenants:
    """Clients of one server with the keys of tenant x, tenant y and an administrator."""

    x: Server
    y: Server
    root: Server


ServeTenants = Callable[..., Tenants]


@pytest.fixture
def keys_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeysFile:
    # Check the file at every request.
    monkeypatch.setattr(directory, "POLL_INTERVAL_S", 0.0)
    return KeysFile(tmp_path / "keys.json")


@pytest.fixture
def serve_tenants(serve: Serve, keys_file: KeysFile) -> ServeTenants:
    """Start servers with keys; ``of_x`` are further settings of tenant x in the file."""

    def start(
        profile: Profile | None = None, of_x: dict[str, Any] | None = None, **settings: Any
    ) -> Tenants:
        keys_file.write(**(of_x or {}))
        root = serve(profile, key="sk-root", api_keys_file=keys_file.path, **settings)
        return Tenants(root.with_key("sk-x"), root.with_key("sk-y"), root)

    return start


def _ids(server: Server) -> set[int]:
    return {place["sequence_id"] for place in server.occupied()}


def _owners(server: Server) -> set[str]:
    return {place["tenant"] for place in server.occupied()}


def _evictions(server: Server) -> dict[str, int]:
    return dict(server.settle()["totals"]["evictions_by_reason"])


@every_profile
def test_case_78_prompt_of_another_tenant_misses(
    serve_tenants: ServeTenants, profile: Profile
) -> None:
    tenants = serve_tenants(profile)
    session = Session(tenants.x, 78)
    messages = session.messages_with(session.opening)
    tenants.x.ask(messages)
    assert_miss(tenants.y.ask(messages))


@some_profiles
def test_case_78_prompt_of_another_key_of_the_tenant_hits(
    serve_tenants: ServeTenants, profile: Profile
) -> None:
    tenants = serve_tenants(profile, {"keys": ["sk-x", NEW_KEY]})
    session = Session(tenants.x, 78)
    messages = session.messages_with(session.opening)
    first = tenants.x.ask(messages)
    assert_hit(tenants.root.with_key(NEW_KEY).ask(messages), first)


@some_profiles
def test_case_78_both_tenants_get_the_same_answer(
    serve_tenants: ServeTenants, profile: Profile
) -> None:
    tenants = serve_tenants(profile)
    session = Session(tenants.x, 78)
    messages = session.messages_with(session.opening)
    assert tenants.x.ask(messages).text == tenants.y.ask(messages).text


def _alternate(tenants: Tenants) -> tuple[list[Reply], list[Reply]]:
    """Play three turns of a session per tenant, alternating. Only their canaries differ."""
    head = write_head(24)
    x, y = Session(tenants.x, 791, head=head), Session(tenants.y, 792, head=head)
    of_x, of_y = [x.begin()], [y.begin()]
    for session, replies in ((x, of_x), (y, of_y), (x, of_x), (y, of_y)):
        replies.append(session.recall())
    return of_x, of_y


@pytest.mark.parametrize("profile", [*WITH_REGISTRY, Profile(2, 0)], ids=str)
def test_case_79_sessions_of_two_tenants_hit_at_every_turn(
    serve_tenants: ServeTenants, profile: Profile
) -> None:
    for first, second, third in _alternate(serve_tenants(profile)):
        assert_miss(first)
        assert_hit(second, first)
        assert_hit(third, second)


def _apply_pressure(tenants: Tenants) -> tuple[Reply, Reply]:
    """A turn of x, much traffic of y, and the next turn of x."""
    session = Session(tenants.x, 79)
    first = session.begin()
    for number in range(2 * (tenants.root.profile.lanes + tenants.root.profile.entries)):
        busy = Session(tenants.y, 7900 + number)
        busy.say("My cat is named Mila.", max_tokens=4)
        busy.say("What is 7 plus 5?", max_tokens=4)
    return first, session.recall()


# Pages for the quota of x, one context, and little more.
SCARCE = {"kv_pages": QUOTA["pages"] + 20, "max_context": 16 * PAGE_TOKENS}
press_profiles = pytest.mark.parametrize(
    "profile", [Profile(1, 1), Profile(1, 2), Profile(2, 2, "drop")], ids=str
)
enough_or_scarce = pytest.mark.parametrize("settings", [{}, SCARCE], ids=["enough", "scarce"])


@press_profiles
@enough_or_scarce
def test_traffic_of_others_evicts_nothing_within_a_quota(
    serve_tenants: ServeTenants, profile: Profile, settings: dict[str, Any]
) -> None:
    tenants = serve_tenants(profile, QUOTA, **settings)
    first, second = _apply_pressure(tenants)
    assert_hit(second, first)
    assert _evictions(tenants.x) == {}


@press_profiles
@enough_or_scarce
def test_traffic_of_others_evicts_sequences_without_a_quota(
    serve_tenants: ServeTenants, profile: Profile, settings: dict[str, Any]
) -> None:
    tenants = serve_tenants(profile, **settings)
    _, second = _apply_pressure(tenants)
    assert_miss(second)
    assert sum(_evictions(tenants.x).values()) > 0


@press_profiles
def test_tenant_keeps_no_more_than_its_quota(serve_tenants: ServeTenants, profile: Profile) -> None:
    tenants = serve_tenants(profile, QUOTA)
    for number in range(4):
        Session(tenants.x, 790 + number).begin(max_tokens=4)
    registry = tenants.x.settle()
    assert len(registry["entries"]) <= QUOTA["entries"]
    assert registry["pools"][0]["referenced"] <= QUOTA["pages"]


@press_profiles
def test_changed_quota_in_the_keys_file_applies_immediately(
    serve_tenants: ServeTenants, keys_file: KeysFile, profile: Profile
) -> None:
    tenants = serve_tenants(profile)
    Session(tenants.x, 79).begin()
    assert _ids(tenants.x)
    keys_file.write(entries=0, pages=0)
    assert _ids(tenants.x) == set()
    assert _evictions(tenants.x) == {"quota": 1}


@some_profiles
def test_registry_shows_a_tenant_nothing_of_another(
    serve_tenants: ServeTenants, profile: Profile
) -> None:
    tenants = serve_tenants(profile, anchors=2)
    before = tenants.y.registry()
    session = Session(tenants.x, 78)
    session.begin()
    with tenants.x.streaming(session.messages_with("Hello!")):
        assert tenants.y.registry() == before
        assert tenants.root.registry()["running"] == 1
    tenants.root.settle()
    assert tenants.y.registry() == before


@some_profiles
def test_registry_shows_a_tenant_its_own_and_an_administrator_everything(
    serve_tenants: ServeTenants, profile: Profile
) -> None:
    tenants = serve_tenants(profile, anchors=2)
    _alternate(tenants)
    tenants.root.settle()
    assert _owners(tenants.x) == {"x"}
    assert _owners(tenants.y) == {"y"}
    # Each tenant sees its sequences under ids of its own.
    assert not _ids(tenants.x) & _ids(tenants.y)
    assert len(_ids(tenants.x)) + len(_ids(tenants.y)) == len(_ids(tenants.root))
    assert _owners(tenants.root) == {"x", "y"}


@pytest.mark.parametrize(
    ("method", "suffix"), [("DELETE", ""), ("PUT", "/pin"), ("DELETE", "/pin")]
)
def test_sequence_of_another_tenant_is_not_found(
    serve_tenants: ServeTenants, method: str, suffix: str
) -> None:
    tenants = serve_tenants()
    session = Session(tenants.x, 78)
    first = session.begin()
    tenants.root.settle()
    (sequence_id,) = _ids(tenants.x)
    body = {"ttl_s": 60} if method == "PUT" else None
    answer = tenants.y.send(method, f"/v1/registry/sequences/{sequence_id}{suffix}", body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "session_not_found")
    assert_hit(session.recall(), first)


@every_profile
def test_anchors_are_not_shared_between_tenants(
    serve_tenants: ServeTenants, profile: Profile
) -> None:
    tenants = serve_tenants(profile, anchors=2)

    def ask(server: Server, text: str) -> Reply:
        head: Message = {"role": "system", "content": write_head(24)}
        return server.ask([head, {"role": "user", "content": text}], max_tokens=8)

    assert_miss(ask(tenants.x, "Hello!"))
    assert_miss(ask(tenants.y, "What is 7 plus 5?"))
    again = [ask(server, "My cat is named Mila.") for server in (tenants.x, tenants.y)]
    assert [reply.attach for reply in again] == ["anchor", "anchor"]


def test_heads_of_others_evict_no_anchor_within_a_quota(serve_tenants: ServeTenants) -> None:
    tenants = serve_tenants(Profile(1, 1), QUOTA | {"anchors": 1}, anchors=2)
    head = write_head(24)
    Session(tenants.x, 120, head=head).begin()
    for number in range(4):
        for _ in range(2):
            # Seen twice, so that each has a higher value than a head seen once.
            Session(tenants.y, 7900 + number).peek("Thanks!", max_tokens=4, cache_prompt=False)
    assert Session(tenants.x, 121, head=head).begin().attach == "anchor"


@some_profiles
def test_session_hits_under_a_new_key_of_its_tenant(
    serve_tenants: ServeTenants, keys_file: KeysFile, profile: Profile
) -> None:
    tenants = serve_tenants(profile)
    session = Session(tenants.x, 79)
    first = session.begin()
    keys_file.write(keys=[NEW_KEY])
    session.server = tenants.root.with_key(NEW_KEY)
    assert_hit(session.recall(), first)


def test_key_removed_from_the_file_is_rejected(
    serve_tenants: ServeTenants, keys_file: KeysFile
) -> None:
    tenants = serve_tenants()
    assert tenants.x.send("GET", "/v1/models").status_code == 200
    keys_file.write(keys=[NEW_KEY])
    answer = tenants.x.send("GET", "/v1/models")
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")


def _evict_all(server: Server) -> None:
    """Evict everything evictable: play more and larger sessions than there are places."""
    for number in range(2 * (server.profile.lanes + server.profile.entries)):
        busy = Session(server, 7800 + number, num_notes=40)
        busy.say("My cat is named Mila.", max_tokens=4)
        busy.say("What is 7 plus 5?", max_tokens=4)


def _return_after_pressure(
    serve: Serve, profile: Profile, *, is_pinned: bool, waits_s: float = 0.0, clock: Clock
) -> tuple[Reply, Reply]:
    """A turn, pinned for a minute or not; a wait, many other sessions; and the next turn."""
    server = serve(profile)
    session = Session(server, 70)
    first = session.begin()
    server.settle()
    (sequence_id,) = _ids(server)
    if is_pinned:
        path = f"/v1/registry/sequences/{sequence_id}/pin"
        server.send("PUT", path, {"ttl_s": 60}).raise_for_status()
    clock.advance(waits_s)
    _evict_all(server)
    return first, session.recall()


@with_registry
def test_pinned_session_is_not_evicted_under_pressure(
    serve: Serve, profile: Profile, clock: Clock
) -> None:
    first, second = _return_after_pressure(serve, profile, is_pinned=True, clock=clock)
    assert_hit(second, first)


@pytest.mark.parametrize(("is_pinned", "waits_s"), [(False, 0.0), (True, 61.0)])
def test_session_without_an_active_pin_is_evicted_under_pressure(
    serve: Serve, clock: Clock, is_pinned: bool, waits_s: float
) -> None:
    _, second = _return_after_pressure(
        serve, Profile(), is_pinned=is_pinned, waits_s=waits_s, clock=clock
    )
    assert_miss(second)


def _return_later(
    serve: Serve, profile: Profile, clock: Clock, waits_s: float, **options: Any
) -> tuple[Server, Reply, Reply]:
    """A turn of a session with a time to live, and its next turn ``waits_s`` later."""
    server = serve(profile)
    session = Session(server, 60)
    first = session.begin(**options)
    clock.advance(waits_s)
    return server, first, session.recall()


@every_profile
def test_session_misses_after_its_time_to_live(
    serve: Serve, profile: Profile, clock: Clock
) -> None:
    server, _, second = _return_later(serve, profile, clock, 61.0, cache_ttl_s=60)
    assert_miss(second)
    assert _evictions(server) == {"expired": 1}


@some_profiles
def test_session_hits_within_its_time_to_live(serve: Serve, profile: Profile, clock: Clock) -> None:
    _, first, second = _return_later(serve, profile, clock, 30.0, cache_ttl_s=60)
    assert_hit(second, first)


@some_profiles
def test_every_use_restarts_the_time_to_live(serve: Serve, profile: Profile, clock: Clock) -> None:
    session = Session(serve(profile), 60, cache_ttl_s=60)
    previous = session.begin()
    for _ in range(3):
        clock.advance(40.0)
        reply = session.recall()
        assert_hit(reply, previous)
        previous = reply


def test_session_in_an_entry_misses_after_its_time_to_live(serve: Serve, clock: Clock) -> None:
    server = serve(Profile(1, 1))
    session = Session(server, 60)
    session.begin(cache_ttl_s=60)
    server.ask_side()
    (entry,) = server.kept()
    assert 0 < entry["expires_in_s"] <= 60
    clock.advance(61.0)
    assert_miss(session.recall())


def test_pin_takes_precedence_over_the_time_to_live(serve: Serve, clock: Clock) -> None:
    server = serve(Profile(1, 1))
    session = Session(server, 60)
    first = session.begin(cache_ttl_s=60)
    server.settle()
    (sequence_id,) = _ids(server)
    pin = server.send("PUT", f"/v1/registry/sequences/{sequence_id}/pin", {"ttl_s": 300})
    pin.raise_for_status()
    clock.advance(120.0)
    assert_hit(session.recall(), first)

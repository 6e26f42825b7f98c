"""The groups that compare keep with drop, and the conditions for append_frontier."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvreg_service.demo.player import Row
from kvreg_service.demo.profile import DROP, KEEP, Profile, as_source
from kvreg_service.demo.verdict import Play

PlayStory = Callable[[str, Profile], Play]

_KEEP = [KEEP, as_source(1)]
_DROP = [DROP, as_source(1, keep_current=False)]
_BOTH = [*_KEEP, *_DROP]


def _name(profile: Profile) -> str:
    return profile.name


def _summary(row: Row) -> tuple[str, str]:
    return row.path, row.attach


@pytest.mark.parametrize("profile", _BOTH, ids=_name)
def test_g1_user_tail_restores_the_turn_boundary_in_both_modes(
    played: PlayStory, profile: Profile
) -> None:
    a1, _, a2 = played("G1", profile).rows

    assert _summary(a2) == ("restore_turn_checkpoint", "registry")
    assert a2.cached_tokens == a1.prompt_tokens - 4


@pytest.mark.parametrize("group", ["G2", "G3", "D2", "D2'"])
@pytest.mark.parametrize("profile", _KEEP, ids=_name)
def test_assistant_tail_appends_nine_tokens_with_keep(
    played: PlayStory, group: str, profile: Profile
) -> None:
    *_, tail = played(group, profile).rows

    assert _summary(tail) == ("append_frontier", "registry")
    assert tail.computed_tokens == 9


@pytest.mark.parametrize("group", ["G2", "G3"])
@pytest.mark.parametrize("profile", _DROP, ids=_name)
def test_assistant_tail_falls_back_to_the_turn_boundary_with_drop(
    played: PlayStory, group: str, profile: Profile
) -> None:
    a1, _, tail = played(group, profile).rows

    assert _summary(tail) == ("restore_turn_checkpoint", "registry")
    assert tail.cached_tokens == a1.prompt_tokens - 4


@pytest.mark.parametrize("group", ["G2", "G3"])
def test_drop_prefills_the_tokens_from_checkpoint_to_frontier_again(
    played: PlayStory, group: str
) -> None:
    a1, _, kept = played(group, KEEP).rows
    *_, dropped = played(group, DROP).rows
    frontier = a1.prompt_tokens + a1.completion_tokens - 1
    checkpoint = a1.prompt_tokens - 4

    assert dropped.computed_tokens - kept.computed_tokens == frontier - checkpoint


@pytest.mark.parametrize("profile", _BOTH, ids=_name)
def test_g4_append_on_the_same_lane_is_no_attach_in_both_modes(
    played: PlayStory, profile: Profile
) -> None:
    _, tail = played("G4", profile).rows

    assert _summary(tail) == ("append_frontier", "none")
    assert tail.computed_tokens == 9


@pytest.mark.parametrize("group", ["G1", "G2", "G3", "G4"])
def test_generated_text_has_the_same_digest_in_both_modes(played: PlayStory, group: str) -> None:
    kept = [row.sha256 for row in played(group, KEEP).rows]
    dropped = [row.sha256 for row in played(group, DROP).rows]

    assert kept == dropped


@pytest.mark.parametrize("profile", _KEEP, ids=_name)
def test_d1_append_without_a_side_request_is_no_attach(played: PlayStory, profile: Profile) -> None:
    _, tail = played("D1", profile).rows

    assert _summary(tail) == ("append_frontier", "none")
    assert tail.computed_tokens == 9


@pytest.mark.parametrize("profile", _KEEP, ids=_name)
def test_t1_user_tail_after_a_side_request_is_an_attach(
    played: PlayStory, profile: Profile
) -> None:
    *_, a2 = played("T1", profile).rows

    assert _summary(a2) == ("restore_turn_checkpoint", "registry")


@pytest.mark.parametrize("profile", _KEEP, ids=_name)
def test_t5_user_tail_without_a_side_request_is_no_attach(
    played: PlayStory, profile: Profile
) -> None:
    *_, more = played("T5", profile).rows

    assert _summary(more) == ("restore_turn_checkpoint", "none")

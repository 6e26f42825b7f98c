"""``kvreg demo`` prints what each request reused and reports differences from the story."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kvreg_service.core.errors import ConfigurationError
from kvreg_service.core.labels import Attach, ReusePath
from kvreg_service.demo import run_demo
from kvreg_service.demo.player import Row
from kvreg_service.demo.profile import KEEP, NO_ENTRY
from kvreg_service.demo.stories import build_stories
from kvreg_service.demo.story import Story
from kvreg_service.demo.verdict import Play, text_problems

_A1 = Row("A1", 100, 0, 100, "full_reset", "none", 0.1, 20, "a1")
_A2 = Row("A2", 130, 96, 34, "restore_turn_checkpoint", "none", 0.1, 20, "a2")


def _control() -> Story:
    return build_stories(1)[0]


def test_play_that_matches_its_story_has_no_problems() -> None:
    assert Play(_control(), KEEP, (_A1, _A2)).problems == []


@pytest.mark.parametrize(
    "changed",
    [
        replace(_A2, path=ReusePath.FULL_RESET),
        replace(_A2, attach=Attach.REGISTRY),
        replace(_A2, cached_tokens=97),
        replace(_A2, computed_tokens=35),
    ],
    ids=["path", "attach", "cached", "computed"],
)
def test_each_difference_from_the_story_is_a_problem(changed: Row) -> None:
    (problem,) = Play(_control(), KEEP, (_A1, changed)).problems

    assert problem.startswith("control on R=1 keep: A2: ")


def test_text_that_differs_between_profiles_is_a_problem() -> None:
    same = Play(_control(), KEEP, (_A1, _A2))
    other = Play(_control(), NO_ENTRY, (_A1, replace(_A2, text="something else")))

    (problem,) = text_problems([same, other])

    assert problem == "control: A2: the answer differs between [R=1 keep] and [R=0]"


def test_same_seed_gives_the_same_texts_and_another_seed_others() -> None:
    first, second, other = (build_stories(seed)[0].steps[0].messages for seed in (1, 1, 2))

    assert first == second
    assert first[0] != other[0]


def test_unknown_group_is_refused_with_the_known_names() -> None:
    with pytest.raises(ConfigurationError, match=r"group is 'G9'.*ABAB, G1"):
        run_demo(group="G9")


def test_json_contains_every_request_of_the_chosen_group(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_demo(group="d1", seed=1, as_json=True)

    shown = json.loads(capsys.readouterr().out)
    assert [(play["story"], len(play["requests"])) for play in shown["plays"]] == [
        ("D1", 2),
        ("D1", 2),
    ]


def test_tables_show_path_attach_and_digest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_demo(group="d1", seed=1)

    assert "append_frontier" in capsys.readouterr().out

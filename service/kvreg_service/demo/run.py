"""``kvreg demo``: runs every story on each of its profiles and prints the results.

Owns the order of the runs, the progress bar and the overall result.
"""

from __future__ import annotations

import asyncio
import secrets
import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kvreg_service.core.errors import ConfigurationError
from kvreg_service.demo.player import play
from kvreg_service.demo.profile import Profile
from kvreg_service.demo.report import print_report, report_as_json
from kvreg_service.demo.stories import build_stories
from kvreg_service.demo.story import Story
from kvreg_service.demo.verdict import Play, text_problems
from kvreg_service.engine.build import LoadedModel, build_engine, load_model
from kvreg_service.engine.options import EngineOptions
from kvreg_service.engine.reservation import plan_cpu
from kvreg_service.reference_model import REFERENCE_MODEL_PATH

# Wide enough for the tables where the output is not a terminal.
_PLAIN_COLUMNS = 140

BASE_OPTIONS = EngineOptions(
    REFERENCE_MODEL_PATH,
    "reference-model",
    # The stories come from the source system, which has no anchors.
    anchors=0,
    max_context_tokens=2048,
    # Room for four kept sessions, a running one and their copies: no story is short of pages.
    num_pages=256,
)


def run_demo(*, group: str | None = None, seed: int | None = None, as_json: bool = False) -> bool:
    """Run the stories and print what each request reused.

    Args:
        group: Run only the story of this name; see ``stories``.
        seed: Makes the texts reproducible; by default every run has new texts.
        as_json: Print one JSON object instead of tables.

    Returns:
        Whether every request reused what was expected, with the same texts on every profile.

    Raises:
        ConfigurationError: There is no story of that name; the message lists the names.
    """
    seed = secrets.randbits(32) if seed is None else seed
    stories = _chosen(build_stories(seed), group)
    loaded = load_model(BASE_OPTIONS)
    plays = _play_all(stories, loaded)
    problems = [problem for one in plays for problem in one.problems] + text_problems(plays)
    if as_json:
        sys.stdout.write(report_as_json(seed, plays, problems) + "\n")
    else:
        slot_bytes = plan_cpu(loaded.config, BASE_OPTIONS).demand.slot_bytes
        console = Console(width=None if sys.stdout.isatty() else _PLAIN_COLUMNS)
        print_report(console, seed, plays, problems, slot_bytes)
    return not problems


def play_on(story: Story, profile: Profile, loaded: LoadedModel) -> Play:
    """Run one story on a new engine, which is closed afterwards."""
    engine, builder = build_engine(profile.options(BASE_OPTIONS), loaded)
    try:
        return Play(story, profile, asyncio.run(play(story, engine, builder)))
    finally:
        engine.close()


def _chosen(stories: tuple[Story, ...], group: str | None) -> tuple[Story, ...]:
    if group is None:
        return stories
    chosen = tuple(story for story in stories if story.name.lower() == group.lower())
    if not chosen:
        names = ", ".join(story.name for story in stories)
        raise ConfigurationError(f"group is {group!r}, and must be one of {names}", value=group)
    return chosen


def _play_all(stories: tuple[Story, ...], loaded: LoadedModel) -> list[Play]:
    pairs = [(story, profile) for story in stories for profile in story.profiles]
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    plays = []
    # The bar goes to standard error, so that the output can be piped.
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(pairs))
        for story, profile in pairs:
            progress.update(task, description=f"{story.name:9} {profile.name:22}")
            plays.append(play_on(story, profile, loaded))
            progress.advance(task)
    return plays

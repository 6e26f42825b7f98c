"""All checks and scores of a checkpoint.

Owns their order and sizes. ``checks``, ``scores`` and ``state_damage`` define what is counted, and
``report`` prints the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from rich.console import Console
from rich.progress import Progress, track

from kvreg_training.data.dataset import ChatSet, make_held_out_set
from kvreg_training.evaluation.checks import Differences, run_checks
from kvreg_training.evaluation.oracle import Oracle
from kvreg_training.evaluation.repeated_chats import count_repeated_chats
from kvreg_training.evaluation.scores import (
    GreedyScore,
    Tally,
    held_out_questions,
    score_continuation,
    score_greedy,
    score_memory_only,
    score_thinking,
)
from kvreg_training.evaluation.state_damage import DamageScore, score_damage
from kvreg_training.evaluation.teacher_forced import (
    HELD_OUT_SEED,
    NUM_HELD_OUT_CHATS,
    TeacherForcedScore,
    score_answers,
)
from kvreg_training.model.reference_model import ReferenceModel
from kvreg_training.model.weights_file import load_weights
from kvreg_training.ops.backend import OpsBackend, load_ops
from kvreg_training.shape import ReferenceShape
from kvreg_training.tokenizer import load_tokenizer


@dataclass(frozen=True)
class EvaluationSize:
    """The number of chats of the greedy score; slower parts use a share of it."""

    num_chats: int = 250

    def part(self, of_250: int) -> int:
        """Return the size of a part, given its size in a full evaluation."""
        return max(1, self.num_chats * of_250 // 250)


@dataclass(frozen=True)
class Evaluation:
    """All results."""

    versions: dict[str, str]
    differences: Differences
    teacher_forced: TeacherForcedScore
    greedy: GreedyScore
    memory: Tally
    bfloat16: Tally
    thinking: tuple[int, int]
    continuation: tuple[int, int]
    damage: dict[str, DamageScore]
    repeated_chats: dict[str, int] | None


def evaluate(
    folder: Path,
    size: EvaluationSize,
    ops: OpsBackend,
    console: Console,
    training_sets: Sequence[Path] = (),
) -> Evaluation:
    """Checks and scores the model in ``folder``.

    ``training_sets``: data files in which repeated chats are counted.

    Raises:
        CheckFailed: The checkpoint does not agree with transformers.
    """
    torch.set_num_threads(1)
    console.print("checks against transformers")
    differences = run_checks(folder, ops, num_split_chats=size.part(20))
    oracle = Oracle(folder)
    model = ReferenceModel(ReferenceShape(), load_ops(ops))
    load_weights(model, folder / "model.safetensors")
    held_out = make_held_out_set(
        HELD_OUT_SEED, size.part(NUM_HELD_OUT_CHATS), load_tokenizer(folder), lambda _: None
    )
    console.print("teacher-forced answers")
    teacher_forced = score_answers(model, held_out)
    questions = track(
        held_out_questions(size.num_chats), "greedy answers", size.num_chats, console=console
    )
    greedy = score_greedy(oracle, model, questions)
    console.print("answers in bfloat16, with thinking, with a given beginning")
    bfloat16 = score_memory_only(Oracle(folder, torch.bfloat16), size.part(60))
    thinking = score_thinking(oracle, size.part(40))
    continuation = score_continuation(oracle, size.part(40))
    with Progress(console=console) as progress:
        task = progress.add_task("damaged states", total=size.part(30))
        damage = score_damage(oracle, size.part(30), lambda: progress.advance(task))
    repeated = None
    if training_sets:
        sets = [ChatSet.load(path) for path in training_sets]
        repeated = count_repeated_chats(sets, size.num_chats, load_tokenizer(folder))
    return Evaluation(
        versions={"torch": torch.__version__, "transformers": transformers.__version__},
        differences=differences,
        teacher_forced=teacher_forced,
        greedy=greedy,
        memory=greedy.memory,
        bfloat16=bfloat16,
        thinking=thinking,
        continuation=continuation,
        damage=damage,
        repeated_chats=None if repeated is None else {str(k): n for k, n in repeated.items()},
    )

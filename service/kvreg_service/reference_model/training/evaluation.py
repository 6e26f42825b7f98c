"""All checks and scores of a checkpoint, printed as tables and written as JSON.

Owns the order, the sizes and the report. What is counted how is in ``checks``, ``scores`` and
``state_damage``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import transformers
from rich.console import Console
from rich.progress import Progress, track
from rich.table import Table

from kvreg_service.reference_model.training.checks import Differences, run_checks
from kvreg_service.reference_model.training.dataset import ChatSet, make_held_out_set
from kvreg_service.reference_model.training.model import ReferenceModel
from kvreg_service.reference_model.training.operator_choice import OperatorsName, load_operators
from kvreg_service.reference_model.training.oracle import Oracle
from kvreg_service.reference_model.training.overlap import count_repeated_chats
from kvreg_service.reference_model.training.scores import (
    CONTEXT_RANGES,
    GreedyScore,
    Tally,
    held_out_questions,
    score_continuation,
    score_greedy,
    score_memory_only,
    score_thinking,
)
from kvreg_service.reference_model.training.shape import ReferenceShape
from kvreg_service.reference_model.training.state_damage import DamageScore, score_damage
from kvreg_service.reference_model.training.tokenizer import load_tokenizer
from kvreg_service.reference_model.training.validation import (
    HELD_OUT_SEED,
    NUM_HELD_OUT_CHATS,
    TeacherForcedScore,
    score_answers,
)
from kvreg_service.reference_model.training.weights_file import load_weights

_MAX_PRINTED_WRONG_ANSWERS = 12


@dataclass(frozen=True)
class EvaluationSize:
    """How many chats the greedy score takes; the slower parts take a share of it."""

    num_chats: int = 250

    def part(self, of_250: int) -> int:
        """A part's size, given as that of a full evaluation."""
        return max(1, self.num_chats * of_250 // 250)


@dataclass(frozen=True)
class Evaluation:
    """Everything that was measured."""

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
    operators: OperatorsName,
    console: Console,
    training_sets: Sequence[Path] = (),
) -> Evaluation:
    """Checks and scores the model folder ``folder``.

    ``training_sets``: data files to count repeated chats in, if they are still there.

    Raises:
        CheckFailed: The checkpoint does not agree with transformers.
    """
    torch.set_num_threads(1)
    console.print("checks against transformers")
    differences = run_checks(folder, operators, num_split_chats=size.part(20))
    oracle = Oracle(folder)
    model = ReferenceModel(ReferenceShape(), load_operators(operators))
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


def write_report(evaluation: Evaluation, path: Path) -> None:
    """Writes everything as JSON."""
    path.write_text(
        json.dumps(asdict(evaluation), indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def print_report(evaluation: Evaluation, console: Console) -> None:
    """Prints the tables."""
    differences, greedy = evaluation.differences, evaluation.greedy
    console.print(
        f"largest difference from transformers: logits {differences.logits:.1e}, "
        f"gradients {differences.gradients:.1e} (relative); "
        f"{differences.num_splits} split prefills give the same answer"
    )
    forced = evaluation.teacher_forced
    console.print(
        f"teacher-forced: loss {forced.loss:.4f}, from memory {forced.memory_share:.4f} exact, "
        f"{forced.by_ask()}"
    )
    table = Table("asked for", "answers", "exact", "value right", "first drafts accepted")
    for ask in sorted(greedy.by_ask):
        drafts = greedy.drafts_by_ask[ask]
        _add_row(table, ask, greedy.by_ask[ask], f"{drafts.num_accepted}/{drafts.num_drafted}")
    drafts = greedy.drafts
    accepted = f"{drafts.num_accepted}/{drafts.num_drafted}"
    _add_row(table, "from memory (recall, notes)", evaluation.memory, "")
    _add_row(table, "from memory, in bfloat16", evaluation.bfloat16, "")
    table.add_row("all", "", "", "", accepted)
    console.print(table)
    table = Table("prompt tokens", "answers", "exact", "value right")
    for context in CONTEXT_RANGES:
        _add_row(table, context, greedy.by_context.get(context, Tally()))
    console.print(table)
    table = Table("damage after the history", "answers", "exact", "value right", "changed", "logp")
    for kind, score in evaluation.damage.items():
        mean = score.log_likelihood / max(1, score.num)
        _add_row(table, kind, score, str(score.num_changed), f"{mean:.4f}")
    console.print(table)
    console.print("thinking on, right at the end: {} of {}".format(*evaluation.thinking))
    console.print("given beginning, exact: {} of {}".format(*evaluation.continuation))
    if evaluation.repeated_chats is not None:
        console.print(f"held-out chats equal to a training chat: {evaluation.repeated_chats}")
    for wrong in greedy.wrong[:_MAX_PRINTED_WRONG_ANSWERS]:
        console.print(f"wrong ({wrong.ask}): {wrong.question[-120:]!r}", markup=False)
        console.print(f"  expected {wrong.expected!r}\n  answered {wrong.answer!r}", markup=False)


def _add_row(table: Table, name: str, tally: Tally, *more: str) -> None:
    table.add_row(name, str(tally.num), str(tally.num_exact), str(tally.num_right), *more)

"""An evaluation as JSON and as printed tables."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kvreg_training.evaluation.scores import CONTEXT_RANGES, Tally
from kvreg_training.evaluation.suite import Evaluation

_MAX_PRINTED_WRONG_ANSWERS = 12


def write_report(evaluation: Evaluation, path: Path) -> None:
    """Writes the results as JSON."""
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

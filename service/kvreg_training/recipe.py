"""The whole recipe: data, trunk, MTP head, export, evaluation.

Owns the order, the file names in the folder of a run, and the division of the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from kvreg_training.data.dataset import make_training_set
from kvreg_training.data.generator import Stage
from kvreg_training.evaluation.report import print_report, write_report
from kvreg_training.evaluation.suite import EvaluationSize, evaluate
from kvreg_training.export import export
from kvreg_training.ops.backend import OpsBackend, load_ops
from kvreg_training.tokenizer import load_tokenizer
from kvreg_training.trainers.mtp import MtpTraining
from kvreg_training.trainers.ranks import run_ranks
from kvreg_training.trainers.trunk import TrunkTraining

# The MTP head of the bundled checkpoint took 6 minutes after some 50 of the trunk.
_TRUNK_SHARE = 0.88
_CHATS_PER_MINUTE = 1000


@dataclass(frozen=True)
class DataSpec:
    """A set of training chats; the same fields give the same chats."""

    stage: Stage
    seed: int
    num_chats: int


DRILLS = DataSpec(Stage.DRILLS, seed=301, num_chats=16000)
QUIZZES = DataSpec(Stage.QUIZZES, seed=601, num_chats=15000)


@dataclass(frozen=True)
class RunFolder:
    """The files of a run. ``model`` is the exported checkpoint."""

    root: Path

    @property
    def drills(self) -> Path:
        """Training chats of the first stage."""
        return self.root / "data" / "drills.npz"

    @property
    def quizzes(self) -> Path:
        """Training chats of the second stage and of the MTP head."""
        return self.root / "data" / "quizzes.npz"

    @property
    def trunk(self) -> Path:
        """Trained weights, without those of the MTP head."""
        return self.root / "training" / "trunk.safetensors"

    @property
    def mtp(self) -> Path:
        """Trained weights of the MTP head."""
        return self.root / "training" / "mtp.safetensors"

    @property
    def model(self) -> Path:
        """The exported model folder."""
        return self.root / "model"

    @property
    def report(self) -> Path:
        """The evaluation as JSON."""
        return self.root / "evaluation.json"


def make_data(spec: DataSpec, tokenizer_folder: Path, path: Path, console: Console) -> None:
    """Generates, tokenizes and writes one set of training chats."""
    with Progress(console=console) as progress:
        task = progress.add_task(f"{spec.stage.name.lower()} chats", total=spec.num_chats)
        chats = make_training_set(
            spec.stage,
            spec.seed,
            spec.num_chats,
            load_tokenizer(tokenizer_folder),
            lambda num_chats: progress.advance(task, num_chats),
        )
    chats.save(path)
    console.print(f"{path}: {len(chats)} chats, {len(chats.token_ids)} tokens")


def run_recipe(
    folder: RunFolder,
    *,
    minutes: float,
    tokenizer_folder: Path,
    ops: OpsBackend,
    num_ranks: int,
    evaluation: EvaluationSize,
    console: Console,
) -> None:
    """Trains for ``minutes`` and exports a checked checkpoint to ``folder.model``.

    Data generation and evaluation are not part of the time.
    """
    # Built here once, before the ranks start.
    console.print(f"ops: {load_ops(ops).name}")
    max_chats = round(_CHATS_PER_MINUTE * minutes) + 100
    for spec, path in ((DRILLS, folder.drills), (QUIZZES, folder.quizzes)):
        num_chats = min(spec.num_chats, max_chats)
        make_data(DataSpec(spec.stage, spec.seed, num_chats), tokenizer_folder, path, console)
    trunk = TrunkTraining(
        minutes=minutes * _TRUNK_SHARE,
        drills=folder.drills,
        quizzes=folder.quizzes,
        tokenizer_folder=tokenizer_folder,
        output=folder.trunk,
        ops=ops,
    )
    run_ranks(trunk, num_ranks)
    mtp = MtpTraining(
        minutes=minutes * (1 - _TRUNK_SHARE),
        chats=folder.quizzes,
        trunk=folder.trunk,
        output=folder.mtp,
        ops=ops,
    )
    run_ranks(mtp, num_ranks)
    size = export(folder.trunk, folder.mtp, tokenizer_folder, folder.model)
    console.print(f"{folder.model}: {size.trunk} parameters and {size.mtp} of the MTP head")
    result = evaluate(folder.model, evaluation, ops, console, (folder.drills, folder.quizzes))
    write_report(result, folder.report)
    print_report(result, console)

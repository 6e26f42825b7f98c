"""The command line of the training: one command for each stage, and ``all``.

Owns options and their defaults.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from kvreg_service.reference_model import REFERENCE_MODEL_PATH
from kvreg_training.evaluation.report import print_report, write_report
from kvreg_training.evaluation.suite import EvaluationSize, evaluate
from kvreg_training.export import export
from kvreg_training.ops.backend import (
    OpsBackend,
    default_backend,
)
from kvreg_training.recipe import (
    DRILLS,
    QUIZZES,
    RunFolder,
    make_data,
    run_recipe,
)
from kvreg_training.samples import print_samples
from kvreg_training.tokenizer import train_tokenizer
from kvreg_training.trainers.mtp import MtpTraining
from kvreg_training.trainers.ranks import run_ranks
from kvreg_training.trainers.trunk import TrunkTraining

Out = Annotated[Path, typer.Option("--out", help="Folder of the run.")]
Minutes = Annotated[float, typer.Option(help="Training time.", min=0.1)]
Ranks = Annotated[
    int, typer.Option("--processes", help="Processes; one per core is fastest.", min=1)
]
TokenizerFolder = Annotated[
    Path, typer.Option("--tokenizer", help="Model folder with the tokenizer and the chat template.")
]
Model = Annotated[Path, typer.Option("--model", help="Model folder.")]
Chats = Annotated[int, typer.Option(help="Held-out chats; slow parts use fewer.", min=1)]
OpsOption = Annotated[
    OpsBackend,
    typer.Option(help="Fused C++ ops, or plain torch: no compiler needed, twice the time."),
]

_DEFAULT_OUT = Path("build/reference-model")
_DEFAULT_RANKS = os.cpu_count() or 1
_DEFAULT_OPS = default_backend()

app = typer.Typer(
    help="Trains the reference model: data, tokenizer, trainers, export, evaluation.",
    no_args_is_help=True,
    add_completion=False,
)
console = Console()


@app.command("all")
def run_all(
    out: Out = _DEFAULT_OUT,
    minutes: Minutes = 50.0,
    processes: Ranks = _DEFAULT_RANKS,
    ops: OpsOption = _DEFAULT_OPS,
    tokenizer: TokenizerFolder = REFERENCE_MODEL_PATH,
    chats: Chats = 250,
) -> None:
    """Run the whole recipe. Data generation and evaluation are not part of the minutes."""
    run_recipe(
        RunFolder(out),
        minutes=minutes,
        tokenizer_folder=tokenizer,
        ops=ops,
        num_ranks=processes,
        evaluation=EvaluationSize(chats),
        console=console,
    )


@app.command()
def tokenizer(
    target: Annotated[Path, typer.Argument(help="Folder for its files.")],
) -> None:
    """Train a tokenizer of the same kind. Its vocabulary depends on files of this machine."""
    size = train_tokenizer(target).get_vocab_size()
    console.print(f"{target}: {size} tokens")


@app.command()
def data(out: Out = _DEFAULT_OUT, tokenizer: TokenizerFolder = REFERENCE_MODEL_PATH) -> None:
    """Generate the training chats of both stages."""
    folder = RunFolder(out)
    make_data(DRILLS, tokenizer, folder.drills, console)
    make_data(QUIZZES, tokenizer, folder.quizzes, console)


@app.command()
def trunk(
    out: Out = _DEFAULT_OUT,
    minutes: Minutes = 44.0,
    processes: Ranks = _DEFAULT_RANKS,
    ops: OpsOption = _DEFAULT_OPS,
    tokenizer: TokenizerFolder = REFERENCE_MODEL_PATH,
    initial: Annotated[
        Path | None, typer.Option(help="Initial weights, a safetensors file.")
    ] = None,
) -> None:
    """Train the trunk on the data of this run."""
    folder = RunFolder(out)
    training = TrunkTraining(
        minutes=minutes,
        drills=folder.drills,
        quizzes=folder.quizzes,
        tokenizer_folder=tokenizer,
        output=folder.trunk,
        ops=ops,
        initial=initial,
    )
    run_ranks(training, processes)


@app.command()
def mtp(
    out: Out = _DEFAULT_OUT,
    minutes: Minutes = 6.0,
    processes: Ranks = _DEFAULT_RANKS,
    ops: OpsOption = _DEFAULT_OPS,
) -> None:
    """Train the MTP head for the trunk of this run."""
    folder = RunFolder(out)
    training = MtpTraining(
        minutes=minutes,
        chats=folder.quizzes,
        trunk=folder.trunk,
        output=folder.mtp,
        ops=ops,
    )
    run_ranks(training, processes)


@app.command("export")
def export_model(
    out: Out = _DEFAULT_OUT, tokenizer: TokenizerFolder = REFERENCE_MODEL_PATH
) -> None:
    """Write the model folder of this run."""
    folder = RunFolder(out)
    size = export(folder.trunk, folder.mtp, tokenizer, folder.model)
    console.print(f"{folder.model}: {size.trunk} parameters and {size.mtp} of the MTP head")


@app.command("evaluate")
def evaluate_model(
    model: Model = REFERENCE_MODEL_PATH,
    chats: Chats = 250,
    ops: OpsOption = _DEFAULT_OPS,
    report: Annotated[
        Path | None, typer.Option(help="Write the results to this JSON file.")
    ] = None,
    training_set: Annotated[
        list[Path] | None, typer.Option(help="Data files in which to count repeated chats.")
    ] = None,
) -> None:
    """Check a model folder against transformers and score its answers."""
    result = evaluate(model, EvaluationSize(chats), ops, console, training_set or ())
    print_report(result, console)
    if report:
        write_report(result, report)


@app.command()
def samples(model: Model = REFERENCE_MODEL_PATH) -> None:
    """Print conversations to read."""
    print_samples(model, console)

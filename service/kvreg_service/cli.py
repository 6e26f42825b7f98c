"""The command line: ``kvreg serve``, ``kvreg plan``, ``kvreg demo``.

Owns the names of commands and options, the exit status and the format of errors. ``__main__``
passes in the functions of the commands. Nothing heavy is imported before a command runs, so that
``--help`` is fast.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from kvreg_service.core.errors import ConfigurationError
from kvreg_service.setting_names import flag_name

if TYPE_CHECKING:
    from kvreg_service.settings import Settings

STATUS_INVALID = 2
STATUS_DOES_NOT_FIT = 1
STATUS_UNEXPECTED = 1

T = TypeVar("T")


@dataclass(frozen=True)
class Commands:
    """The functions of the commands.

    ``plan`` returns its text and whether the profile fits, ``demo`` whether all was as expected.
    """

    serve: Callable[[Settings], None]
    plan: Callable[[Settings, str, bool], tuple[str, bool]]
    demo: Callable[[str | None, int | None, bool], bool]


@dataclass(frozen=True)
class Option:
    """One setting on the command line. Without a metavar it is a switch with a ``--no-`` form."""

    name: str
    metavar: str | None
    help: str


OPTIONS = (
    Option("host", "ADDRESS", "Address to listen on. [127.0.0.1]"),
    Option("port", "N", "Port; 0 takes a free one. [8000]"),
    Option("served_model_name", "NAME", "Model id in the API; by default the folder's name."),
    Option("lanes", "C", "Requests that run at once. [1]"),
    Option("entries", "R", "Displaced sessions that are surely kept. [1]"),
    Option("anchors", "A", "Anchors: kept prefixes that conversations share. [2]"),
    Option("current_state", "keep|drop", "Whether displaced sessions keep their frontier. [keep]"),
    Option("eviction", "NAME", "Eviction policy; see docs/eviction.md. [cost]"),
    Option("prefix_reuse", None, "Whether prompts may reuse kept sequences. [on]"),
    Option("max_context", "TOKENS", "Context length, prompt and answer; by default what fits."),
    Option("device", "cpu|cuda", "Where the model runs. [cpu]"),
    Option("tp", "N", "Tensor-parallel GPUs. [1]"),
    Option("mtp", "K", "Tokens drafted per decode step. [0]"),
    Option("kv_dtype", "auto|fp32|fp16|int8", "Data type of the KV cache. [auto]"),
    Option("memory_gib", "G", "CPU memory for states and KV pages. [1]"),
    Option("gpu_memory_gib", "G", "Memory of one GPU; by default all of it."),
    Option("kv_pages", "N", "KV pages; by default as many as fit."),
    Option("prefill_chunk_tokens", "N", "Largest prefill chunk of a step. [512]"),
    Option("threads", "N", "CPU threads of the model. [1]"),
    Option("queue_limit", "N", "Requests that may wait for a lane. [64]"),
    Option("queue_timeout_s", "S", "Longest time in the queue. [60]"),
    Option("drain_timeout_s", "S", "Time for running requests at shutdown. [30]"),
    Option("max_body_bytes", "N", "Largest request body. [33554432]"),
    Option("api_keys_file", "FILE", "JSON or TOML file with tenants and their API keys."),
    Option("otlp_endpoint", "URL", "OTLP collector, like http://host:4318; off by default."),
    Option("trace_ratio", "P", "Sampling ratio of requests without a parent trace. [1]"),
    Option("profile", "NAME", "Name of the mounted profile."),
    Option("log_level", "LEVEL", "debug, info, warning or error. [info]"),
    Option("request_log", "FILE", "File of the request log; see docs/request-log.md."),
    Option("request_log_max_bytes", "N", "Size at which the file is rotated. [67108864]"),
    Option("request_log_files", "N", "Files to keep, including the current one. [8]"),
    Option("config_file", "FILE", "JSON or TOML file with settings."),
)

_PLAN_NAMES = (
    "lanes", "entries", "anchors", "current_state", "max_context", "device", "tp", "mtp",
    "kv_dtype", "memory_gib", "gpu_memory_gib", "kv_pages", "config_file",
)  # fmt: skip
PLAN_OPTIONS = (
    Option("model", "PATH", "Model folder, or its config.json; by default the bundled one."),
    *(option for option in OPTIONS if option.name in _PLAN_NAMES),
)

ModelArgument = Annotated[
    str | None,
    typer.Argument(help="Model folder; by default the bundled one.", show_default=False),
]
WeightFormatOption = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Weights on GPUs: fp32, fp16, nvfp4-mixed, or auto, which reads the config.",
    ),
]
GroupOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Run only the story of this name, such as abab or G1."),
]
SeedOption = Annotated[
    int | None, typer.Option(metavar="N", help="Seed of the conversations, to repeat a run.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def build_cli(commands: Commands) -> typer.Typer:
    """Build the command line."""
    app = typer.Typer(
        name="kvreg",
        help="Serve hybrid chat models whose sessions survive the side requests between turns.",
        epilog="Every option is also KVREG_OPTION in the environment and a key of --config.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )

    def serve(model: ModelArgument = None, **flags: object) -> None:
        """Serve a model over HTTP; without MODEL the bundled one.

        The first line on standard output is the URL. The log follows as JSON lines.
        """
        _run(lambda: commands.serve(_load({"model": model, **flags})))

    def plan(
        weight_format: WeightFormatOption = "auto", as_json: AsJson = False, **flags: object
    ) -> None:
        """Print the memory plan of a profile. Exits with status 1 if it does not fit.

        No model is loaded: its config.json is enough.
        """
        text, fits = _run(lambda: commands.plan(_load(flags), weight_format, as_json))
        typer.echo(text)
        if not fits:
            raise typer.Exit(STATUS_DOES_NOT_FIT)

    def demo(group: GroupOption = None, seed: SeedOption = None, as_json: AsJson = False) -> None:
        """Run conversations with side requests in between and show what was reused.

        Exits with status 1 if a request did not reuse what was expected.
        """
        if not _run(lambda: commands.demo(group, seed, as_json)):
            raise typer.Exit(STATUS_UNEXPECTED)

    app.command()(_with_options(serve, OPTIONS))
    app.command()(_with_options(plan, PLAN_OPTIONS))
    app.command()(demo)
    return app


def _with_options(command: Callable[..., None], options: Sequence[Option]) -> Callable[..., None]:
    """Replace the ``**flags`` of ``command`` by one keyword per option, for typer."""
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    added = [
        inspect.Parameter(
            option.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=_annotation(option),
        )
        for option in options
    ]
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(kind=p.KEYWORD_ONLY) for p in own] + added
    )
    command.__annotations__ |= {p.name: p.annotation for p in added}
    return command


def _annotation(option: Option) -> Any:
    flag = flag_name(option.name)
    if option.metavar is None:
        switch = typer.Option(
            f"{flag}/--no-{flag.removeprefix('--')}", help=option.help, show_default=False
        )
        return Annotated[bool | None, switch]
    # Values stay text: the settings validate all of them and report every problem together.
    value = typer.Option(flag, metavar=option.metavar, help=option.help, show_default=False)
    return Annotated[str | None, value]


def _load(flags: dict[str, object]) -> Settings:
    from kvreg_service.settings import load_settings

    return load_settings(flags)


def _run(action: Callable[[], T]) -> T:
    try:
        return action()
    except ConfigurationError as err:
        typer.echo(f"kvreg: {err.message}", err=True)
        raise typer.Exit(STATUS_INVALID) from err

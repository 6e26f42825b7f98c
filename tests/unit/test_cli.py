"""The command line, called in process: command arguments and exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from typer.testing import CliRunner, Result

from kvreg_service.cli import Commands, build_cli
from kvreg_service.core.errors import ConfigurationError
from kvreg_service.settings import Settings


@dataclass
class Recorder:
    """Commands that record their arguments."""

    served: list[Settings] = field(default_factory=list)
    planned: list[tuple[Settings, str, bool]] = field(default_factory=list)
    demos: list[tuple[str | None, int | None, bool]] = field(default_factory=list)
    is_as_expected: bool = True
    fits: bool = True
    error: Exception | None = None

    def serve(self, settings: Settings) -> None:
        self.served.append(settings)
        if self.error is not None:
            raise self.error

    def plan(self, settings: Settings, weight_format: str, as_json: bool) -> tuple[str, bool]:
        self.planned.append((settings, weight_format, as_json))
        return "the plan", self.fits

    def demo(self, group: str | None, seed: int | None, as_json: bool) -> bool:
        self.demos.append((group, seed, as_json))
        return self.is_as_expected


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


Run = Callable[..., Result]


@pytest.fixture
def run(recorder: Recorder) -> Run:
    cli = build_cli(Commands(recorder.serve, recorder.plan, recorder.demo))
    return lambda *arguments: CliRunner().invoke(cli, arguments)


def test_serve_passes_validated_settings_to_the_command(run: Run, recorder: Recorder) -> None:
    result = run("serve", "--lanes", "2", "--no-prefix-reuse", "--entries", "0", "--memory-gib", "0.5")
    assert result.exit_code == 0
    settings = recorder.served[0]
    assert (settings.lanes, settings.prefix_reuse, settings.memory_gib) == (2, False, 0.5)


def test_model_is_an_argument_of_serve(run: Run) -> None:
    result = run("serve", "/nowhere")
    assert result.exit_code == 2
    assert "model = /nowhere (--model)" in result.stderr


def test_every_invalid_flag_is_reported_with_status_2(run: Run, recorder: Recorder) -> None:
    result = run("serve", "--lanes", "none", "--port", "99999")
    assert result.exit_code == 2
    assert "lanes = none (--lanes)" in result.stderr
    assert "port = 99999 (--port)" in result.stderr
    assert recorder.served == []


def test_configuration_error_of_a_command_ends_without_a_traceback(
    run: Run, recorder: Recorder
) -> None:
    recorder.error = ConfigurationError("it is too small")
    result = run("serve")
    assert (result.exit_code, result.stderr, result.stdout) == (2, "kvreg: it is too small\n", "")


def test_plan_prints_the_text_of_the_command(run: Run, recorder: Recorder) -> None:
    result = run("plan", "--tp", "2", "--json", "--weight-format", "fp16")
    assert (result.exit_code, result.stdout) == (0, "the plan\n")
    settings, weight_format, as_json = recorder.planned[0]
    assert (settings.tp, weight_format, as_json) == (2, "fp16", True)


def test_plan_that_does_not_fit_ends_with_status_1(run: Run, recorder: Recorder) -> None:
    recorder.fits = False
    result = run("plan")
    assert (result.exit_code, result.stdout) == (1, "the plan\n")


def test_demo_passes_its_arguments_to_the_command(run: Run, recorder: Recorder) -> None:
    assert run("demo", "--group", "G1", "--seed", "7", "--json").exit_code == 0
    assert recorder.demos == [("G1", 7, True)]


def test_demo_with_an_unexpected_result_ends_with_status_1(run: Run, recorder: Recorder) -> None:
    recorder.is_as_expected = False
    assert run("demo").exit_code == 1


def test_unknown_flag_ends_with_status_2(run: Run) -> None:
    assert run("serve", "--blocks", "3").exit_code == 2


def test_help_imports_no_heavy_package() -> None:
    code = (
        "import sys, json\n"
        "import kvreg_service.__main__ as program\n"
        "program.build_cli(program.Commands(program.serve, program.plan, program.demo))\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    loaded = set(json.loads(result.stdout))
    assert not loaded & {"torch", "fastapi", "pydantic", "uvicorn", "tokenizers"}

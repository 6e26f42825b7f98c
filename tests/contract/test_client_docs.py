"""The examples of docs/clients.md run against a real server and print the documented output.

Numbers depend on the model and the machine, so any two numbers count as equal.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from kvreg_service.cli import OPTIONS
from kvreg_service.core.labels import Attach, EvictionReason, ReusePath
from kvreg_service.setting_names import flag_name
from kvreg_service.tenants.key_document import parse_keyring

DOCUMENT = Path(__file__).parents[2] / "docs" / "clients.md"
ADDRESS = "http://127.0.0.1:8000"
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")


@dataclass(frozen=True)
class Example:
    """A code block, its first line, and its documented output; None if the output may vary."""

    language: str
    code: str
    line: int
    output: str | None = ""

    def __str__(self) -> str:
        return f"{self.language}-line-{self.line}"


@dataclass
class ExampleRun:
    """The output of every example up to the first error, which ends the run."""

    outputs: dict[Example, str] = field(default_factory=dict)
    failed: Example | None = None
    error: str = ""


def _read_examples() -> list[Example]:
    text = DOCUMENT.read_text()
    examples: list[Example] = []
    for fence in _FENCE.finditer(text):
        language, code = fence.groups()
        if language in ("text", "log"):
            # A `log` block holds output that depends on the speed of the machine.
            examples[-1] = replace(examples[-1], output=code if language == "text" else None)
        else:
            examples.append(Example(language, code, text.count("\n", 0, fence.start()) + 2))
    return examples


EXAMPLES = _read_examples()
START = next(example for example in EXAMPLES if example.code.startswith("kvreg serve"))
RUNNABLE = [one for one in EXAMPLES if one.language in ("python", "sh") and one is not START]
KEY_TABLES = [one for one in EXAMPLES if one.language == "toml"]


def _serve_arguments() -> list[str]:
    command, _, log = START.code.strip().partition(" > ")
    assert log == "kvreg.log"
    return shlex.split(command)[1:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clients")


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    """Start the server as documented, but on a free port."""
    arguments = [sys.executable, "-m", "kvreg_service", *_serve_arguments(), "--port", "0"]
    log = folder / "kvreg.log"
    with log.open("wb") as output:
        server = subprocess.Popen(arguments, stdout=output, cwd=folder, env=_environment())
    try:
        while not log.read_bytes().partition(b"\n")[1]:
            assert server.poll() is None, "the server has exited"
        yield log.read_text().splitlines()[0]
    finally:
        server.terminate()
        server.wait()


def _environment() -> dict[str, str]:
    """Return the environment without client and server settings, with this interpreter first."""
    prefixes = ("KVREG_", "OPENAI_", "ANTHROPIC_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    return {**kept, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


@pytest.fixture(scope="module")
def example_run(url: str, folder: Path) -> Iterator[ExampleRun]:
    example_run = ExampleRun()
    names: dict[str, Any] = {}
    try:
        for example in RUNNABLE:
            code = example.code.replace(ADDRESS, url)
            try:
                if example.language == "python":
                    example_run.outputs[example] = _run_python(code, names)
                else:
                    example_run.outputs[example] = _run_shell(code, folder)
            except Exception as err:  # noqa: BLE001 - any exception fails the example
                example_run.failed, example_run.error = example, repr(err)
                break
        yield example_run
    finally:
        for name in ("client", "claude"):
            if name in names:
                names[name].close()


def _run_python(code: str, names: dict[str, Any]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(code, names)
    return output.getvalue()


def _run_shell(code: str, folder: Path) -> str:
    command = ["bash", "-euo", "pipefail", "-c", code]
    done = subprocess.run(command, cwd=folder, env=_environment(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def _without_numbers(text: str) -> list[str]:
    return [_NUMBER.sub("N", line) for line in text.splitlines()]


@pytest.mark.slow(reason="starts a server and runs the examples of the document")
@pytest.mark.parametrize("example", RUNNABLE, ids=str)
def test_example_prints_the_documented_output(example_run: ExampleRun, example: Example) -> None:
    if example not in example_run.outputs:
        assert example_run.failed is not None
        pytest.fail(f"{example_run.failed}: {example_run.error}")
    if example.output is not None:
        assert _without_numbers(example_run.outputs[example]) == _without_numbers(example.output)


@pytest.mark.parametrize("example", KEY_TABLES, ids=str)
def test_documented_key_table_is_valid(example: Example) -> None:
    assert len(parse_keyring(example.code.encode(), "toml", "clients.md"))


def test_every_documented_option_exists() -> None:
    named = set(re.findall(r"(?<![-\w])--[a-z][a-z-]*", DOCUMENT.read_text()))
    assert named <= {flag_name(option.name) for option in OPTIONS}


@pytest.mark.parametrize(
    "word",
    [*ReusePath, *Attach, *EvictionReason],
)
def test_every_label_value_is_documented(word: str) -> None:
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")]
    assert any(f"`{word}`" in row.split("|")[1] for row in rows)

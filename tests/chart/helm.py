"""Helm, called from tests: the chart rendered with given values.

Owns the calls of the program. A rendering is made once for each set of values and kept, as a call
takes a tenth of a second. What must hold of a rendering is for the tests.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from tests.system_parts import require_part

CHART = Path(__file__).parents[2] / "charts" / "kvreg"
EXAMPLES = CHART / "examples"

Object = dict[str, Any]
Values = Mapping[str, Any]


class HelmError(Exception):
    """Helm failed; the message is its output."""


def run_helm(*arguments: str, stdin: str | None = None) -> str:
    """Run helm and return its standard output.

    Raises:
        HelmError: It failed.
    """
    done = subprocess.run(
        [require_part("helm"), *arguments], input=stdin, capture_output=True, text=True, timeout=60
    )
    if done.returncode != 0:
        raise HelmError(done.stdout + done.stderr)
    return done.stdout


def render(
    values: Values | None = None,
    *,
    examples: Sequence[str] = (),
    release: str = "kvreg",
    namespace: str = "chat",
) -> list[Object]:
    """Return the objects of the chart with these values, over those of the named examples.

    Raises:
        HelmError: The values are refused.
    """
    text = _render_text(json.dumps(values or {}), tuple(examples), release, namespace)
    return [part for part in yaml.safe_load_all(text) if part]


def render_notes(
    values: Values | None = None, *, release: str = "kvreg", namespace: str = "chat"
) -> str:
    """Return the notes after an installation."""
    arguments = ["install", release, str(CHART), "-n", namespace, "--dry-run=client", "-f", "-"]
    text = run_helm(*arguments, stdin=json.dumps(values or {}))
    return text.partition("\nNOTES:\n")[2]


def select(objects: Sequence[Object], kind: str, name: str | None = None) -> Object:
    """Return the one object of this kind and, where given, this name."""
    (found,) = (
        part
        for part in objects
        if part["kind"] == kind and name in (None, part["metadata"]["name"])
    )
    return found


def select_all(objects: Sequence[Object], kind: str) -> list[Object]:
    """Return all objects of this kind."""
    return [part for part in objects if part["kind"] == kind]


def pod_template(objects: Sequence[Object], kind: str = "StatefulSet") -> Object:
    """Return the pod template of the engines, or of the operator's Deployment."""
    template: Object = select(objects, kind)["spec"]["template"]
    return template


def container(objects: Sequence[Object], kind: str = "StatefulSet") -> Object:
    """Return the one container of the engines' or the operator's pods."""
    (only,) = pod_template(objects, kind)["spec"]["containers"]
    assert isinstance(only, dict)
    return only


def variables(objects: Sequence[Object], kind: str = "StatefulSet") -> dict[str, Any]:
    """Return the variables of that container: their values or sources."""
    return {
        entry["name"]: entry.get("value", entry.get("valueFrom"))
        for entry in container(objects, kind)["env"]
    }


@cache
def _render_text(values: str, examples: tuple[str, ...], release: str, namespace: str) -> str:
    files = [str(EXAMPLES / f"values-{name}.yaml") for name in examples]
    options = [option for file in [*files, "-"] for option in ("-f", file)]
    return run_helm("template", release, str(CHART), "-n", namespace, *options, stdin=values)

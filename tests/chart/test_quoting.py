"""A text in a value stays that text, whatever type YAML would parse it as.

What is compared is the whole rendering: with a plain text, in which the plain one is then replaced,
and with the awkward one.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from tests.chart import awkward
from tests.chart.helm import render, render_notes, variables
from tests.chart.renderings import EVERYTHING
from tests.chart.test_refusals import ELSEWHERE, RULED
from tests.chart.test_values_reach import CONTEXTS, merge

REFUSED = {f"engine.settings.{name}" for name in (*ELSEWHERE, *RULED)}
TRIALS = [trial for trial in awkward.trials() if trial.path not in REFUSED]
# No other value has sixty-four digits of a hash.
NEVER_AWKWARD = {"engine.image.digest", "operator.image.digest"}


@pytest.mark.parametrize("trial", TRIALS, ids=str)
def test_text_of_a_value_is_rendered_as_it_was_given(trial: awkward.Trial) -> None:
    context = CONTEXTS.get(trial.path, {})
    plain, given = (render(merge(context, values)) for values in (trial.plain, trial.awkward))
    assert plain != render(context)
    assert given == awkward.replace(plain, trial.plain_text, trial.awkward_text)


def test_every_value_that_holds_a_text_is_tried() -> None:
    tried = {trial.path for trial in TRIALS}
    assert tried | NEVER_AWKWARD | REFUSED >= awkward.text_paths()
    assert not tried & NEVER_AWKWARD


@pytest.mark.parametrize("kind", ["PodMonitor", "ServiceMonitor"])
@pytest.mark.parametrize(
    ("release", "namespace"),
    [("on", "123"), ("no", "0x1"), ("yes", "off"), ("true", "null"), ("null", "2024")],
)
def test_names_of_release_and_namespace_are_texts(kind: str, release: str, namespace: str) -> None:
    values = merge(EVERYTHING, {"monitoring": {"kind": kind}})
    values["operator"] = {**values["operator"], "watchNamespaces": []}
    plain = render(values, release="plainrelease", namespace="plainnamespace")
    expected = awkward.replace(plain, "plainrelease", release)
    expected = awkward.replace(expected, "plainnamespace", namespace)
    assert render(values, release=release, namespace=namespace) == expected


def test_profile_of_the_notes_has_its_namespace_as_a_text() -> None:
    text = render_notes(namespace="123").partition("<<END\n")[2].partition("\nEND\n")[0]
    assert yaml.safe_load(text)["metadata"]["namespace"] == "123"


@pytest.mark.parametrize(
    "text", ["$(HOME)", "$$(HOME)", "a$$b", "$", "$$", "$(NOBODY)", "${HOME} and $HOME"]
)
@pytest.mark.parametrize(
    ("variable", "values"),
    [
        ("KVREG_OTLP_ENDPOINT", {"engine": {"settings": {"otlp_endpoint": "TEXT"}}}),
        ("KVREG_SERVED_MODEL_NAME", {"model": {"servedName": "TEXT"}}),
    ],
)
def test_kubernetes_fills_nothing_into_a_setting(
    variable: str, values: dict[str, Any], text: str
) -> None:
    objects = render(awkward.replace(values, "TEXT", text))
    assert fill_in(variables(objects)[variable], variables(objects)) == text


def test_kubernetes_fills_the_pod_s_name_into_the_path_of_its_log() -> None:
    written = variables(render({"requestLog": {"enabled": True}}))["KVREG_REQUEST_LOG"]
    names = {"POD_NAME": "kvreg-0", "POD_NAMESPACE": "chat"}
    assert fill_in(written, names) == "/var/log/kvreg/requests.chat.kvreg-0.jsonl"


def fill_in(value: str, known: dict[str, Any]) -> str:
    """Return the value of a variable after its expansion by Kubernetes.

    Source: kubernetes.io, "Define dependent environment variables": ``$(NAME)`` is replaced where
    the name is known, and ``$$`` is one ``$``.
    """
    return re.sub(
        r"\$(?:\$|\(([^)]*)\))",
        lambda found: "$" if found[1] is None else str(known.get(found[1], found[0])),
        value,
    )

"""Recording and alert rules: promtool accepts them, and plays the series in ``rules/`` to them.

Each alert has a file of its own there, with a test in which it fires and one in which none does.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.system_parts import require_part

_ROOT = Path(__file__).parents[2]
_RULES = sorted((_ROOT / "dashboards/rules").glob("*.yaml"))
_PLAYS = sorted((Path(__file__).parent / "rules").glob("*.yaml"))


def _rules() -> list[dict[str, Any]]:
    files = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in _RULES]
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]


_ALERTS = {rule["alert"]: rule for rule in _rules() if "alert" in rule}


def _promtool(*arguments: str | Path) -> None:
    tool = require_part("promtool")
    done = subprocess.run([tool, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_promtool_accepts_the_rules() -> None:
    _promtool("check", "rules", *_RULES)


def test_promtool_accepts_the_configuration_for_one_machine() -> None:
    _promtool("check", "config", _ROOT / "dashboards/local/prometheus.yaml")


@pytest.mark.parametrize("play", _PLAYS, ids=lambda path: path.stem)
def test_rules_answer_to_series_as_they_should(play: Path) -> None:
    _promtool("test", "rules", play)


@pytest.mark.parametrize("alert", _ALERTS)
def test_every_alert_is_seen_firing_and_silent(alert: str) -> None:
    played = yaml.safe_load(
        (Path(__file__).parent / f"rules/{alert}.yaml").read_text(encoding="utf-8")
    )
    expected = [
        [sample["labels"] for sample in query["exp_samples"]]
        for test in played["tests"]
        for query in test["promql_expr_test"]
        if "ALERTS" in query["expr"]
    ]

    assert any(f'alertname="{alert}"' in labels for samples in expected for labels in samples)
    assert [] in expected


@pytest.mark.parametrize("alert", _ALERTS)
def test_every_alert_leads_to_its_section_of_the_runbook(alert: str) -> None:
    url = _ALERTS[alert]["annotations"]["runbook_url"]
    path, _, anchor = url.rpartition("#")
    text = (_ROOT / "docs" / path.rpartition("/")[2]).read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)
    # How a heading becomes an anchor, for headings of one word.
    (section,) = (s for s in sections if s.partition("\n")[0].strip().lower() == anchor)

    assert section.startswith(alert)
    for part in ("**Meaning.**", "**First look.**", "**Likely causes.**", "**What to do.**"):
        assert part in section


def test_the_runbook_has_no_section_of_an_alert_that_is_gone() -> None:
    text = (_ROOT / "docs/runbook.md").read_text(encoding="utf-8")

    assert set(re.findall(r"^## (Kvreg\w+)", text, flags=re.MULTILINE)) == set(_ALERTS)


def test_records_are_named_after_the_labels_they_keep() -> None:
    for rule in _rules():
        if "record" in rule:
            level, metric, operation = rule["record"].split(":")
            assert metric.startswith("kvreg_"), rule
            assert operation, rule
            assert set(level.split("_")) <= {"namespace", "pod", "profile"}, rule

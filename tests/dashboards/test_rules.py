"""Recording and alert rules: promtool checks them and runs the unit tests in ``rules/``.

Each alert has its own file there, with a test in which it fires and one in which no alert does.
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
_UNIT_TESTS = sorted((Path(__file__).parent / "rules").glob("*.yaml"))


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


def test_promtool_accepts_the_local_configuration() -> None:
    _promtool("check", "config", _ROOT / "dashboards/local/prometheus.yaml")


@pytest.mark.parametrize("unit_test", _UNIT_TESTS, ids=lambda path: path.stem)
def test_rules_pass_their_unit_tests(unit_test: Path) -> None:
    _promtool("test", "rules", unit_test)


@pytest.mark.parametrize("alert", _ALERTS)
def test_every_alert_has_a_firing_and_a_silent_unit_test(alert: str) -> None:
    unit_tests = yaml.safe_load(
        (Path(__file__).parent / f"rules/{alert}.yaml").read_text(encoding="utf-8")
    )
    expected = [
        [sample["labels"] for sample in query["exp_samples"]]
        for test in unit_tests["tests"]
        for query in test["promql_expr_test"]
        if "ALERTS" in query["expr"]
    ]

    assert any(f'alertname="{alert}"' in labels for samples in expected for labels in samples)
    assert [] in expected


@pytest.mark.parametrize("alert", _ALERTS)
def test_every_alert_links_to_its_section_of_the_runbook(alert: str) -> None:
    url = _ALERTS[alert]["annotations"]["runbook_url"]
    path, _, anchor = url.rpartition("#")
    text = (_ROOT / "docs" / path.rpartition("/")[2]).read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)
    # The anchor of a heading of one word is the word in lower case.
    (section,) = (s for s in sections if s.partition("\n")[0].strip().lower() == anchor)

    assert section.startswith(alert)
    for part in ("**Meaning.**", "**First look.**", "**Likely causes.**", "**What to do.**"):
        assert part in section


def test_runbook_has_sections_of_existing_alerts_only() -> None:
    text = (_ROOT / "docs/runbook.md").read_text(encoding="utf-8")

    assert set(re.findall(r"^## (Kvreg\w+)", text, flags=re.MULTILINE)) == set(_ALERTS)


def test_records_are_named_after_the_labels_they_keep() -> None:
    for rule in _rules():
        if "record" in rule:
            level, metric, operation = rule["record"].split(":")
            assert metric.startswith("kvreg_"), rule
            assert operation, rule
            assert set(level.split("_")) <= {"namespace", "pod", "profile"}, rule

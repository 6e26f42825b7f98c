"""What the chart renders for each example, as files that a change of the chart is read by.

``python -m tests.chart.golden`` writes them anew; a test compares. What other files hold already -
the definition, the rules, the dashboards - is left out.
"""

from __future__ import annotations

from pathlib import Path

import yaml  # type: ignore[import-untyped]
from tests.chart.helm import Object, render
from tests.chart.renderings import EXAMPLES

FOLDER = Path(__file__).parent / "golden"
_LEFT_OUT = "compared elsewhere"


def golden_text(example: str) -> str:
    """Return the file of one example: its objects by kind and name."""
    objects = [_shorten(part) for part in render(examples=(example,))]
    objects.sort(key=lambda part: (part["kind"], part["metadata"]["name"]))
    head = "# Written by `python -m tests.chart.golden`; do not edit.\n"
    body: str = yaml.safe_dump_all(objects, sort_keys=True, width=100, explicit_start=True)
    return head + body


def _shorten(part: Object) -> Object:
    match part["kind"]:
        case "CustomResourceDefinition" | "PrometheusRule":
            return {**part, "spec": _LEFT_OUT}
        case "ConfigMap":
            return {**part, "data": dict.fromkeys(part["data"], _LEFT_OUT)}
    return part


def main() -> None:
    """Write the files."""
    FOLDER.mkdir(exist_ok=True)
    for example in EXAMPLES:
        (FOLDER / f"{example}.yaml").write_text(golden_text(example), encoding="utf-8")


if __name__ == "__main__":
    main()

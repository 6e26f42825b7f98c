"""``python -m kvreg_operator.crd``: writes the CRD that the chart installs."""

from __future__ import annotations

import argparse
from pathlib import Path

from kvreg_operator.crd.definition import CRD_PATH, crd_text


def main() -> None:
    """Parse the command line and write the file."""
    parser = argparse.ArgumentParser(prog="kvreg_operator.crd", description=__doc__)
    parser.add_argument("--path", type=Path, default=CRD_PATH, help="file to write [%(default)s]")
    path: Path = parser.parse_args().path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(crd_text(), encoding="utf-8")


if __name__ == "__main__":
    main()

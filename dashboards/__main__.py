"""``python -m dashboards``: regenerate ``generated/``."""

from __future__ import annotations

import argparse

from dashboards.boards import GENERATED, write_all
from dashboards.panels import DOCS_URL


def main() -> None:
    """Read the command line and write the files."""
    parser = argparse.ArgumentParser(prog="dashboards", description=__doc__)
    parser.add_argument(
        "--docs-url", default=DOCS_URL, help="URL under which docs/ is published [%(default)s]"
    )
    write_all(GENERATED, docs_url=parser.parse_args().docs_url)


if __name__ == "__main__":
    main()

"""``python -m dashboards``: write ``generated/`` anew."""

from __future__ import annotations

from dashboards.boards import GENERATED, write_all

if __name__ == "__main__":
    write_all(GENERATED)

"""Import path of the benches' pure parts."""

from __future__ import annotations

import sys
from pathlib import Path

# The benches are started as a program, and import each other by their bare names.
sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

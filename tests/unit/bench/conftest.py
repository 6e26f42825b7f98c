"""Adds the folder of the benches to the import path."""

from __future__ import annotations

import sys
from pathlib import Path

# The benches run as a program and import each other by bare name.
sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

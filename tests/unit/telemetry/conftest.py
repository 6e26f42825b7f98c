"""The folders of tests are no packages, and the files of this one share records and a reader."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

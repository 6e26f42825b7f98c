"""Stop strings, with the limits of both APIs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

MAX_STOP_STRINGS = 16

StopString = Annotated[str, Field(min_length=1, max_length=1024)]
"""A string at which generation stops."""

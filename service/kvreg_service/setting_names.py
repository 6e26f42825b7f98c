"""The names of a setting in the environment and on the command line.

It imports nothing, so that the command line starts fast.
"""

from __future__ import annotations

ENV_PREFIX = "KVREG_"


def environment_name(field_name: str) -> str:
    """Return the environment variable of a setting."""
    return ENV_PREFIX + field_name.upper()


def flag_name(field_name: str) -> str:
    """Return the command line flag of a setting."""
    if field_name == "config_file":
        return "--config"
    return "--" + field_name.replace("_", "-")

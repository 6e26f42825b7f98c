"""Whether a growing text ends with the beginning of a marker."""

from __future__ import annotations


def partial_suffix_len(text: str, marker: str) -> int:
    """Return the length of the longest suffix of ``text`` that is a proper prefix of ``marker``."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0

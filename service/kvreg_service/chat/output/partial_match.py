"""How much of the end of a growing text may be the beginning of a marker."""

from __future__ import annotations


def partial_suffix_len(text: str, marker: str) -> int:
    """Length of the longest end of ``text`` with which ``marker`` begins but does not end."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0

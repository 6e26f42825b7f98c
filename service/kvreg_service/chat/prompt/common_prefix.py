"""The length of the common prefix of two long sequences, without a loop over their elements."""

from __future__ import annotations

from array import array
from typing import TypeVar

_CHUNK = 1 << 14

_Sliceable = TypeVar("_Sliceable", str, "array[int]")


def common_prefix_len(a: _Sliceable, b: _Sliceable) -> int:
    """Return the number of leading elements in which ``a`` and ``b`` agree."""
    limit = min(len(a), len(b))
    low = 0
    while low < limit and a[low : low + _CHUNK] == b[low : low + _CHUNK]:
        low += _CHUNK
    # The first difference, if any, lies in this chunk: bisect it.
    low, high = min(low, limit), min(low + _CHUNK, limit)
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low

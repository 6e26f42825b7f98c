"""The chunked comparison counts what a loop would count."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreg_service.chat.prompt.common_prefix import common_prefix_len


@given(a=st.text("ab", max_size=20), b=st.text("ab", max_size=20))
def test_short_texts_equal_the_loop(a: str, b: str) -> None:
    expected = 0
    while expected < min(len(a), len(b)) and a[expected] == b[expected]:
        expected += 1
    assert common_prefix_len(a, b) == expected


@pytest.mark.parametrize("position", [0, 1, 16_383, 16_384, 16_385, 40_000, 49_999])
def test_long_arrays_part_at_the_changed_place(position: int) -> None:
    a = array("i", range(50_000))
    b = array("i", a)
    b[position] = -1
    assert common_prefix_len(a, b) == position


@pytest.mark.parametrize("length", [0, 16_384, 32_768, 50_000])
def test_a_prefix_is_common_whole(length: int) -> None:
    a = array("i", range(50_000))
    assert common_prefix_len(a, a[:length]) == length

"""State slots and KV pages: sizes, exact moves, and what a move does not change."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kvreg_service.model.cache import PAGE_TOKENS, KVPages, StateSlots
from kvreg_service.model.testing import tiny_config

CONFIG = tiny_config(
    layer_types=("linear_attention", "full_attention", "linear_attention", "linear_attention")
)
CPU = torch.device("cpu")


def random_bits_(tensor: Tensor) -> Tensor:
    """Fills with every kind of bit pattern, signalling NaN and denormals included."""
    integers = tensor.view(torch.int32)
    integers.copy_(
        torch.randint(-(2**31), 2**31, integers.shape, generator=torch.Generator().manual_seed(0))
    )
    return integers


@pytest.fixture
def states() -> StateSlots:
    slots = StateSlots.allocate(CONFIG, 4, torch.float32, CPU)
    random_bits_(slots.conv)
    random_bits_(slots.recurrent)
    return slots


def slot_bits(states: StateSlots, slot: int) -> tuple[Tensor, Tensor]:
    conv = states.conv[:, slot].clone().view(torch.int32)
    return conv, states.recurrent[:, slot].clone().view(torch.int32)


def is_equal(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_slot_has_the_bytes_of_the_formula(states: StateSlots) -> None:
    recurrent = CONFIG.linear_num_value_heads * 8 * 12 * 4
    conv = CONFIG.conv_channels * (CONFIG.linear_conv_kernel_dim - 1) * 4
    assert states.slot_bytes == 3 * (recurrent + conv)
    assert states.nbytes == 4 * states.slot_bytes


def test_a_page_has_the_bytes_of_the_formula() -> None:
    pages = KVPages.allocate(CONFIG, 5, torch.float16, CPU)
    assert pages.page_bytes == PAGE_TOKENS * 2 * CONFIG.num_key_value_heads * CONFIG.head_dim * 2
    assert (pages.nbytes, pages.num_pages) == (5 * pages.page_bytes, 5)


def test_empty_memory_has_no_bytes() -> None:
    assert StateSlots.allocate(CONFIG, 0, torch.float32, CPU).slot_bytes == 0
    assert KVPages.allocate(CONFIG, 0, torch.float32, CPU).page_bytes == 0


def test_a_copy_is_bit_identical_and_alone(states: StateSlots) -> None:
    before = [slot_bits(states, slot) for slot in range(4)]
    states.copy(1, 3)
    after = [slot_bits(states, slot) for slot in range(4)]
    assert is_equal(after[3], before[1])
    assert all(is_equal(after[slot], before[slot]) for slot in (0, 1, 2))


def test_zeroing_leaves_other_slots_alone(states: StateSlots) -> None:
    before = slot_bits(states, 0)
    states.zero(1)
    assert not states.recurrent[:, 1].any()
    assert not states.conv[:, 1].any()
    assert is_equal(slot_bits(states, 0), before)


def test_neighbouring_slots_are_opened_in_place(states: StateSlots) -> None:
    batch = states.batch([1, 2])
    batch.recurrent[0].fill_(5.0)
    assert (states.recurrent[0, 1:3] == 5.0).all()


def test_scattered_slots_are_written_back_in_order(states: StateSlots) -> None:
    untouched = slot_bits(states, 1)
    batch = states.batch([3, 0])
    for layer in range(3):
        batch.conv[layer].copy_(torch.tensor([30.0, 0.5]).view(2, 1, 1).expand_as(batch.conv[0]))
        batch.recurrent[layer][0] = 3.0
        batch.recurrent[layer][1] = 7.0
    batch.commit()
    assert (states.conv[:, 3] == 30.0).all()
    assert (states.conv[:, 0] == 0.5).all()
    assert (states.recurrent[:, 3] == 3.0).all()
    assert (states.recurrent[:, 0] == 7.0).all()
    assert is_equal(slot_bits(states, 1), untouched)


@pytest.fixture
def pages() -> KVPages:
    memory = KVPages.allocate(CONFIG, 6, torch.float32, CPU)
    random_bits_(memory.kv)
    return memory


def page_bits(pages: KVPages, page: int) -> Tensor:
    rows = pages.kv[:, :, page * PAGE_TOKENS : (page + 1) * PAGE_TOKENS]
    return rows.clone().view(torch.int32)


def test_a_page_copy_is_bit_identical_and_alone(pages: KVPages) -> None:
    before = [page_bits(pages, page) for page in range(6)]
    pages.copy_page(4, 1)
    after = [page_bits(pages, page) for page in range(6)]
    assert torch.equal(after[1], before[4])
    assert all(torch.equal(after[page], before[page]) for page in (0, 2, 3, 4, 5))


def test_rows_follow_the_page_table(pages: KVPages) -> None:
    assert pages.rows([5, 2], 62, 4) == [5 * 64 + 62, 5 * 64 + 63, 2 * 64, 2 * 64 + 1]


@pytest.mark.parametrize("page_table", [[2, 3, 4], [4, 0, 2]])
@pytest.mark.parametrize("num_tokens", [1, 64, 65, 150])
def test_what_was_written_is_read_in_order(
    pages: KVPages, page_table: list[int], num_tokens: int
) -> None:
    kv = torch.randn(
        2 * CONFIG.num_key_value_heads, num_tokens, CONFIG.head_dim,
        generator=torch.Generator().manual_seed(1),
    )  # fmt: skip
    pages.write(0, torch.tensor(pages.rows(page_table, 0, num_tokens)), kv)
    keys, values = pages.read(0, pages.context(page_table, num_tokens), torch.float32)
    assert torch.equal(torch.cat((keys, values)), kv)


def test_a_run_of_pages_is_read_without_a_copy(pages: KVPages) -> None:
    for read in pages.read(0, pages.context([2, 3], 100), torch.float32):
        assert read.untyped_storage().data_ptr() == pages.kv.untyped_storage().data_ptr()


def test_a_context_needs_its_pages(pages: KVPages) -> None:
    with pytest.raises(AssertionError, match="do not fit"):
        pages.context([1], 65)

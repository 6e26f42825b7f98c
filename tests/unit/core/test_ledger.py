"""Ledgers and digests: a digest can only exclude a candidate; a hit requires equal tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvreg_service.core.requests.identity import Epoch, Identity
from kvreg_service.core.requests.ledger import TokenLedger

IDENTITY = Identity(b"epoch", "tenant")
EPOCH = Epoch("weights", "tokenizer", "template", "fp16", "default", "none", 2)


def _ledger(tokens, identity=IDENTITY):
    return TokenLedger(identity, tokens)


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 128, 200])
def test_appending_tokens_one_by_one_equals_building_the_ledger_at_once(length):
    grown = _ledger([])
    for token in range(length):
        grown.append(token)
    whole = _ledger(range(length))
    assert grown.tokens == whole.tokens
    assert grown.digest_before(length) == whole.digest_before(length)


@pytest.mark.parametrize("position", [0, 63, 64, 100, 127])
def test_a_digest_covers_every_token_before_it(position):
    tokens = list(range(200))
    other = tokens.copy()
    other[position] = 999
    first_whole_page = position // 64 + 1
    for page in range(4):
        mine = _ledger(tokens).digest_before(64 * page)
        theirs = _ledger(other).digest_before(64 * page)
        assert (mine == theirs) == (page < first_whole_page)


@pytest.mark.parametrize("length", [0, 10, 63, 64, 65, 130, 192])
def test_truncating_equals_building_the_ledger_of_the_prefix(length):
    cut = _ledger(range(200))
    cut.truncate(length)
    for token in (7, 8, 9):
        cut.append(token)
    fresh = _ledger([*range(length), 7, 8, 9])
    assert cut.tokens == fresh.tokens
    assert cut.digest_before(len(cut)) == fresh.digest_before(len(fresh))


def test_truncating_beyond_the_end_changes_nothing():
    ledger = _ledger(range(70))
    ledger.truncate(1000)
    assert len(ledger) == 70
    assert ledger.digest_before(70) == _ledger(range(70)).digest_before(70)


def test_a_copy_is_independent():
    ledger = _ledger(range(130))
    copy = ledger.copy(100)
    copy.append(5)
    ledger.truncate(10)
    assert list(copy.tokens) == [*range(100), 5]
    assert list(ledger.tokens) == list(range(10))


@pytest.mark.parametrize("position", [0, 1, 63, 64, 127, 128, 129])
@pytest.mark.parametrize("length", [1, 64, 65, 128, 130])
def test_a_prefix_matches_only_if_all_its_tokens_match(position, length):
    tokens = list(range(130))
    other = tokens.copy()
    other[position] = 999
    assert _ledger(other).starts_with(_ledger(tokens), length) == (position >= length)


@pytest.mark.parametrize("position", [0, 8191, 8192, 16383, 16384, 19999])
def test_a_long_comparison_detects_one_different_token(position):
    tokens = list(range(20000))
    other = tokens.copy()
    other[position] = 999_999
    assert not _ledger(other).starts_with(_ledger(tokens), 20000)


def test_a_ledger_does_not_start_with_a_longer_one():
    assert not _ledger(range(100)).starts_with(_ledger(range(200)), 101)


@pytest.mark.parametrize("position", [3, 70])
def test_equal_digests_are_not_a_hit_if_a_token_differs(position):
    kept, prompt = _ledger(range(100)), _ledger(range(100))
    # A collision: the digests stay, one token differs.
    kept.tokens[position] = 999
    assert prompt.may_start_with(kept, 100)
    assert not prompt.starts_with(kept, 100)


def test_equal_digests_are_not_a_hit_across_tenants():
    mine, theirs = _ledger(range(100)), _ledger(range(100), Identity(b"epoch", "other tenant"))
    # A collision: the digest chains are equal, the tenants differ.
    theirs._root, theirs._digests = mine._root, mine._digests
    assert theirs.may_start_with(mine, 100)
    assert not theirs.starts_with(mine, 100)


@pytest.mark.parametrize("length", [1, 63, 64, 100])
@pytest.mark.parametrize(
    "other", [Identity(b"epoch", "other tenant"), Identity(b"another epoch", "tenant")]
)
def test_another_tenant_or_epoch_never_matches(other, length):
    theirs = _ledger(range(100), other)
    assert not theirs.may_start_with(_ledger(range(100)), length)
    assert not theirs.starts_with(_ledger(range(100)), length)
    assert theirs.common_prefix(_ledger(range(100))) == 0


@pytest.mark.parametrize("position", [0, 5, 63, 64, 65, 127, 128, 149])
def test_the_common_prefix_ends_at_the_first_different_token(position):
    tokens = list(range(150))
    other = tokens.copy()
    other[position] = 999
    assert _ledger(tokens).common_prefix(_ledger(other)) == position


@pytest.mark.parametrize("length", [0, 1, 64, 100, 150])
def test_the_common_prefix_of_a_prefix_is_the_prefix(length):
    whole, prefix = _ledger(range(150)), _ledger(range(length))
    assert whole.common_prefix(prefix) == prefix.common_prefix(whole) == length


@pytest.mark.parametrize("position", [0, 1, 63, 64, 65, 128, 150])
def test_a_prefix_key_matches_every_ledger_that_begins_with_the_prefix(position):
    key = _ledger(range(150)).prefix_key(position)
    assert key.position == position
    assert key.is_prefix_of(_ledger([*range(position), 7, 8]))
    assert key.is_prefix_of(_ledger(range(position)))


@pytest.mark.parametrize("position", [1, 63, 64, 65, 128, 150])
def test_a_prefix_key_matches_no_ledger_with_another_token_or_fewer(position):
    key = _ledger(range(150)).prefix_key(position)
    for wrong in {0, position // 2, position - 1}:
        other = [*range(position), 7]
        other[wrong] = 999
        assert not key.is_prefix_of(_ledger(other))
    assert not key.is_prefix_of(_ledger(range(position - 1)))


@pytest.mark.parametrize("position", [0, 10, 64, 100])
def test_a_prefix_key_matches_no_ledger_of_another_identity(position):
    key = _ledger(range(100)).prefix_key(position)
    assert not key.is_prefix_of(_ledger(range(100), Identity(b"epoch", "other tenant")))


@pytest.mark.parametrize("length", [1, 63, 64, 65, 127, 128])
@pytest.mark.parametrize("position", [0, 63, 64, 126, 127])
def test_ledgers_agree_up_to_the_first_different_token(position, length):
    tokens = list(range(150))
    other = tokens.copy()
    other[position] = 999
    assert _ledger(tokens).agrees_up_to(_ledger(other), length) == (position >= length)


def test_a_ledger_does_not_agree_beyond_the_end_of_either():
    assert not _ledger(range(100)).agrees_up_to(_ledger(range(70)), 71)
    assert not _ledger(range(70)).agrees_up_to(_ledger(range(100)), 71)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weights_digest", "other"),
        ("tokenizer_digest", "other"),
        ("template_digest", "other"),
        ("kv_dtype", "int8"),
        ("rope", "other"),
        ("speculative", "mtp"),
        ("tensor_parallel", 1),
    ],
)
def test_every_field_of_the_epoch_changes_its_digest(field, value):
    assert replace(EPOCH, **{field: value}).digest() != EPOCH.digest()


def test_equal_epochs_have_equal_digests():
    assert replace(EPOCH).digest() == EPOCH.digest()

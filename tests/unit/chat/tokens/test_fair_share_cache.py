"""Values are not shared by tenants, and a tenant within its share loses none to others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvreg_service.chat.tokens.fair_share_cache import FairShareCache

Cache = FairShareCache[int, str]


def _filled(cache: Cache, tenant: str, *keys: int, size: int = 1) -> None:
    for key in keys:
        cache.put(tenant, key, f"{tenant}{key}", size)


def _kept(cache: Cache, tenant: str, num_keys: int = 20) -> list[int]:
    return [key for key in range(num_keys) if cache.find(tenant, key) is not None]


def test_a_value_is_found_by_its_tenant_alone() -> None:
    cache = Cache(10)
    _filled(cache, "a", 1)
    assert cache.find("a", 1) == "a1"
    assert cache.find("b", 1) is None


def test_tenants_keep_values_of_their_own_under_one_key() -> None:
    cache = Cache(10)
    _filled(cache, "a", 1)
    _filled(cache, "b", 1)
    assert (cache.find("a", 1), cache.find("b", 1)) == ("a1", "b1")


def test_a_lone_tenant_may_use_it_all() -> None:
    cache = Cache(10)
    _filled(cache, "a", *range(10))
    assert len(cache) == 10


def test_the_least_recently_used_goes_first() -> None:
    cache = Cache(3)
    _filled(cache, "a", 0, 1, 2)
    cache.find("a", 0)
    assert cache.put("a", 3, "a3", 1) == [("a", 1)]


def test_a_replaced_value_makes_room_for_its_successor() -> None:
    cache = Cache(3)
    _filled(cache, "a", 0, size=3)
    assert cache.put("a", 0, "new", 2) == []
    assert cache.find("a", 0) == "new"


def test_a_value_beyond_the_bound_is_not_kept() -> None:
    cache = Cache(3)
    assert cache.put("a", 0, "a0", 4) is None
    assert len(cache) == 0


def test_the_largest_tenant_is_evicted_for_others() -> None:
    cache = Cache(4)
    _filled(cache, "a", 0, 1, 2, 3)
    assert cache.put("b", 0, "b0", 1) == [("a", 0)]


def test_the_largest_tenant_is_evicted_for_itself() -> None:
    cache = Cache(4)
    _filled(cache, "b", 0)
    _filled(cache, "a", 0, 1, 2)
    _filled(cache, "a", *range(3, 20))
    assert _kept(cache, "b") == [0]
    assert _kept(cache, "a") == [17, 18, 19]


_PUTS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.integers(0, 12)), max_size=60
)


@given(puts=_PUTS)
def test_a_tenant_within_its_share_loses_nothing_and_the_bound_holds(
    puts: list[tuple[str, int, int]],
) -> None:
    cache = Cache(30)
    kept: dict[tuple[str, int], int] = {}
    for tenant, key, size in puts:
        kept[tenant, key] = size
        held = {name: sum(s for (n, _), s in kept.items() if n == name) for name in "abc"}
        dropped = cache.put(tenant, key, "", size)
        assert dropped is not None
        assert all(held[owner] > 10 for owner, _ in dropped)
        for lost in dropped:
            del kept[lost]
        assert sum(kept.values()) <= 30
        assert len(cache) == len(kept)
        assert all(cache.find(*place) is not None for place in kept)

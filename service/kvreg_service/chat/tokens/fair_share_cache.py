"""An LRU cache whose capacity tenants share fairly: none of them can use all of it.

Owns the eviction order. It is not thread-safe.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class _Sized(NamedTuple, Generic[_Value]):
    value: _Value
    size: int


class FairShareCache(Generic[_Key, _Value]):
    """Values by tenant and key, bounded by the sum of their sizes. The owner synchronizes access.

    Evicts the least recently used value of the tenant that holds the most. So a tenant that holds
    no more than the bound divided by the number of tenants loses nothing.
    """

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._shares: dict[str, OrderedDict[_Key, _Sized[_Value]]] = {}
        self._sizes: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._shares.values()))

    def find(self, tenant: str, key: _Key) -> _Value | None:
        """Return the value of this tenant's key, or None. The value becomes the most recent one."""
        share = self._shares.get(tenant)
        if share is None or key not in share:
            return None
        share.move_to_end(key)
        return share[key].value

    def put(
        self, tenant: str, key: _Key, value: _Value, size: int
    ) -> list[tuple[str, _Key]] | None:
        """Store a value and return the tenants and keys of the values that were evicted for it.

        A replaced value does not count as evicted. Returns None for a value larger than the bound,
        which is not stored.
        """
        if size > self._max_size:
            return None
        self._drop(tenant, key)
        self._shares.setdefault(tenant, OrderedDict())[key] = _Sized(value, size)
        self._sizes[tenant] = self._sizes.get(tenant, 0) + size
        dropped = []
        while sum(self._sizes.values()) > self._max_size:
            largest = max(self._sizes, key=self._sizes.__getitem__)
            oldest = next(iter(self._shares[largest]))
            self._drop(largest, oldest)
            dropped.append((largest, oldest))
        return dropped

    def _drop(self, tenant: str, key: _Key) -> None:
        share = self._shares.get(tenant)
        if share is None or key not in share:
            return
        self._sizes[tenant] -= share.pop(key).size
        if not share:
            del self._shares[tenant], self._sizes[tenant]

"""What is remembered for several tenants, within one bound that none of them can use up alone.

Owns the order in which values are given up. It does not know what they are, and takes no lock.
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
    """Values by tenant and key, bounded by the sum of their sizes. Its owner guards it.

    When room is needed, the tenant that holds the most gives up what it has not used for longest.
    So a tenant that holds no more than the bound, divided by the number of tenants, loses nothing.
    """

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._shares: dict[str, OrderedDict[_Key, _Sized[_Value]]] = {}
        self._sizes: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._shares.values()))

    def find(self, tenant: str, key: _Key) -> _Value | None:
        """The value that this tenant put under this key, or None; it counts as used."""
        share = self._shares.get(tenant)
        if share is None or key not in share:
            return None
        share.move_to_end(key)
        return share[key].value

    def put(
        self, tenant: str, key: _Key, value: _Value, size: int
    ) -> list[tuple[str, _Key]] | None:
        """Keep a value in place of an earlier one, and return whose values made room for it.

        The replaced value is none of them. A value larger than the bound is not kept: None.
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

"""The numbers of sessions and states that a tenant sees, which reveal nothing about other tenants.

Both are numbered in order over all tenants. The gaps in one tenant's numbers would reveal how many
sessions other tenants have started.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from hashlib import blake2b

from kvreg_service.core.ids import SessionId, StateId

# Few enough bits for a JSON number, and too many to guess one.
_NUM_BYTES = 6


class TenantIds:
    """Keyed numbers, new in every process. An admin, who sees all tenants, gets the plain ones."""

    def __init__(self) -> None:
        self._key = os.urandom(16)

    def shown(self, number: SessionId | StateId, tenant: str | None) -> int:
        """Return the number that ``tenant`` sees; None is an admin."""
        if tenant is None:
            return number
        text = f"{number}/{tenant}".encode()
        digest = blake2b(text, key=self._key, digest_size=_NUM_BYTES).digest()
        return int.from_bytes(digest, "big")

    def find(
        self, shown: int, tenant: str | None, candidates: Iterable[SessionId]
    ) -> SessionId | None:
        """Return the tenant's own session that has this number, if any."""
        return next((one for one in candidates if self.shown(one, tenant) == shown), None)

"""The sequence numbers that a tenant sees, which reveal nothing about other tenants.

Sequences are numbered in order over all tenants. The gaps in one tenant's numbers would reveal how
many sequences other tenants have started.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from hashlib import blake2b

from kvreg_service.core.ids import SequenceId

# Few enough bits for a JSON number, and too many to guess one.
_NUM_BYTES = 6


class TenantIds:
    """Keyed numbers, new in every process. An admin, who sees all tenants, gets the plain ones."""

    def __init__(self) -> None:
        self._key = os.urandom(16)

    def shown(self, sequence_id: SequenceId, tenant: str | None) -> int:
        """Return the number that ``tenant`` sees; None is an admin."""
        if tenant is None:
            return sequence_id
        text = f"{sequence_id}/{tenant}".encode()
        digest = blake2b(text, key=self._key, digest_size=_NUM_BYTES).digest()
        return int.from_bytes(digest, "big")

    def find(
        self, shown: int, tenant: str | None, candidates: Iterable[SequenceId]
    ) -> SequenceId | None:
        """Return the tenant's own sequence that has this number, if any."""
        return next((one for one in candidates if self.shown(one, tenant) == shown), None)

"""An immutable table from key digests to tenants. It does no I/O."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass

from kvreg_service.core.requests.identity import DEFAULT_TENANT
from kvreg_service.core.states.quota import Quota


@dataclass(frozen=True)
class Tenant:
    """A tenant. Without ``quota`` it uses the space that the quotas of others leave."""

    name: str
    quota: Quota | None = None
    is_admin: bool = False

    @property
    def view(self) -> str | None:
        """The tenant whose sequences it may see and change; None means those of all tenants."""
        return None if self.is_admin else self.name


# The tenant of every request while no keys are configured.
KEYLESS_TENANT = Tenant(DEFAULT_TENANT, is_admin=True)


def digest_of(key: str) -> bytes:
    """Return the SHA-256 digest of a key; keys themselves are never stored."""
    return hashlib.sha256(key.encode()).digest()


class Keyring:
    """The keys of all tenants. ``owners`` maps the digest of each key to its tenant's name."""

    def __init__(self, tenants: Mapping[str, Tenant], owners: Mapping[bytes, str]) -> None:
        self._tenants = dict(tenants)
        self._owners = dict(owners)

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._owners)

    @property
    def quotas(self) -> dict[str, Quota]:
        """The quota of every tenant that has one."""
        return {name: t.quota for name, t in self._tenants.items() if t.quota is not None}

    def find(self, key: str) -> Tenant | None:
        """Return the tenant of a key, or None, in constant time with respect to the key."""
        digest = digest_of(key)
        found: str | None = None
        for known, name in self._owners.items():
            if hmac.compare_digest(known, digest):
                found = name
        return None if found is None else self._tenants[found]

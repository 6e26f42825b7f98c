"""Salted hashes: how the request log names tenants, sessions and prefixes without telling them.

Owns the key. Equal things get equal names within one salt, and nobody without it can tell what they
are or check a guess.
"""

from __future__ import annotations

import hashlib
import secrets

HASH_BYTES = 8
"""Of n things, two get the same name with a chance of about n * n / 2 ** 65."""


class LogHashes:
    """Names things under one salt; without one, under a random salt that dies with the process."""

    def __init__(self, salt: str | None = None) -> None:
        secret = secrets.token_bytes(32) if salt is None else salt.encode()
        self._key = hashlib.blake2b(secret, digest_size=32, person=b"kvreg-log").digest()

    def tenant(self, tenant: str) -> str:
        """Name a tenant."""
        return self._hash(b"tenant", tenant.encode()).hex()

    def session(self, tenant: str, session: bytes) -> str:
        """Name a session. Sessions of two tenants never share a name, however alike they begin."""
        return self._hash(b"session", session + tenant.encode()).hex()

    def page(self, digest: bytes) -> bytes:
        """Name a prefix of whole pages by its ledger digest."""
        return self._hash(b"page", digest)

    def mark(self, digest: bytes, tail: bytes) -> bytes:
        """Name a prefix that ends inside a page: the digest before it and the tokens behind."""
        return self._hash(b"mark", digest + tail)

    def _hash(self, kind: bytes, data: bytes) -> bytes:
        return hashlib.blake2b(data, key=self._key, person=kind, digest_size=HASH_BYTES).digest()

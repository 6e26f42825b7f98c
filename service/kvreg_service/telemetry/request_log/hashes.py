"""Salted hashes for tenants, sessions and prefixes in the request log.

Owns the key. Within one salt, equal inputs have equal hashes; without the salt, a hash can neither
be reversed nor compared with a guess.
"""

from __future__ import annotations

import hashlib
import secrets

HASH_BYTES = 8
"""The probability of a collision among n inputs is about n * n / 2 ** 65."""


class LogHashes:
    """Hashes with one salt; without one, with a random salt for the lifetime of the process."""

    def __init__(self, salt: str | None = None) -> None:
        secret = secrets.token_bytes(32) if salt is None else salt.encode()
        self._key = hashlib.blake2b(secret, digest_size=32, person=b"kvreg-log").digest()

    def tenant(self, tenant: str) -> str:
        """Return the hash of a tenant."""
        return self._hash(b"tenant", tenant.encode()).hex()

    def session(self, tenant: str, session: bytes) -> str:
        """Return the hash of a session. Equal sessions of two tenants have different hashes."""
        return self._hash(b"session", session + tenant.encode()).hex()

    def page(self, digest: bytes) -> bytes:
        """Return the hash of a prefix of whole pages, given its ledger digest."""
        return self._hash(b"page", digest)

    def mark(self, digest: bytes, tail: bytes) -> bytes:
        """Return the hash of a prefix that ends inside a page.

        ``digest`` is the ledger digest of its whole pages, ``tail`` the tokens after them.
        """
        return self._hash(b"mark", digest + tail)

    def _hash(self, kind: bytes, data: bytes) -> bytes:
        return hashlib.blake2b(data, key=self._key, person=kind, digest_size=HASH_BYTES).digest()

"""What must be equal before a kept sequence may serve a prompt, besides the tokens themselves."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields

DEFAULT_TENANT = "default"
"""Whose everything is on a server without keys."""


@dataclass(frozen=True)
class Epoch:
    """The model as far as a state depends on it. Any difference makes every kept state unusable."""

    weights_digest: str
    tokenizer_digest: str
    template_digest: str
    kv_dtype: str
    rope: str
    speculative: str
    tensor_parallel: int

    def digest(self) -> bytes:
        """Return 16 bytes that change with any field."""
        text = "\n".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))
        return hashlib.blake2b(text.encode(), digest_size=16).digest()


@dataclass(frozen=True)
class Identity:
    """Who may share: one model epoch and one tenant. It seeds the digest chain of every ledger."""

    epoch: bytes
    tenant: str

    def root_digest(self) -> bytes:
        """Return the digest of the empty prefix."""
        return hashlib.blake2b(self.tenant.encode(), key=self.epoch, digest_size=16).digest()

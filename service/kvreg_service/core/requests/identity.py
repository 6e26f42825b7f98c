"""What must match, besides the tokens, before a prompt may reuse a kept sequence."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields

DEFAULT_TENANT = "default"
"""The tenant of all requests on a server without API keys."""


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
    """One model epoch and one tenant: the scope of reuse. Seeds the digest chain of each ledger."""

    epoch: bytes
    tenant: str

    def root_digest(self) -> bytes:
        """Return the digest of the empty prefix."""
        return hashlib.blake2b(self.tenant.encode(), key=self.epoch, digest_size=16).digest()

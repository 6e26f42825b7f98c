"""The active keyring, and its replacement when the key file changes while the engine runs.

Owns reading the configured document and passing its quotas to the engine. ``key_document``
validates a document; the API answers callers without a valid key.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from pydantic import SecretStr

from kvreg_service.core.errors import ConfigurationError
from kvreg_service.core.states.quota import Quota
from kvreg_service.tenants.key_document import DocumentForm, parse_keyring
from kvreg_service.tenants.keyring import KEYLESS_TENANT, Keyring, Tenant

_logger = logging.getLogger(__name__)

# A revoked key works for at most this much longer.
POLL_INTERVAL_S = 1.0
# Thousands of keys.
_MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True)
class KeySource:
    """Where keys are configured: in a file, as JSON text, or nowhere if both are None."""

    file: Path | None = None
    text: SecretStr | None = None

    @property
    def is_configured(self) -> bool:
        """Whether callers need a key."""
        return self.file is not None or self.text is not None

    def read(self) -> bytes:
        """Return the current document.

        Raises:
            ConfigurationError: The file cannot be read.
        """
        if self.file is None:
            return b"" if self.text is None else self.text.get_secret_value().encode()
        try:
            # Opening a pipe would block until a writer opens it.
            if not self.file.is_file():
                what = "is not a regular file" if self.file.exists() else "there is no such file"
                raise ConfigurationError(f"{self._origin}: {what}")
            with self.file.open("rb") as file:
                raw = file.read(_MAX_FILE_BYTES + 1)
        except OSError as err:
            raise ConfigurationError(f"{self._origin}: cannot be read: {err.strerror}") from err
        if len(raw) > _MAX_FILE_BYTES:
            raise ConfigurationError(
                f"{self._origin}: is larger than the limit of {_MAX_FILE_BYTES} bytes"
            )
        return raw

    def parse(self, raw: bytes) -> Keyring:
        """Parse the document.

        Raises:
            ConfigurationError: The document is invalid; the message lists every problem.
        """
        form = "json" if self.file is None else self.file.suffix.removeprefix(".")
        return parse_keyring(raw, cast(DocumentForm, form), self._origin)

    def require_valid(self) -> None:
        """Check that the document can be used.

        Raises:
            ConfigurationError: It cannot be read or is invalid; the message lists every problem.
        """
        if self.is_configured:
            self.parse(self.read())

    @property
    def _origin(self) -> str:
        return "api_keys" if self.file is None else f"api_keys_file = {self.file}"


class TenantDirectory:
    """Looks up the tenant of a key in the newest valid document. Not thread-safe.

    The file is checked when a key is looked up, at most every ``POLL_INTERVAL_S``. A change is
    detected by content, not by modification time: a mounted file changes by swapping a symbolic
    link.

    Raises:
        ConfigurationError: The document is invalid, or the engine rejects its quotas.
    """

    def __init__(
        self,
        source: KeySource,
        set_quotas: Callable[[Mapping[str, Quota]], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._set_quotas = set_quotas
        self._now_s = now_s
        self._seen: bytes | None = None
        self._keyring = Keyring({}, {})
        self._next_check_s = now_s() + POLL_INTERVAL_S
        if source.is_configured:
            self._take(source.read())

    @property
    def needs_keys(self) -> bool:
        """Whether callers need a key. Without configured keys, all are the default tenant."""
        return self._source.is_configured

    def find(self, key: str) -> Tenant | None:
        """Return the tenant of a key, or None.

        Effects:
            Replaces the keyring and the quotas of the engine if the file has changed. If the
            changed file is invalid, its problems are logged and the previous keys stay active.
        """
        if not self.needs_keys:
            return KEYLESS_TENANT
        self._reload_if_changed()
        return self._keyring.find(key)

    def _reload_if_changed(self) -> None:
        if self._source.file is None or self._now_s() < self._next_check_s:
            return
        self._next_check_s = self._now_s() + POLL_INTERVAL_S
        try:
            raw = self._source.read()
        except ConfigurationError as err:
            self._report_once(err, err.message.encode())
            return
        if _digest(raw) == self._seen:
            return
        try:
            self._take(raw)
        except ConfigurationError as err:
            self._report_once(err, raw)
            return
        fields = {"num_keys": len(self._keyring)}
        _logger.info("the API keys were reloaded", extra=fields)

    def _take(self, raw: bytes) -> None:
        keyring = self._source.parse(raw)
        self._set_quotas(keyring.quotas)
        self._keyring = keyring
        self._seen = _digest(raw)
        if not len(keyring):
            _logger.warning("the configured document has no keys: every request is rejected")

    def _report_once(self, error: ConfigurationError, cause: bytes) -> None:
        """Log a problem once, not at every check."""
        if _digest(cause) != self._seen:
            self._seen = _digest(cause)
            _logger.error("the changed API keys are invalid and not used: %s", error.message)


def _digest(raw: bytes) -> bytes:
    return hashlib.sha256(raw).digest()

"""The keyring that is in force now, and how a changed file replaces it while the engine runs.

Owns reading the configured document and telling the engine the quotas in it. What a document may
hold is decided in ``key_document``; what a caller without a key is told, by the API.
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
from kvreg_service.core.quota import Quota
from kvreg_service.tenants.key_document import DocumentForm, parse_keyring
from kvreg_service.tenants.keyring import KEYLESS_TENANT, Keyring, Tenant

_logger = logging.getLogger(__name__)

# A key that is taken away works at most this much longer.
POLL_INTERVAL_S = 1.0
# Thousands of keys.
_MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True)
class KeySource:
    """Where keys are configured: in a file, as a JSON text, or (when both are None) nowhere."""

    file: Path | None = None
    text: SecretStr | None = None

    @property
    def is_configured(self) -> bool:
        """Whether callers need a key."""
        return self.file is not None or self.text is not None

    def read(self) -> bytes:
        """Return the document as it is now.

        Raises:
            ConfigurationError: The file cannot be read.
        """
        if self.file is None:
            return b"" if self.text is None else self.text.get_secret_value().encode()
        try:
            # Opening a pipe would wait for its writer.
            if not self.file.is_file():
                what = "is no regular file" if self.file.exists() else "there is no such file"
                raise ConfigurationError(f"{self._origin}: {what}")
            with self.file.open("rb") as file:
                raw = file.read(_MAX_FILE_BYTES + 1)
        except OSError as err:
            raise ConfigurationError(f"{self._origin}: cannot be read: {err.strerror}") from err
        if len(raw) > _MAX_FILE_BYTES:
            raise ConfigurationError(
                f"{self._origin}: has more than the {_MAX_FILE_BYTES} bytes that are read"
            )
        return raw

    def parse(self, raw: bytes) -> Keyring:
        """Turn the document into a keyring.

        Raises:
            ConfigurationError: The document is invalid; the message lists every problem.
        """
        form = "json" if self.file is None else self.file.suffix.removeprefix(".")
        return parse_keyring(raw, cast(DocumentForm, form), self._origin)

    def require_valid(self) -> None:
        """Refuse a document that could not be used.

        Raises:
            ConfigurationError: It cannot be read or is invalid; the message lists every problem.
        """
        if self.is_configured:
            self.parse(self.read())

    @property
    def _origin(self) -> str:
        return "api_keys" if self.file is None else f"api_keys_file = {self.file}"


class TenantDirectory:
    """Tells whose a key is, by the newest valid document. Not safe across threads.

    The file is looked at when a key is, at most every ``POLL_INTERVAL_S``. Its content decides and
    not its times: a mounted file changes by swapping a symbolic link.

    Raises:
        ConfigurationError: The document is invalid, or the engine refuses its quotas.
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
        self._next_look_s = now_s() + POLL_INTERVAL_S
        if source.is_configured:
            self._take(source.read())

    @property
    def needs_keys(self) -> bool:
        """Whether callers need a key. Without any configured, everybody is the default tenant."""
        return self._source.is_configured

    def find(self, key: str) -> Tenant | None:
        """Return whose key it is now.

        Effects: replaces the keyring, and the quotas of the engine, when the file has changed. What
        is wrong with a changed file is logged, and the keys before it stay in force.
        """
        if not self.needs_keys:
            return KEYLESS_TENANT
        self._look_again()
        return self._keyring.find(key)

    def _look_again(self) -> None:
        if self._source.file is None or self._now_s() < self._next_look_s:
            return
        self._next_look_s = self._now_s() + POLL_INTERVAL_S
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
        _logger.info("the API keys were read anew", extra={"fields": fields})

    def _take(self, raw: bytes) -> None:
        keyring = self._source.parse(raw)
        self._set_quotas(keyring.quotas)
        self._keyring = keyring
        self._seen = _digest(raw)
        if not len(keyring):
            _logger.warning("the configured document has no keys: every request is refused")

    def _report_once(self, error: ConfigurationError, cause: bytes) -> None:
        """Log what is wrong, once and not with every look, and remember what it was."""
        if _digest(cause) != self._seen:
            self._seen = _digest(cause)
            _logger.error("the changed API keys are not used: %s", error.message)


def _digest(raw: bytes) -> bytes:
    return hashlib.sha256(raw).digest()

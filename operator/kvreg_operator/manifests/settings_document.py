"""The settings file that a profile renders to, and the hash that names it.

Owns the translation from the fields of the resource to the settings of the engine.

A new version of the operator must give an old profile the same hash, or its upgrade would restart
every engine. So only what the spec says is rendered: a later optional field is left out while it
is not set, and the operator adds no defaults of its own.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

# 64 bits: far more than the few profiles of one target need.
_HASH_LENGTH = 16

SettingValue = str | int


@dataclass(frozen=True)
class SettingsDocument:
    """The settings of one profile, and its ``restartId``.

    ``hash`` covers both: pods with another hash are replaced.
    """

    settings: tuple[tuple[str, SettingValue], ...]
    restart_id: str | None

    @property
    def text(self) -> str:
        """The file as the engine reads it."""
        return _canonical(dict(self.settings))

    @property
    def hash(self) -> str:
        """A digest of everything for which a pod must be replaced; the same in every process."""
        content: dict[str, object] = {"settings": dict(self.settings)}
        if self.restart_id is not None:
            content["restartId"] = self.restart_id
        return hashlib.sha256(_canonical(content).encode()).hexdigest()[:_HASH_LENGTH]


def build_settings_document(
    *,
    profile: str,
    lanes: int,
    registry_entries: int,
    current_state: str,
    anchors: int | None,
    restart_id: str | None,
) -> SettingsDocument:
    """Translate the spec of the profile with that name."""
    settings: dict[str, SettingValue] = {
        "profile": profile,
        "lanes": lanes,
        "entries": registry_entries,
        "current_state": current_state.lower(),
    }
    if anchors is not None:
        settings["anchors"] = anchors
    return SettingsDocument(tuple(sorted(settings.items())), restart_id)


def _canonical(content: dict[str, object] | dict[str, SettingValue]) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)

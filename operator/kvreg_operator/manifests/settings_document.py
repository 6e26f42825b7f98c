"""The file of settings that a profile becomes, and the hash that names it.

Owns the translation from the words of the resource to those of the engine. Which file is mounted
where is in ``rendering``.

A new version of the operator must give an old profile the same hash, or upgrading it would restart
every engine. So only what the spec says is rendered: a later optional field is left out while it
is not set, and no default of the operator's own enters.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from kvreg_operator.crd.profile import ProfileSpec

# Forty bits more than what tells apart the few profiles that one target ever has.
_HASH_LENGTH = 16

SettingValue = str | int


@dataclass(frozen=True)
class SettingsDocument:
    """The settings of one profile, and the text that asked for a restart.

    ``hash`` covers both: another hash means other pods.
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


def build_settings_document(name: str, spec: ProfileSpec) -> SettingsDocument:
    """Translate the spec of the profile ``name``."""
    settings: dict[str, SettingValue] = {
        "profile": name,
        "lanes": spec.lanes,
        "entries": spec.registry_entries,
        "current_state": spec.current_state.lower(),
    }
    if spec.anchors is not None:
        settings["anchors"] = spec.anchors
    return SettingsDocument(tuple(sorted(settings.items())), spec.restart_id)


def _canonical(content: dict[str, object] | dict[str, SettingValue]) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)

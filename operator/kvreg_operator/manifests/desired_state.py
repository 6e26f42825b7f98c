"""The desired state of a target: all objects that a profile renders to.

Owns the translation of one profile. ``plan`` decides which of the objects are written, and when.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvreg_operator.crd.profile import KVRegistryProfile
from kvreg_operator.manifests.config_map import build_config_map
from kvreg_operator.manifests.fit_job import build_fit_job
from kvreg_operator.manifests.ownership import Manifest
from kvreg_operator.manifests.settings_document import SettingsDocument, build_settings_document
from kvreg_operator.manifests.stateful_set import build_strategy_patch, build_template_patch


@dataclass(frozen=True)
class DesiredState:
    """The objects of one profile and one target. ``fit_job`` computes whether the profile fits."""

    settings_hash: str
    config_map: Manifest
    template_patch: Manifest
    strategy_patch: Manifest
    fit_job: Manifest

    @property
    def config_map_name(self) -> str:
        """The ConfigMap that every pod should mount."""
        name: str = self.config_map["metadata"]["name"]
        return name

    @property
    def fit_job_name(self) -> str:
        """The Job whose answer counts for this profile."""
        name: str = self.fit_job["metadata"]["name"]
        return name


def render_settings(profile: KVRegistryProfile) -> SettingsDocument:
    """Render the settings of a profile, which do not depend on its target."""
    spec = profile.spec
    return build_settings_document(
        profile=profile.metadata.name,
        lanes=spec.lanes,
        registry_entries=spec.registry_entries,
        current_state=spec.current_state,
        anchors=spec.anchors,
        restart_id=spec.restart_id,
    )


def build_desired_state(
    profile: KVRegistryProfile, *, target_uid: str, template: Manifest, claims: tuple[str, ...]
) -> DesiredState:
    """Render a profile for the StatefulSet with that uid, pod template and volume claims."""
    document = render_settings(profile)
    namespace, ref = profile.metadata.namespace, profile.spec.target_ref
    return DesiredState(
        settings_hash=document.hash,
        config_map=build_config_map(
            namespace=namespace, target_name=ref.name, target_uid=target_uid, document=document
        ),
        template_patch=build_template_patch(
            namespace=namespace,
            target_name=ref.name,
            container=ref.container,
            settings_hash=document.hash,
        ),
        strategy_patch=build_strategy_patch(),
        fit_job=build_fit_job(
            namespace=namespace,
            target_name=ref.name,
            target_uid=target_uid,
            container=ref.container,
            template=template,
            claims=claims,
            document=document,
        ),
    )

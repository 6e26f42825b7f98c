"""The steps of a new user: install, apply a profile, chat, inspect the objects."""

from __future__ import annotations

import httpx
import openai
import pytest
from dashboards.operator_metrics import OPERATOR_METRICS
from prometheus_client.parser import text_string_to_metric_families
from tests.cluster.conftest import MakeRelease
from tests.cluster.harness.cluster import CommandFailed
from tests.cluster.harness.release import MODEL, PROFILES, Release


@pytest.fixture(scope="module")
def release(share_release: MakeRelease) -> Release:
    release = share_release()
    release.serve(registryEntries=3, anchors=1)
    return release


def test_session_survives_a_title_request(release: Release) -> None:
    client = release.client()

    def ask(*texts: str) -> openai.types.chat.ChatCompletion:
        roles = ("user", "assistant")
        messages = [{"role": roles[k % 2], "content": text} for k, text in enumerate(texts)]
        return client.chat.completions.create(model=MODEL, messages=messages, temperature=0)

    first = "My locker code is 4921. The deploy is on Thursday. Can you keep that in mind?"
    answer = ask(first).choices[0].message.content
    ask("Write a title for this conversation:\nUser: My locker code is 4921.")
    ask("Write a title for this conversation:\nUser: The deploy is on Thursday.")
    returned = ask(first, answer, "Please remind me: what is my locker code?")
    assert "4921" in returned.choices[0].message.content
    assert returned.usage.prompt_tokens_details.cached_tokens > 0
    assert returned.usage.model_extra["kvreg"]["attach"] == "registry"


def test_status_shows_the_served_profile_and_its_pods(release: Release) -> None:
    status = release.profile["status"]
    assert status["effective"] == {
        "lanes": 1,
        "registryEntries": 3,
        "currentState": "Keep",
        "anchors": 1,
        "maxContextTokens": 4096,
        "model": MODEL,
    }
    assert status["desiredHash"] == status["servingHash"]
    assert status["pods"] == {"total": 1, "updated": 1, "ready": 1, "busy": 0}


def test_kubectl_get_shows_a_profile_in_one_line(release: Release) -> None:
    head, line = release.kubectl("get", "kvrp").splitlines()
    shown = dict(zip(head.split(), line.split(), strict=False))
    assert shown["NAME"] == shown["TARGET"] == "kvreg"
    assert (shown["LANES"], shown["ENTRIES"], shown["CURRENT"]) == ("1", "3", "Keep")
    assert (shown["READY"], shown["REASON"]) == ("True", "Served")


def test_every_decision_has_a_kubernetes_event(release: Release) -> None:
    shown = release.kubectl("describe", PROFILES, release.name)
    for reason in ("SettingsWritten", "TemplatePatched", "Draining", "PodReplaced", "Served"):
        assert reason in shown


def test_operator_exposes_the_metrics_of_the_dashboards(release: Release) -> None:
    (operator,) = release.ready("operator")
    text = httpx.get(f"{release.pod_url(operator, 9090)}/metrics").text
    shown = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in text_string_to_metric_families(text)
    }
    assert set(OPERATOR_METRICS) <= shown


def test_settings_hash_is_the_only_pod_annotation(release: Release) -> None:
    (pod,) = release.pods().values()
    status = release.profile["status"]
    assert pod["metadata"]["annotations"] == {"kvreg.dev/settings-hash": status["servingHash"]}
    for item in (release.target, release.profile):
        ours = [key for key in item["metadata"].get("annotations", {}) if "kopf" in key]
        assert ours == []
        assert "finalizers" not in item["metadata"]


def test_engine_runs_as_non_root_on_a_read_only_root(release: Release) -> None:
    (name,) = release.ready()
    assert release.kubectl("exec", name, "--", "id", "-u").strip() == "10001"
    with pytest.raises(CommandFailed, match="Read-only file system"):
        release.kubectl("exec", name, "--", "touch", "/opt/kvreg/written")

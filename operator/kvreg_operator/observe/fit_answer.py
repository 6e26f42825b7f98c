"""The answer of a Job that computes whether a profile fits.

Owns how it is read from the Job and the termination message of its pod.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import TypeAdapter, ValidationError

from kvreg_operator.observe.containers import Manifest
from kvreg_operator.plan.observation import Fit, FitJob

JOB_NAME_LABEL = "batch.kubernetes.io/job-name"

_FIT = TypeAdapter(Fit)


def parse_fit_job(job: Manifest, pods: Iterable[Manifest]) -> FitJob:
    """Return what a Job has answered, or how it failed. ``pods`` may hold pods of other Jobs."""
    name = job["metadata"]["name"]
    ends = [end for pod in pods if _is_of(pod, name) and (end := _end_of(pod)) is not None]
    answer = next((each for end in ends if (each := _parse_answer(end)) is not None), None)
    conditions = (job.get("status") or {}).get("conditions") or []
    finished = [
        each
        for each in conditions
        if each["type"] in ("Complete", "Failed") and each["status"] == "True"
    ]
    failure = None
    if answer is None and finished:
        texts = [finished[0].get("reason"), *(end.get("message") for end in ends)]
        failure = ": ".join(" ".join(text.split())[:200] for text in texts if text) or "no answer"
    return FitJob(name, answer, failure)


def _is_of(pod: Manifest, job_name: str) -> bool:
    labels: dict[str, str] = pod["metadata"].get("labels") or {}
    return labels.get(JOB_NAME_LABEL) == job_name


def _end_of(pod: Manifest) -> Manifest | None:
    for status in (pod.get("status") or {}).get("containerStatuses") or []:
        end: Manifest | None = status.get("state", {}).get("terminated")
        if end is not None:
            return end
    return None


def _parse_answer(end: Manifest) -> Fit | None:
    """Return the answer, whatever the exit status: a profile that does not fit ends with 1."""
    try:
        return _FIT.validate_json(end.get("message") or "")
    except ValidationError:
        return None

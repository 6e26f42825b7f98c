"""The engines of one target, asked side by side.

Owns which pods are asked, how many at once, with which key, and what is logged of those that do not
answer: once per change, as a pod that loads for ten minutes is looked at every few seconds.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import httpx

from kvreg_operator.clients.engine import EngineClient
from kvreg_operator.clients.errors import OperatorError, PermanentError, TemporaryError
from kvreg_operator.crd.profile import KVRegistryProfile
from kvreg_operator.manifests.rendering import Manifest
from kvreg_operator.observe.reading import find_engine_url, has_started
from kvreg_operator.observe.targets import TargetKey
from kvreg_operator.plan.observation import EngineState

# Far more than one target has pods that are worth rolling one by one.
MAX_ASKED_AT_ONCE = 16
# For all engines of a target together; who has not answered by then is silent.
TIMEOUT_S = 20.0
RETRY_DELAY_S = 5.0
# As HTTP takes it in a header, and the engine in its file of keys.
_KEY = re.compile(r"[!-~]+")

_logger = logging.getLogger(__name__)


class EngineDirectory:
    """Finds engines by their pods. ``http`` is closed by its owner; the key's file is read anew."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        api_key_file: Path | None,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._http = http
        self._api_key_file = api_key_file
        self._timeout_s = timeout_s
        self._silent: dict[TargetKey, dict[str, str]] = {}

    async def ask(
        self, target: TargetKey, profile: KVRegistryProfile, pods: Iterable[Manifest]
    ) -> Mapping[str, EngineState]:
        """Return what the engines say, by the uid of the pod. Who does not answer is missing.

        A container that has not started is not asked, nor one that is on its way out.

        Raises:
            PermanentError: The key cannot be read.
        """
        container = profile.spec.target_ref.container
        client = self._client()
        asked = [
            pod
            for pod in pods
            if has_started(pod, container) and "deletionTimestamp" not in pod["metadata"]
        ]
        # Of each target its own: engines that answer slowly are no reason to keep others waiting.
        places = asyncio.Semaphore(MAX_ASKED_AT_ONCE)
        until_s = asyncio.get_running_loop().time() + self._timeout_s
        answers = await asyncio.gather(
            *(self._look(client, profile, pod, places, until_s) for pod in asked)
        )
        states, silent = {}, {}
        for pod, answer in zip(asked, answers, strict=True):
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            earlier = self._silent.get(target, {}).get(uid)
            if isinstance(answer, EngineState):
                states[uid] = answer
                if earlier is not None:
                    _logger.info("the engine of %s/%s answers again", target.namespace, name)
                continue
            silent[uid] = answer
            if answer != earlier:
                message = "the engine of %s/%s gives no answer: %s"
                _logger.warning(message, target.namespace, name, answer)
        self._silent[target] = silent
        return states

    def forget(self, target: TargetKey) -> None:
        """Forget a target that no profile names any more."""
        self._silent.pop(target, None)

    async def drain(self, pod: Manifest, container: str) -> None:
        """Ask the engine of a pod to take nothing new.

        Raises:
            TemporaryError: It has no address, or does not answer now.
            PermanentError: It refuses, or the key cannot be read.
        """
        await self._client().drain(_require_url(pod, container))

    async def _look(
        self,
        client: EngineClient,
        profile: KVRegistryProfile,
        pod: Manifest,
        places: asyncio.Semaphore,
        until_s: float,
    ) -> EngineState | str:
        try:
            async with asyncio.timeout_at(until_s), places:
                url = _require_url(pod, profile.spec.target_ref.container)
                return await client.look(url, profile.spec)
        except OperatorError as err:
            return str(err)
        except TimeoutError:
            return f"no answer within the {self._timeout_s:g} s that a look takes at most"

    def _client(self) -> EngineClient:
        if self._api_key_file is None:
            return EngineClient(self._http)
        return EngineClient(self._http, read_key(self._api_key_file))


def read_key(path: Path) -> str | None:
    """Return the key that a file holds, or None where it holds nothing.

    Raises:
        PermanentError: It cannot be read, or is no key. The message does not show it.
    """
    try:
        text = path.read_bytes().decode("ascii").strip()
    except OSError as err:
        raise PermanentError(f"the API key cannot be read: {path}: {err.strerror}") from None
    except UnicodeDecodeError:
        text = " "
    if text and _KEY.fullmatch(text) is None:
        wanted = "one line of printable ASCII without spaces"
        raise PermanentError(f"the API key cannot be read: {path} has to hold {wanted}")
    return text or None


def _require_url(pod: Manifest, container: str) -> str:
    url = find_engine_url(pod, container)
    if url is None:
        name = pod["metadata"]["name"]
        message = f"pod {name} has no address, or container {container} has no port named http"
        raise TemporaryError(message, delay_s=RETRY_DELAY_S)
    return url

"""Lists of the watched kinds in one namespace.

Owns which kinds are listed, and how the process starts when no namespace can be listed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from kvreg_operator.clients.api_server import PODS, PROFILES, STATEFUL_SETS, ClusterApi
from kvreg_operator.clients.errors import NotServed, OperatorError, PermanentError
from kvreg_operator.watch.event_sink import find_target

# A CRD that is installed together with the operator is served within this time.
CRD_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Listing:
    """The targets that the profiles of a namespace name, or why the lists failed."""

    target_names: frozenset[str] = frozenset()
    failure: str | None = None


class Lists:
    """Lists profiles, StatefulSets and pods."""

    def __init__(self, api: ClusterApi) -> None:
        self._api = api

    async def read(self, namespace: str) -> Listing:
        """List all watched kinds of a namespace; of StatefulSets and pods one object is enough."""
        names = set()
        try:
            async for manifest in self._api.each(PROFILES, namespace):
                if (target := find_target("KVRegistryProfile", manifest)) is not None:
                    names.add(target.name)
            for kind in (STATEFUL_SETS, PODS):
                await self._api.require_list(kind, namespace)
        except OperatorError as err:
            return Listing(failure=str(err))
        return Listing(frozenset(names))

    async def wait_for_crd(self, namespaces: Sequence[str]) -> None:
        """Wait until the profiles of any namespace can be listed.

        Kopf looks up the kinds that it watches once, when it starts.

        Raises:
            PermanentError: The CRD is not installed, or no namespace may be listed.
            TemporaryError: The API server did not answer in time.
        """
        deadline_s = time.monotonic() + CRD_TIMEOUT_S
        while True:
            failures: list[OperatorError] = []
            for namespace in namespaces:
                try:
                    await self._api.require_list(PROFILES, namespace)
                except OperatorError as err:
                    failures.append(err)
                else:
                    return
            if all(map(_is_for_good, failures)) or time.monotonic() > deadline_s:
                if isinstance(failures[-1], NotServed):
                    raise PermanentError(f"the CRD {PROFILES.full_name} is not installed")
                raise failures[-1]
            await asyncio.sleep(1.0)


def _is_for_good(err: OperatorError) -> bool:
    return isinstance(err, PermanentError) and not isinstance(err, NotServed)

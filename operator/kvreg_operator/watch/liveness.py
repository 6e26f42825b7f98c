"""Whether the watches still tell what happens, judged by lists of the same objects.

Owns the comparison. A quiet cluster tells nothing, so silence alone says nothing: a watch is deaf
when a list showed a version of an object that neither it nor a newer one was told of in time. A
watch that was cut off for too long begins anew with a listing of its own, and never tells of what
has ended in between: nothing is owed of that.
Pure but for the clock it is given; who watches and who lists is not its business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvreg_operator.reconcile.metrics import WatchKind


@dataclass(frozen=True)
class WatchedObject:
    """One object that a watch should tell of."""

    kind: WatchKind
    namespace: str
    uid: str


@dataclass(frozen=True)
class _Told:
    """What was told of an object last: its version, and in which listing of the watch's own."""

    version: str
    listing: int


@dataclass(frozen=True)
class _Debt:
    """What a list showed first and a watch has not told: a version, or that the object is gone."""

    version: str | None
    since_s: float


class Hearing:
    """What was told, and what is still owed. ``clock`` returns monotonic seconds.

    Deaf is also an operator whose lists have all failed for ``silent_after_s``.
    """

    def __init__(
        self, clock: Callable[[], float], *, deaf_after_s: float, silent_after_s: float
    ) -> None:
        self._clock = clock
        self._deaf_after_s = deaf_after_s
        self._silent_after_s = silent_after_s
        self._told: dict[WatchedObject, _Told] = {}
        self._listings: dict[tuple[WatchKind, str], int] = {}
        self._owed: dict[WatchedObject, _Debt] = {}
        self._listed_s = clock()

    def told(self, it: WatchedObject, version: str, *, by_listing: bool = False) -> None:
        """Note that a watch told of an object in this version.

        ``by_listing`` says that it did so because it began, and not because anything happened.
        """
        kind, earlier = (it.kind, it.namespace), self._told.get(it)
        listing = self._listings.setdefault(kind, 0)
        if by_listing and earlier is not None and earlier.listing == listing:
            # Each listing tells of an object once: this is another one.
            listing = self._listings[kind] = listing + 1
        self._told[it] = _Told(version, listing)
        debt = self._owed.get(it)
        if debt is not None and debt.version is not None and _covers(version, debt.version):
            del self._owed[it]

    def told_gone(self, it: WatchedObject) -> None:
        """Note that a watch told of the end of an object."""
        self._told.pop(it, None)
        self._owed.pop(it, None)

    def listed(self, kind: WatchKind, namespace: str, versions: Mapping[str, str]) -> bool:
        """Compare a list, version by uid, with what was told; return whether nothing is owed."""
        now_s = self._clock()
        shown = {WatchedObject(kind, namespace, uid): v for uid, v in versions.items()}
        listing = self._listings.get((kind, namespace), 0)
        known = {it for it in self._told if (it.kind, it.namespace) == (kind, namespace)}
        for it in [it for it in known - shown.keys() if self._told[it].listing != listing]:
            known.remove(it)
            del self._told[it]
        owed: dict[WatchedObject, _Debt] = {}
        for it in shown.keys() | known:
            version, told = shown.get(it), self._told.get(it)
            if (
                version is not None
                and told is not None
                and _is_same_or_newer(told.version, version)
            ):
                continue
            owed[it] = _Debt(version, now_s)
        for it in [it for it in self._owed if (it.kind, it.namespace) == (kind, namespace)]:
            earlier = self._owed.pop(it)
            # An object that changes all the time owes its oldest untold version, not its newest.
            if it in owed and (earlier.version is None) == (owed[it].version is None):
                owed[it] = earlier
        self._owed |= owed
        return not owed

    def listed_anything(self) -> None:
        """Note that all lists of one namespace, at least, have succeeded."""
        self._listed_s = self._clock()

    def forget(self, namespace: str) -> None:
        """Forget what was told and is owed of a namespace that nobody listens to any more."""
        self._told = {it: told for it, told in self._told.items() if it.namespace != namespace}
        self._owed = {it: debt for it, debt in self._owed.items() if it.namespace != namespace}

    def find_deafness(self) -> str | None:
        """Return what the operator does not hear any more, as a sentence, or None."""
        now_s = self._clock()
        silent_s = now_s - self._listed_s
        if silent_s > self._silent_after_s:
            return f"no complete list of the cluster has succeeded for {silent_s:.0f} s"
        for it, debt in self._owed.items():
            late_s = now_s - debt.since_s
            if late_s > self._deaf_after_s:
                what = "the end" if debt.version is None else f"version {debt.version}"
                return (
                    f"the watch of {it.kind} in {it.namespace} has not told {what} of the object "
                    f"{it.uid}, which a list showed {late_s:.0f} s ago"
                )
        return None


def _is_same_or_newer(told: str, listed: str) -> bool:
    """Say whether nothing is owed; versions that are no numbers can only be equal."""
    if told.isdecimal() and listed.isdecimal():
        return int(told) >= int(listed)
    return told == listed


def _covers(told: str, owed: str) -> bool:
    """Say whether a version that was told later pays a debt; without order, any later one does."""
    if told.isdecimal() and owed.isdecimal():
        return int(told) >= int(owed)
    return True

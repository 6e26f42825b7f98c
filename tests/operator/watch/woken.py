"""A queue that records its wakes."""

from __future__ import annotations

from kvreg_operator.reconcile.target_queue import TargetKey, TargetQueue


class WokenQueue(TargetQueue):
    """Records which targets were woken, in order."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)
        self.targets: list[TargetKey] = []

    def wake(self, target: TargetKey, delay_s: float = 0.0) -> None:
        self.targets.append(target)
        super().wake(target, delay_s)

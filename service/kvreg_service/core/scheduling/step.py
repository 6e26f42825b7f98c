"""The plan of one step, state moves and then tokens to compute, and its result."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvreg_service.core.errors import KvregError
from kvreg_service.core.ids import LaneId, PageId, RequestId, SessionId, SlotId
from kvreg_service.core.memory.pages import PageCopy
from kvreg_service.core.requests.sampling_params import SamplingParams, TokenLogprobs


@dataclass(frozen=True)
class SlotCopy:
    """The state in ``src`` is copied to ``dst``."""

    src: SlotId
    dst: SlotId


StateMove = SlotCopy | PageCopy


@dataclass(frozen=True)
class LanePreparation:
    """The moves that prepare the lane of one request, in order."""

    request_id: RequestId
    moves: tuple[StateMove, ...]


@dataclass(frozen=True)
class Work:
    """Tokens of one request to compute in this step. Prefill and decode differ in the count only.

    ``token_ids`` start at position ``start``. ``samples`` says that the last of them is the last
    known token, so the next one is sampled from its logits. ``capture_to`` is the slot that the
    state is copied to afterwards.
    """

    request_id: RequestId
    session_id: SessionId
    lane: LaneId
    slot: SlotId
    start: int
    token_ids: tuple[int, ...]
    pages: tuple[PageId, ...]
    samples: bool
    capture_to: SlotId | None
    sampling: SamplingParams

    @property
    def is_decode(self) -> bool:
        """True if this is one token after a known state, so that it can join the batch.

        The batch samples a token for each of its rows, which a chunk of one token may not need.
        """
        is_one = self.samples and len(self.token_ids) == 1
        return is_one and self.start > 0 and self.capture_to is None

    @property
    def end(self) -> int:
        """The frontier after this work."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True)
class StepPlan:
    """One step, in the order of its execution.

    At most one request gets a lane in a step, so that moves which fail concern only what that
    request touched.
    """

    preparation: LanePreparation | None = None
    work: tuple[Work, ...] = ()

    @property
    def has_prefill(self) -> bool:
        """True when it may take much longer than a decode step."""
        return any(not work.is_decode for work in self.work)

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to execute."""
        return self.preparation is None and not self.work


@dataclass
class StepResult:
    """What the runner reports: a planned request is in ``sampled``, in ``failed`` or in neither.

    ``logprobs`` are those of requests that want them. ``stopped`` has the requests whose sampled
    token completed a stop string. ``is_prepared`` says that every move of the preparation was
    executed, so that a failure of its request is one of its work; without it the moves count as
    failed as well. ``prepare_s`` is how long they took, in seconds.
    """

    sampled: dict[RequestId, int] = field(default_factory=dict)
    logprobs: dict[RequestId, TokenLogprobs] = field(default_factory=dict)
    stopped: set[RequestId] = field(default_factory=set)
    failed: dict[RequestId, KvregError] = field(default_factory=dict)
    is_prepared: bool = False
    prepare_s: float = 0.0

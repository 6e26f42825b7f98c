"""Measures the state moves of an admission: detach, attach, exchange, fork.

The registry plans the moves and the engine's runner executes them; no model runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from bench_run import BenchFailed, BenchRun
from report import Section, Table
from samples import Samples
from torch import Tensor

from kvreg_service.core.requests.identity import Identity
from kvreg_service.core.ids import EntryId, LaneId, PageId, RequestId, SequenceId
from kvreg_service.core.labels import CheckpointKind
from kvreg_service.core.requests.ledger import TokenLedger
from kvreg_service.core.memory.pages import PageCopy
from kvreg_service.core.registry import Registry
from kvreg_service.core.sequence import Checkpoint, Sequence
from kvreg_service.core.memory.slots import SlotLayout
from kvreg_service.core.scheduling.step import LanePreparation, SlotCopy, SlotSwap, StateMove, StepPlan
from kvreg_service.engine.loop.runner import ModelRunner
from kvreg_service.model.cache import KVPages, StateSlots
from kvreg_service.model.config import ModelConfig
from kvreg_service.model.hybrid import HybridModel
from kvreg_service.reference_model import REFERENCE_MODEL_PATH

_LAYOUT = SlotLayout(lanes=1, entries=2)
_NUM_PAGES = 64
_FORK_PAGES = 2
_CALLS_PER_ROUND = 20

_METHOD = f"""\
One lane, two entries, current kept; the sequence has a checkpoint. *Moved* counts each state and
page once, and a swap as two. *Of a plain copy* compares the rate with one contiguous copy of as
many bytes on the same thread. A fork copies both states and {_FORK_PAGES} pages. The 27B shape is
the half of one of two cards (48 layers of 24 heads 128 x 128, fp32, and 5,120 x 3 of convolution,
fp16), in main memory."""


@dataclass(frozen=True)
class _Memory:
    name: str
    states: StateSlots
    pages: KVPages


def run(bench: BenchRun) -> Section:
    """Measure every kind of move on states of the reference model and of the 27B shape."""
    memories = (_reference_memory(), _large_memory())
    kinds = _kinds()
    task = bench.progress.add_task("attach", total=len(memories) * len(kinds))
    rows = []
    data = {}
    for memory in memories:
        runner = ModelRunner(cast(HybridModel, None), memory.states, memory.pages, 0)
        for kind, build_moves in kinds.items():
            plan = StepPlan(LanePreparation(RequestId("bench"), tuple(build_moves())))
            num_bytes = _moved_bytes(plan, memory)
            buffer = torch.zeros(2, num_bytes // 4)
            moves_s, copies_s = [], []
            for _ in range(bench.rounds * _CALLS_PER_ROUND):
                moves_s.append(_execute(runner, plan))
                copies_s.append(_plain_copy(buffer))
            moved, copied = Samples.of(moves_s), Samples.of(copies_s)
            rows.append(
                (
                    f"{memory.name}, {kind}",
                    f"{num_bytes:,}",
                    moved.text(scale=1e6),
                    f"{num_bytes / moved.median / 1e9:.1f}",
                    f"{copied.median / moved.median:.0%}",
                )
            )
            data[f"{memory.name} {kind}"] = {
                "moved_bytes": num_bytes,
                "move_s": moved.as_json(),
                "plain_copy_s": copied.as_json(),
            }
            bench.progress.advance(task)
    columns = ("", "moved, bytes", "time, us", "GB/s", "of a plain copy")
    return Section("attach", _METHOD, [Table("Moving sequences", columns, rows)], data)


def _kinds() -> dict[str, Callable[[], list[StateMove]]]:
    lane, entry, other = LaneId(0), EntryId(0), EntryId(1)

    def kept() -> Registry:
        registry = Registry(_LAYOUT)
        registry.detach(_sequence(1), lane, entry)
        return registry

    def fork() -> list[StateMove]:
        pages = range(_FORK_PAGES)
        copies = [PageCopy(PageId(page), PageId(page + _NUM_PAGES // 2)) for page in pages]
        moves = Registry(_LAYOUT).fork(_sequence(1), other, from_lane=lane, from_entry=None)
        return [*copies, *moves]

    return {
        "detach": lambda: Registry(_LAYOUT).detach(_sequence(1), lane, entry),
        "attach at the frontier": lambda: kept().attach(entry, lane, at_checkpoint=False),
        "attach at the checkpoint": lambda: kept().attach(entry, lane, at_checkpoint=True),
        "exchange at the frontier": lambda: kept().exchange(
            entry, lane, _sequence(2), at_checkpoint=False
        ),
        "exchange at the checkpoint": lambda: kept().exchange(
            entry, lane, _sequence(2), at_checkpoint=True
        ),
        "fork": fork,
    }


def _sequence(number: int) -> Sequence:
    return Sequence(
        sequence_id=SequenceId(number),
        ledger=TokenLedger(Identity(b"bench", "default")),
        created_s=0.0,
        last_used_s=0.0,
        frontier=128,
        checkpoint=Checkpoint(64, CheckpointKind.TURN),
    )


def _reference_memory() -> _Memory:
    config = ModelConfig.from_path(REFERENCE_MODEL_PATH)
    device = torch.device("cpu")
    states = StateSlots.allocate(config, _LAYOUT.num_slots, torch.float32, device)
    pages = KVPages.allocate(config, _NUM_PAGES, torch.float32, device)
    for tensor in (states.conv, states.recurrent, pages.kv):
        tensor.zero_()
    return _Memory("reference model", states, pages)


def _large_memory() -> _Memory:
    slots = _LAYOUT.num_slots
    conv = torch.zeros(48, slots, 3, 5120, dtype=torch.float16)
    recurrent = torch.zeros(48, slots, 24, 128, 128)
    # 16 attention layers, 2 of 4 KV heads of size 256 on each card, int8 with a scale per 64.
    pages = torch.zeros(16, 4, _NUM_PAGES * 64, 264, dtype=torch.int8)
    return _Memory("27B shape", StateSlots(conv, recurrent), KVPages(pages))


def _moved_bytes(plan: StepPlan, memory: _Memory) -> int:
    assert plan.preparation is not None, "every plan of this bench has a preparation"
    total = 0
    for move in plan.preparation.moves:
        match move:
            case SlotCopy():
                total += memory.states.slot_bytes
            case SlotSwap():
                total += 2 * memory.states.slot_bytes
            case PageCopy():
                total += memory.pages.page_bytes
    return total


def _execute(runner: ModelRunner, plan: StepPlan) -> float:
    result = runner.execute(plan)
    if result.failed:
        raise BenchFailed(f"a move failed: {result.failed}")
    return result.prepare_s


def _plain_copy(buffer: Tensor) -> float:
    start_s = time.perf_counter()
    buffer[1].copy_(buffer[0])
    return time.perf_counter() - start_s

"""Data-parallel training in several processes: their start, and the exchange at each step.

Owns the process group. One process per core is faster than threads, because the matrices are small.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

_MAX_GRADIENT_NORM = 1.0
# glibc then keeps freed memory: otherwise steps of different lengths map and clear the same memory
# again and again. Read when a process starts, so the ranks inherit it.
_ALLOCATOR_ENVIRONMENT = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "20000000000",
    "MALLOC_TOP_PAD_": "268435456",
}


class Ranks:
    """The rank of this process. With one rank every method is local."""

    def __init__(self, rank: int, num_ranks: int) -> None:
        self.rank = rank
        self.num_ranks = num_ranks

    @property
    def is_first(self) -> bool:
        """True for the rank that prints and writes files."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> None:
        """Replaces ``tensor`` by its sum over the ranks."""
        if self.num_ranks > 1:
            dist.all_reduce(tensor)

    def agree(self, value: float) -> float:
        """Returns the ``value`` of the first rank, so that all take the same decision."""
        if self.num_ranks == 1:
            return value
        shared = torch.tensor([value], dtype=torch.float64)
        dist.broadcast(shared, 0)
        return shared.item()


class GradientSum:
    """Gradients and statistics of all ranks, summed in one message per step."""

    def __init__(self, parameters: Iterable[nn.Parameter], ranks: Ranks) -> None:
        self._parameters = list(parameters)
        self._ranks = ranks
        self._sizes = [parameter.numel() for parameter in self._parameters]

    def reduce(self, weight: float, *statistics: float) -> list[float]:
        """Divides the gradients by the weight of all ranks and clips them to norm 1.

        Effects:
            The ``grad`` of every parameter is overwritten.

        Returns:
            The sums over the ranks of ``weight`` and of each of ``statistics``.
        """
        grads = [_grad(parameter).reshape(-1) for parameter in self._parameters]
        extra = torch.tensor([weight, *statistics])
        message = torch.cat([*grads, extra])
        self._ranks.sum(message)
        mean, sums = torch.split(message, [sum(self._sizes), len(extra)])
        mean = mean / sums[0]
        mean = mean / mean.norm().clamp(min=_MAX_GRADIENT_NORM)
        for parameter, part in zip(self._parameters, torch.split(mean, self._sizes), strict=True):
            parameter.grad = part.view_as(parameter)
        return [float(value) for value in sums]


def _grad(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None, "every trained parameter takes part in the loss"
    return parameter.grad


def run_ranks(function: Callable[[Ranks], None], num_ranks: int) -> None:
    """Runs ``function`` in ``num_ranks`` processes of one thread each and waits for them.

    ``function`` has to be picklable. A failure of one rank ends the others and is raised here.

    Effects:
        Sets variables of the allocator in the environment, for this and later processes.
    """
    os.environ.update(_ALLOCATOR_ENVIRONMENT)
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = Path(folder) / "rendezvous"
        arguments = (function, num_ranks, rendezvous)
        spawn(_run_rank, arguments, nprocs=num_ranks)  # type: ignore[no-untyped-call]


def _run_rank(
    rank: int, function: Callable[[Ranks], None], num_ranks: int, rendezvous: Path
) -> None:
    torch.set_num_threads(1)
    if num_ranks == 1:
        function(Ranks(0, 1))
        return
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=num_ranks
    )
    try:
        function(Ranks(rank, num_ranks))
    finally:
        dist.destroy_process_group()


def timed_steps(ranks: Ranks, minutes: float) -> Iterator[tuple[int, float]]:
    """Yields the step and the elapsed share of the time, until the time is up.

    All ranks use the clock of the first one, so that all take the same number of steps.
    """
    start_s = time.monotonic()
    step = 0
    while (share := ranks.agree((time.monotonic() - start_s) / (minutes * 60))) < 1:
        yield step, share
        step += 1

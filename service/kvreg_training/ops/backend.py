"""The choice of ops, by an option.

A compiler that is installed and fails is an error, never a silent fallback.
"""

from __future__ import annotations

from typing import Literal, assert_never

from kvreg_training.ops.fused_ops import (
    has_compiler,
    load_fused_ops,
)
from kvreg_training.ops.interface import Ops
from kvreg_training.ops.torch_ops import TorchOps

OpsBackend = Literal["fused", "torch"]


def default_backend() -> OpsBackend:
    """Return the fused ops if there is a compiler; the plain ones take about twice the time."""
    return "fused" if has_compiler() else "torch"


def load_ops(name: OpsBackend) -> Ops:
    """Return the ops of this name, after building them if necessary."""
    match name:
        case "fused":
            return load_fused_ops()
        case "torch":
            return TorchOps()
        case _:
            assert_never(name)

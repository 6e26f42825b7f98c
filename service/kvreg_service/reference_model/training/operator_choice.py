"""Which operators a run uses: chosen by an option, and said once.

Owns the choice. A compiler that is there and fails is an error, never a silent fallback.
"""

from __future__ import annotations

from typing import Literal, assert_never

from kvreg_service.reference_model.training.fused_operators import (
    has_compiler,
    load_fused_operators,
)
from kvreg_service.reference_model.training.operators import Operators, TorchOperators

OperatorsName = Literal["fused", "torch"]


def default_operators() -> OperatorsName:
    """The fused ones where they can be built; the plain ones take about twice the time."""
    return "fused" if has_compiler() else "torch"


def load_operators(name: OperatorsName) -> Operators:
    """The operators of this name, built if need be."""
    match name:
        case "fused":
            return load_fused_operators()
        case "torch":
            return TorchOperators()
        case _:
            assert_never(name)

"""The ops of training as C++ loops, built on first use by torch's extension builder.

Owns the build and the autograd functions; ``cpp/`` has the arithmetic.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils import cpp_extension

from kvreg_training.shape import GatedDeltaShape

_SOURCES = sorted(str(path) for path in (Path(__file__).parent / "cpp").glob("*.cpp"))
_FLAGS = ["-O3", "-march=native", "-ffast-math", "-fopenmp-simd"]


def has_compiler() -> bool:
    """Return whether the C++ compiler of torch's extension builder is installed."""
    compiler: str = cpp_extension.get_cxx_compiler()  # type: ignore[no-untyped-call]
    return shutil.which(compiler) is not None


def load_fused_ops() -> FusedOps:
    """Builds the extension unless torch's cache holds it, and returns the ops.

    Effects:
        Adds the folder of the interpreter to PATH, where a virtual environment has ninja.

    Raises:
        RuntimeError: The compiler failed; the message has its output.
    """
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    module = cpp_extension.load(name="kvreg_training_ops", sources=_SOURCES, extra_cflags=_FLAGS)
    return FusedOps(module)


class FusedOps:
    """``Ops`` on the built extension. One thread; fp32 on the CPU only."""

    name = "fused"

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """See ``Ops``."""
        return _apply(_Linear, x, weight)

    def rms_norm(self, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """See ``Ops``."""
        return _apply(_RmsNorm, self._module, x, weight, None, epsilon)

    def gated_rms_norm(self, x: Tensor, gate: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """See ``Ops``."""
        return _apply(_RmsNorm, self._module, x, weight, gate, epsilon)

    def swiglu(self, gate: Tensor, up: Tensor) -> Tensor:
        """See ``Ops``."""
        return _apply(_SwiGlu, self._module, gate, up)

    def causal_conv_silu(self, x: Tensor, weight: Tensor) -> Tensor:
        """See ``Ops``."""
        return _apply(_CausalConvSilu, self._module, x, weight)

    def gated_delta_rule(
        self, qkv: Tensor, log_decay: Tensor, beta: Tensor, shape: GatedDeltaShape
    ) -> Tensor:
        """See ``Ops``."""
        return _apply(_GatedDeltaRule, self._module, qkv, log_decay, beta, shape)

    def weighted_cross_entropy(self, logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """See ``Ops``."""
        return _apply(_WeightedCrossEntropy, self._module, logits, targets, weights)


def _apply(function: type[torch.autograd.Function], *args: object) -> Tensor:
    result: Tensor = function.apply(*args)  # type: ignore[no-untyped-call]
    return result


class _Linear(torch.autograd.Function):
    # The matrix product of oneDNN takes 0.84 of the time of the default one, per training step.
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _onednn_linear(x, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None]:
        x, weight = ctx.saved_tensors
        (grad,) = grads
        grad_x = _onednn_linear(grad, weight.t().contiguous())
        if not ctx.needs_input_grad[1]:
            return grad_x, None
        return grad_x, grad.reshape(-1, grad.shape[-1]).t() @ x.reshape(-1, x.shape[-1])


def _onednn_linear(x: Tensor, weight: Tensor) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return result


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, module: Any, x: Tensor, weight: Tensor, gate: Tensor | None, epsilon: float
    ) -> Tensor:
        x = x.contiguous()
        gate = None if gate is None else gate.contiguous()
        ctx.save_for_backward(x, weight, gate)
        ctx.module, ctx.epsilon = module, epsilon
        result: Tensor = module.rms_norm_forward(x, weight, gate, epsilon)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, gate = ctx.saved_tensors
        grad_x, grad_weight, *grad_gate = ctx.module.rms_norm_backward(
            x, weight, gate, grads[0].contiguous(), ctx.epsilon
        )
        return None, grad_x, grad_weight, grad_gate[0] if grad_gate else None, None


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, module: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.module = module
        result: Tensor = module.swiglu_forward(gate, up)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.module.swiglu_backward(*ctx.saved_tensors, grads[0].contiguous())


class _CausalConvSilu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, module: Any, x: Tensor, weight: Tensor) -> Tensor:
        x, weight = x.contiguous(), weight.contiguous()
        ctx.save_for_backward(x, weight)
        ctx.module = module
        result: Tensor = module.causal_conv_silu_forward(x, weight)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        return None, *ctx.module.causal_conv_silu_backward(*saved, grads[0].contiguous())


class _GatedDeltaRule(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, module: Any, qkv: Tensor, log_decay: Tensor, beta: Tensor, shape: GatedDeltaShape
    ) -> Tensor:
        qkv, log_decay, beta = qkv.contiguous(), log_decay.contiguous(), beta.contiguous()
        ctx.module, ctx.heads = module, (shape.num_key_heads, shape.num_value_heads)
        out: Tensor
        out, states = module.gated_delta_rule_forward(qkv, log_decay, beta, *ctx.heads)
        ctx.save_for_backward(qkv, log_decay, beta, states)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_qkv, grad_log_decay, grad_beta = ctx.module.gated_delta_rule_backward(
            *ctx.saved_tensors, grads[0].contiguous(), *ctx.heads
        )
        return None, grad_qkv, grad_log_decay, grad_beta, None


class _WeightedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, module: Any, logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        logits = logits.contiguous()
        loss: float = module.weighted_cross_entropy(logits, targets, weights)
        # The logits are overwritten by their gradient.
        ctx.save_for_backward(logits)
        return logits.new_tensor(loss)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad_logits,) = ctx.saved_tensors
        return None, grad_logits * grads[0], None, None

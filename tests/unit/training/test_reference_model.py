"""The training module: its shape, its ops and its optimizer."""

from __future__ import annotations

import json

import pytest
import torch

from kvreg_kernels.gated_delta_rule import gated_delta_rule
from kvreg_service.reference_model import REFERENCE_MODEL_PATH
from kvreg_training.model.reference_model import ReferenceModel
from kvreg_training.model.weights_file import load_weights
from kvreg_training.ops.torch_ops import TorchOps
from kvreg_training.shape import GatedDeltaShape, ReferenceShape
from kvreg_training.trainers.optimizer import learning_rate, orthogonalised

# Two summation orders in fp32.
GATED_DELTA_TOLERANCE = 1e-5


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def test_the_bundled_config_is_that_of_the_shape() -> None:
    bundled = json.loads((REFERENCE_MODEL_PATH / "config.json").read_text(encoding="utf-8"))
    del bundled["transformers_version"]
    assert ReferenceShape().config() == bundled


def test_the_bundled_weights_are_exactly_those_of_the_module() -> None:
    model = ReferenceModel(ReferenceShape(), TorchOps())
    load_weights(model, REFERENCE_MODEL_PATH / "model.safetensors")


@pytest.mark.parametrize("num_tokens", [1, 63, 64, 65, 150])
def test_the_gated_delta_rule_of_training_is_that_of_serving(num_tokens: int) -> None:
    shape = GatedDeltaShape()
    generator = torch.Generator().manual_seed(num_tokens)
    qkv = torch.randn(2, num_tokens, shape.conv_channels, generator=generator)
    gate_size = (2, num_tokens, shape.num_value_heads)
    log_decay = -torch.rand(gate_size, generator=generator)
    beta = torch.rand(gate_size, generator=generator)
    trained = TorchOps().gated_delta_rule(qkv, log_decay, beta, shape)
    qk, v = qkv.split((2 * shape.key_size, shape.value_size), dim=-1)
    served = gated_delta_rule(
        qk.reshape(2, num_tokens, 2, shape.num_key_heads, shape.key_head_size),
        v.reshape(2, num_tokens, shape.num_value_heads, shape.value_head_size),
        log_decay,
        beta,
        torch.zeros(2, shape.num_value_heads, shape.key_head_size, shape.value_head_size),
    )
    torch.testing.assert_close(trained, served, rtol=0, atol=GATED_DELTA_TOLERANCE)


def test_later_tokens_do_not_change_earlier_logits() -> None:
    model = ReferenceModel(ReferenceShape(), TorchOps())
    token_ids = torch.arange(90)[None]
    changed = token_ids.clone()
    changed[:, 70:] += 1
    with torch.no_grad():
        assert torch.equal(model(token_ids)[:, :70], model(changed)[:, :70])


def test_orthogonalised_matrices_have_singular_values_near_one() -> None:
    matrices = torch.randn(3, 64, 128, generator=torch.Generator().manual_seed(0))
    singular_values = torch.linalg.svdvals(orthogonalised(matrices))
    assert 0.5 < singular_values.min() < singular_values.max() < 1.5


def test_the_learning_rate_warms_up_holds_and_decays() -> None:
    rates = [
        learning_rate(1.0, step=step, warmup_steps=10, time_share=time_share, hold_share=0.5)
        for step, time_share in [(0, 0.0), (4, 0.1), (10, 0.2), (50, 0.49), (80, 0.75), (99, 1.0)]
    ]
    assert rates == pytest.approx([0.1, 0.5, 1.0, 1.0, 0.5, 0.02])

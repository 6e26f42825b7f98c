"""Muon for matrices and AdamW for everything else.

Owns the update and its constants. The caller sets the learning rate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from kvreg_training.trainers.ranks import Ranks

_MOMENTUM = 0.95
_MUON_WEIGHT_DECAY = 0.05
_OTHER_WEIGHT_DECAY = 0.01
_MIN_MATRIX_SIZE = 64
# Scales the RMS of an update to that of AdamW.
_UPDATE_SCALE = 0.2
# Five steps that bring all singular values close to 1 from anywhere in (0, 1].
_NEWTON_SCHULZ_STEPS = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)


def orthogonalised(matrices: Tensor) -> Tensor:
    """Returns each matrix with its singular values close to 1.

    Shapes:
        [N, rows, columns] with rows <= columns; the same is returned.

    Source:
        Jordan et al., "Muon", https://kellerjordan.github.io/posts/muon/; coefficients by You,
        https://x.com/YouJiacheng/status/1905861218138804534.
    """
    x: Tensor = matrices / (matrices.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for a, b, c in _NEWTON_SCHULZ_STEPS:
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x


class MuonAdamW:
    """Updates named parameters in place, each from its ``grad``.

    Muon updates matrices of at least 64 x 64, except embeddings and ``lm_head``; AdamW updates the
    rest. The ranks share the orthogonalization and exchange the results.
    """

    def __init__(self, parameters: Iterable[tuple[str, nn.Parameter]], ranks: Ranks) -> None:
        self._ranks = ranks
        self._matrices: list[nn.Parameter] = []
        other_matrices: list[nn.Parameter] = []
        vectors: list[nn.Parameter] = []
        for name, parameter in parameters:
            if _takes_muon(name, parameter):
                self._matrices.append(parameter)
            elif parameter.ndim == 2:
                other_matrices.append(parameter)
            else:
                vectors.append(parameter)
        groups = [
            {"params": other_matrices, "weight_decay": _OTHER_WEIGHT_DECAY},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self._adamw = torch.optim.AdamW(
            [group for group in groups if group["params"]], betas=(0.9, 0.97), eps=1e-10
        )
        self._momenta = [torch.zeros_like(matrix) for matrix in self._matrices]
        self._my_groups = self._group_by_shape(self._matrices)

    def step(self, learning_rate: float) -> None:
        """Applies one update.

        Effects:
            Parameters are changed and their gradients freed.
        """
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate
        self._adamw.step()
        self._step_matrices(learning_rate)
        for group in self._adamw.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
        for matrix in self._matrices:
            matrix.grad = None

    def _group_by_shape(self, matrices: list[nn.Parameter]) -> list[list[int]]:
        """This rank's share of the matrices, in batches of one shape up to transposition."""
        groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for index, matrix in enumerate(matrices):
            groups[tuple(sorted(matrix.shape))].append(index)
        shares = (group[self._ranks.rank :: self._ranks.num_ranks] for group in groups.values())
        return [share for share in shares if share]

    @torch.no_grad()
    def _step_matrices(self, learning_rate: float) -> None:
        updates = [torch.zeros_like(matrix) for matrix in self._matrices]
        for group in self._my_groups:
            directions = orthogonalised(torch.stack([self._direction(index) for index in group]))
            scale = _UPDATE_SCALE * max(directions.shape[-2:]) ** 0.5
            for index, direction in zip(group, directions, strict=True):
                updates[index].copy_(_lying(direction, like=self._matrices[index]) * scale)
        if self._ranks.num_ranks > 1:
            message = torch.cat([update.reshape(-1) for update in updates])
            self._ranks.sum(message)
            sizes = [update.numel() for update in updates]
            updates = list(torch.split(message, sizes))
        for matrix, update in zip(self._matrices, updates, strict=True):
            matrix.mul_(1 - learning_rate * _MUON_WEIGHT_DECAY)
            matrix.add_(update.view_as(matrix), alpha=-learning_rate)

    def _direction(self, index: int) -> Tensor:
        """The momentum step of one matrix, transposed if it has more rows than columns."""
        matrix, momentum = self._matrices[index], self._momenta[index]
        assert matrix.grad is not None, "every matrix takes part in the loss"
        momentum.lerp_(matrix.grad, 1 - _MOMENTUM)
        direction = matrix.grad.lerp(momentum, _MOMENTUM)
        return direction if matrix.shape[0] <= matrix.shape[1] else direction.t()


def _lying(direction: Tensor, *, like: Tensor) -> Tensor:
    return direction if like.shape[0] <= like.shape[1] else direction.t()


def _takes_muon(name: str, parameter: nn.Parameter) -> bool:
    is_matrix = parameter.ndim == 2 and min(parameter.shape) >= _MIN_MATRIX_SIZE
    return is_matrix and "embed" not in name and "lm_head" not in name


def learning_rate(
    peak: float, *, step: int, warmup_steps: int, time_share: float, hold_share: float
) -> float:
    """Warms up over steps, holds, and decays linearly over the rest of the time.

    ``time_share`` is the elapsed share of the time; the decay starts at ``hold_share``.
    """
    warm = min(1.0, (step + 1) / warmup_steps)
    if time_share < hold_share:
        return peak * warm
    return peak * warm * max(0.02, (1 - time_share) / (1 - hold_share))

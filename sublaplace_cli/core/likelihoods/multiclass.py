"""C classes, one logit each."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...errors import Reason, UserError
from ..gaussian import Gaussian
from .classes import ClassLikelihood, squared_errors
from .combinations import grouped_signs
from .links import expected_softmax_entropy, log_expected_softmax, log_mean_field, probit_logits

# The ridge of the paper's Setup C: it makes diag(p) − ppᵀ positive definite; the all-ones vector is its null space.
SOFTMAX_RIDGE = 1e-6


@dataclass(frozen=True)
class Multiclass(ClassLikelihood):
    """y ~ Categorical(softmax(f))."""

    def root(self, f: Tensor) -> Tensor:
        """H = diag(p) − ppᵀ + εI with ε = 1e-6; any root will do, so the Cholesky factor."""
        p = torch.softmax(f.double(), dim=1)
        ridge = torch.full_like(p, SOFTMAX_RIDGE)
        H = torch.diag_embed(p + ridge) - p.unsqueeze(2) * p.unsqueeze(1)
        return torch.linalg.cholesky(H)  # (N, C, C)

    def combinations(self, f: Tensor, signs: Tensor, count: int) -> Tensor:
        """By the root W = D^½(I − βvvᵀ) with D = diag(p + ε) and v = D^(−½)p, which needs no C × C matrix."""
        p = torch.softmax(f.double(), dim=1)
        D = p + SOFTMAX_RIDGE
        v = p / D.sqrt()
        left = (p * SOFTMAX_RIDGE / D).sum(1, keepdim=True)  # 1 − ‖v‖², computed without cancellation
        beta = (1 - left.sqrt()) / (1 - left)
        weights = D - 2 * beta * p.square() + (beta * v).square() * p.square().sum(1, keepdim=True)
        Z = grouped_signs(weights, signs.to(p), count)
        through_v = torch.einsum("nc,ncs->ns", v, Z)
        return D.sqrt().unsqueeze(2) * Z - (beta * p).unsqueeze(2) * through_v.unsqueeze(1)

    def check_outputs(self, n_outputs: int) -> None:
        if n_outputs < 2:
            problem = "a multiclass task needs at least two outputs, the model has one"
            raise UserError(problem, reason=Reason.NOT_SEVERAL_LOGITS)

    def check_targets(self, targets: np.ndarray, rows: np.ndarray, n_outputs: int, split: str) -> None:
        largest = int(targets.max())
        if largest >= n_outputs:
            raise UserError(
                f"class label {largest} (row {int(rows[int(targets.argmax())])} of the {split} data) is out of range: "
                f"the model has {n_outputs} outputs, so labels run from 0 to {n_outputs - 1}"
            )

    def integrated(self, outputs: Gaussian) -> Tensor:
        if self.link == "probit":
            return torch.log_softmax(probit_logits(outputs.mean, outputs.variance), dim=1)  # (M, C)
        integrate = log_expected_softmax if self.link == "integral" else log_mean_field
        return integrate(outputs.mean, outputs.covariance)

    def expected_entropy(self, outputs: Gaussian) -> Tensor:
        return expected_softmax_entropy(outputs.mean, outputs.covariance)

    def brier(self, probabilities: Tensor, targets: Tensor) -> Tensor:
        return squared_errors(probabilities, targets).sum(1)

"""Two classes behind one logit."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...errors import Reason, UserError
from ..gaussian import Gaussian
from .classes import ClassLikelihood, squared_errors
from .links import expected_sigmoid_entropy, log_expected_sigmoid, probit_logits


@dataclass(frozen=True)
class Binary(ClassLikelihood):
    """y ~ Bernoulli(sigmoid(f))."""

    def root(self, f: Tensor) -> Tensor:
        """H = σ(f)(1 − σ(f)), in a form that does not round to 0 at |f| = 40."""
        e = torch.exp(-f.double().abs())
        return (e.sqrt() / (1 + e)).unsqueeze(-1)  # (N, 1, 1)

    def check_outputs(self, n_outputs: int) -> None:
        if n_outputs != 1:
            problem = f"a binary task needs one output (a logit), the model has {n_outputs}"
            raise UserError(problem, reason=Reason.NOT_ONE_LOGIT)

    def check_targets(self, targets: np.ndarray, rows: np.ndarray, n_outputs: int, split: str) -> None: ...

    def integrated(self, outputs: Gaussian) -> Tensor:
        f, std = outputs.mean[:, 0], outputs.std[:, 0]
        if self.link == "integral":
            return torch.stack([log_expected_sigmoid(-f, std), log_expected_sigmoid(f, std)], dim=1)  # (M, 2)
        z = probit_logits(f, std.square())  # mean-field is the same for two classes
        return torch.nn.functional.logsigmoid(torch.stack([-z, z], dim=1))

    def expected_entropy(self, outputs: Gaussian) -> Tensor:
        return expected_sigmoid_entropy(outputs.mean[:, 0], outputs.std[:, 0])

    def brier(self, probabilities: Tensor, targets: Tensor) -> Tensor:
        return squared_errors(probabilities, targets)[:, 1]

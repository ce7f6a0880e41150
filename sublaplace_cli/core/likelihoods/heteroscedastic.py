"""Regression with a noise variance for each row, which the network predicts as a logarithm."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import UserError
from ..gaussian import Gaussian
from .gaussian_noise import GaussianNoise

LARGEST_LOG_VARIANCE = 230.0  # either way: noise variances from 1e-100 to 1e100, as they may be set for all rows


@dataclass(frozen=True)
class Heteroscedastic(GaussianNoise):
    """y ~ N(μ, e^s) for each of D targets; the 2D outputs are all means, then all log-variances: f = [μ, s]."""

    def means(self, n_outputs: int) -> slice:
        return slice(n_outputs // 2)

    def root(self, f: Tensor) -> Tensor:
        """H = diag(e^(−s), ½), expected over y: the Hessian at one y may be indefinite, this one never is."""
        s = _log_variance(f)
        return torch.diag_embed(torch.cat([torch.exp(-s / 2), torch.full_like(s, 0.5**0.5)], dim=1))  # (N, 2D, 2D)

    def check_outputs(self, n_outputs: int) -> None:
        if n_outputs % 2:
            raise UserError(f"means and log-variances are an even number of outputs, the model has {n_outputs}")

    def fit_terms(self, f: Tensor, targets: Tensor) -> tuple[None, float]:
        return None, -float(self.nll(Gaussian.certain(f), targets).sum()) * targets.shape[1]  # nll: a mean over targets

    def noise(self, outputs: Gaussian) -> Tensor:
        """e^s at the mean of s, and not its expectation e^(s + Var(s)/2).

        The posterior of s is Gaussian because the network is linearized, which says little about its tail, but the
        expectation is dominated by that tail: a standard deviation of 5 in s would multiply the noise by 270,000. It
        would also make the noise of a sub-network's prediction and that of the full posterior two different numbers.
        """
        return torch.exp(_log_variance(outputs.mean))


def _log_variance(f: Tensor) -> Tensor:
    """s (N, D) of the outputs [μ, s]."""
    s = f[:, f.shape[1] // 2 :].double()
    largest = float(s.abs().max())
    if not largest <= LARGEST_LOG_VARIANCE:
        found = f"the network predicts a log-variance of ±{largest:.4g} at some row"
        raise UserError(f"{found}, beyond ±{LARGEST_LOG_VARIANCE:g}: it is no noise variance")
    return s

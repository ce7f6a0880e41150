"""What may tell that a row is unlike the training rows: numbers of each row (M,), larger for an unusual one.

σ and mutual information are the posterior's: what the data leave open about the network's outputs at this row. The
entropy is about the classes, which a network without a posterior has too.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ..gaussian import Gaussian
from ..likelihoods import Likelihood
from ..likelihoods.links import entropy as entropy_of
from ..metrics import NotApplicable

Score = Callable[[Gaussian, Likelihood], Tensor]
LEAST_INFORMATION = 1e-12  # nats; less is rounding of the two entropies that it is the difference of


def std(outputs: Gaussian, likelihood: Likelihood) -> Tensor:
    """σ, mean over the outputs that predict the targets."""
    _require_variance(outputs)
    return outputs.some(likelihood.means(outputs.mean.shape[1])).std.mean(1)


def entropy(outputs: Gaussian, likelihood: Likelihood) -> Tensor:
    """Entropy of the predicted classes."""
    log_p = likelihood.log_probabilities(outputs)
    if log_p is None:
        raise NotApplicable("a metric of classification")
    return entropy_of(log_p)


def mutual_information(outputs: Gaussian, likelihood: Likelihood) -> Tensor:
    """Of the class and the parameters."""
    if likelihood.log_probabilities(outputs) is None:
        raise NotApplicable("a metric of classification")
    _require_variance(outputs)

    def compute() -> Tensor:
        found = likelihood.row_columns(outputs)["mutual_information"]
        return torch.where(found < LEAST_INFORMATION, 0.0, found)

    return outputs.once(("mutual_information", likelihood), compute)


def _require_variance(outputs: Gaussian) -> None:
    if not bool((outputs.variance > 0).any()):
        raise NotApplicable("there is no variance: σ is 0 at every row")

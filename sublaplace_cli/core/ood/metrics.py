"""How well a score tells test rows from rows unlike the training rows, named as in `results/metric_table.py`.

With several sets of such rows, a metric is that of the set that is the hardest to tell apart.
"""

from collections.abc import Callable

from torch import Tensor

from ..metrics import NotApplicable
from ..prediction import Comparison, Prediction
from ..ranks import auroc, share_not_above
from . import scores

ACCEPTED = 0.95  # share of the test rows below the threshold


def ood_auroc_std(prediction: Prediction, known: Comparison) -> float:
    """AUROC of σ."""
    return min(_by_set(prediction, known, scores.std, auroc))


def ood_fpr95_std(prediction: Prediction, known: Comparison) -> float:
    """FPR95 of σ."""
    return max(_by_set(prediction, known, scores.std, fpr95))


def ood_auroc_entropy(prediction: Prediction, known: Comparison) -> float:
    """AUROC of the entropy of the classes."""
    return min(_by_set(prediction, known, scores.entropy, auroc))


def ood_fpr95_entropy(prediction: Prediction, known: Comparison) -> float:
    """FPR95 of the entropy of the classes."""
    return max(_by_set(prediction, known, scores.entropy, fpr95))


def ood_auroc_mi(prediction: Prediction, known: Comparison) -> float:
    """AUROC of the mutual information of class and parameters."""
    return min(_by_set(prediction, known, scores.mutual_information, auroc))


def ood_fpr95_mi(prediction: Prediction, known: Comparison) -> float:
    """FPR95 of the mutual information of class and parameters."""
    return max(_by_set(prediction, known, scores.mutual_information, fpr95))


def fpr95(test: Tensor, ood: Tensor) -> float:
    """Share of the others that pass as test rows, if the threshold lets 95 % of the test rows pass."""
    return share_not_above(ACCEPTED, test, ood)


def _by_set(
    prediction: Prediction, known: Comparison, score: scores.Score, compare: Callable[[Tensor, Tensor], float]
) -> list[float]:
    if not known.ood:
        raise NotApplicable(known.absent.ood)
    pairs = [(each.test[prediction.outputs], each.ood[prediction.outputs]) for each in known.ood]
    return [compare(*(score(outputs, known.likelihood) for outputs in pair)) for pair in pairs]

"""What a result means, in two plain sentences: does a posterior help, and is a sub-network enough? With the numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...catalog import CALIBRATED, METHODS, SKETCH
from ...core import metrics
from ...core.prediction import Comparison, Prediction
from ...results.differences import CLEAR
from ...run.posteriors.calibration import MAP, TEMPERATURE

NEGLIGIBLE = 1e-4  # a difference in nll that nobody can act on
MOST_NAMED = 3
CHECK_FIRST = "First check the network: at its own training rows it is no better than the trivial guess."
EQUALLY_FAR = 1e-9  # distances that differ by less than this share of σ_full
FAR = 0.25  # a relative distance to the full posterior that calls for a larger sub-network
# With d degrees of freedom of the full posterior, k random sums are about d/2k off: measured within a fifth of that on
# convolutional networks, somewhat less on small ones. It is said up to `MOST_EXPECTED`, where it is half of what was
# measured or less.
MOST_EXPECTED, MUCH_CLOSER = 0.3, 0.5


@dataclass(frozen=True)
class _Judged:
    prediction: Prediction
    losses: Tensor  # of each test row, the smaller the better

    @property
    def name(self) -> str:
        return self.prediction.name

    @property
    def mean(self) -> float:
        return float(self.losses.mean())

    def better_by(self, other: "_Judged", negligible: float = NEGLIGIBLE) -> tuple[float, float]:
        """(how much lower its mean is than the other's, that in standard errors of the difference by row)."""
        gain = other.losses - self.losses
        mean, error = float(gain.mean()), float(gain.std(correction=1)) / math.sqrt(len(gain))
        if abs(mean) < negligible:
            return mean, 0.0
        return mean, mean / error if error > 0 else math.copysign(math.inf, mean) if mean else 0.0


def verdict(
    asked: Sequence[Prediction], others: Sequence[Prediction], known: Comparison, n_params: int, has_learnt: bool = True
) -> dict[str, Any]:
    """The sentences, and every nll against that of the network alone; empty if nothing can be said.

    `others` are the rivals of the methods that were asked for, and the full posterior where it is judged.
    """
    text, compared = list[str](), list[dict[str, Any]]()
    if known.targets is not None and len(known.targets) > 1:
        text, compared = _by_nll(asked, others, known, known.targets, has_learnt)
    text += _by_distance(asked, others, known, n_params)
    return {"text": text, "nll_against_map": compared} if text else {}


def has_posterior(prediction: Prediction) -> bool:
    """Not the network alone, and not one variance for all rows."""
    return prediction.method not in (MAP, TEMPERATURE) and not prediction.method.startswith("constant")


def _by_nll(
    asked: Sequence[Prediction],
    others: Sequence[Prediction],
    known: Comparison,
    targets: Tensor,
    has_learnt: bool,
) -> tuple[list[str], list[dict[str, Any]]]:
    judged = [_Judged(each, known.likelihood.nll(each.outputs, targets)) for each in (*asked, *others)]
    if not all(math.isfinite(each.mean) for each in judged):
        return [], []
    network = next(each for each in judged if each.prediction.method == MAP)
    simple = [each for each in judged if not has_posterior(each.prediction)]
    own = [each for each in judged[: len(asked)] if has_posterior(each.prediction)]
    posteriors = own or [each for each in judged if has_posterior(each.prediction)]
    if not posteriors:
        return [], []
    best, rival = (min(some, key=lambda each: each.mean) for some in (posteriors, simple))
    what = "predictions" if known.likelihood.log_probabilities(network.prediction.outputs) is None else "probabilities"
    found = [
        _against_network(best, len(posteriors), network, what),
        *_also_worse(posteriors, best, network),
        *(_rival(best, rival) if has_learnt else [CHECK_FIRST]),
    ]
    return [" ".join(found)], [_numbers(each, network) for each in judged]


def _against_network(best: _Judged, count: int, network: _Judged, what: str) -> str:
    _, errors = best.better_by(network)
    k = "" if best.prediction.k is None else f", k = {best.prediction.k:,}"
    among = f", best of {count}" if count > 1 else ""  # a best one of many looks better than it is
    numbers = f"NLL {network.mean:.4g} → {best.mean:.4g} ({best.prediction.method}{k}{among}; {_errors(errors)})"
    if abs(errors) < CLEAR:
        return f"The posterior makes no clear difference to the {what} here: {numbers}."
    return f"The posterior makes the {what} {'better' if errors > 0 else 'worse'} here: {numbers}."


def _also_worse(posteriors: Sequence[_Judged], best: _Judged, network: _Judged) -> list[str]:
    """Others than the best one that are clearly worse than the network alone."""
    gaps = [(each, *network.better_by(each)) for each in posteriors if each is not best]
    worse = sorted((gap for gap in gaps if gap[2] >= CLEAR), key=lambda gap: -gap[1])
    if not worse:
        return []
    named = ", ".join(f"{each.name} by {gain:.3g}" for each, gain, _ in worse[:MOST_NAMED])
    more = f" and {len(worse) - MOST_NAMED} more" if len(worse) > MOST_NAMED else ""
    return [f"Worse than the network alone: {named}{more}."]


def _rival(best: _Judged, rival: _Judged) -> list[str]:
    """What follows if something without a posterior predicts as well; nothing if the posterior is clearly better."""
    _, errors = best.better_by(rival)
    if errors >= CLEAR:
        return []
    found = []
    if rival.prediction.method != MAP:
        how = "better" if errors <= -CLEAR else "as good"
        found = [f"{rival.name} needs no posterior and is {how}: {rival.mean:.4g} ({_errors(errors)})."]
    if best.prediction.calibration is None:  # its size may be all that is wrong with it
        return [*found, f"Try --rescale {CALIBRATED} before you decide."]
    uses = "rejecting some, finding unknown inputs, choosing new data"
    return [*found, f"Only the order of the rows by uncertainty can justify a posterior here: {uses}."]


def _errors(errors: float) -> str:
    """The size of a difference; infinite if all rows differ by the same."""
    return f"{abs(errors):.1f} standard errors" if math.isfinite(errors) else "the same at every row"


def _by_distance(
    asked: Sequence[Prediction], others: Sequence[Prediction], known: Comparison, n_params: int
) -> list[str]:
    """How far the closest sub-network is from the full posterior, beside a reference without a sub-network."""
    subnets = [each for each in asked if each.features is not None and each.k is not None and each.k < n_params]
    if known.std_full is None or not subnets or len(known.std_full) < 2:
        return []
    size = float(known.std_full.mean())
    if not 0 < size < math.inf:
        return []
    if any(each.calibration is not None for each in asked):  # then the size of σ is another one on purpose
        return _by_order(subnets, known, n_params)
    best = min((_distance(each, known) for each in subnets), key=lambda each: each.mean)
    share = best.mean / size
    if not math.isfinite(share):
        return []
    if share <= FAR:
        found = f"is within {_percent(share)} of the full posterior's, averaged over the test rows"
    else:
        found = f"is {_percent(share)} off the full posterior's, averaged over the test rows: raise --k"
    text = [f"With {_size(best.prediction, n_params)} the uncertainty σ of {best.prediction.method} {found}."]
    text += [_beside(best, _distance(each, known), size) for each in others if _is_beside(each)]
    return [" ".join(text), *_hint(best.prediction, share, subnets, known)]


def _hint(best: Prediction, share: float, asked: Sequence[Prediction], known: Comparison) -> list[str]:
    """One line where random sums of the same size would be much closer, and nobody has asked for them."""
    ipv, k = known.of_full.ipv, best.k
    if ipv is None or k is None or any(each.indices is None for each in asked):
        return []
    expected = ipv / known.ipv(1.0) / (2 * k)
    if expected > min(MOST_EXPECTED, MUCH_CLOSER * share):
        return []
    return [f"Hint: --method {SKETCH} with the same k = {k:,} is expected to be within about {_percent(expected)}."]


def _distance(prediction: Prediction, known: Comparison) -> _Judged:
    return _Judged(prediction, metrics.w2(prediction, known))


def _is_beside(prediction: Prediction) -> bool:
    return prediction.method in METHODS and METHODS[prediction.method].beside


def _beside(best: _Judged, other: _Judged, size: float) -> str:
    _, errors = best.better_by(other, negligible=EQUALLY_FAR * size)
    how = "further off" if errors > 0 else "closer" if errors < 0 else "as close"
    how = f"not clearly {how}" if 0 < abs(errors) < CLEAR else how
    return f"{other.name}, which needs no sub-network, is {how}: {_percent(other.mean / size)}."


def _by_order(subnets: Sequence[Prediction], known: Comparison, n_params: int) -> list[str]:
    try:
        ranks = [(metrics.rank(each, known), each) for each in subnets]
    except metrics.NotApplicable:
        return []
    rank, best = max(ranks, key=lambda pair: pair[0])
    like = f"{best.method} orders the test rows by uncertainty like the full posterior"
    return [f"With {_size(best, n_params)} {like} with a rank correlation of {rank:.2f} (1: the same order)."]


def _size(prediction: Prediction, n_params: int) -> str:
    if prediction.indices is not None:
        return f"{prediction.k:,} of {n_params:,} parameters"
    return f"{prediction.k:,} features of {n_params:,} parameters"


def _percent(share: float) -> str:
    """Rounded up, so that “within” is true; two digits after the point below 1 %."""
    digits = 0 if share >= 0.01 else 2
    return f"{math.ceil(100 * share * 10**digits - 1e-9) / 10**digits:.{digits}f} %"


def _numbers(each: _Judged, network: _Judged) -> dict[str, Any]:
    gain, errors = each.better_by(network)
    found = {"method": each.prediction.method, "k": each.prediction.k, "better_by": gain}
    return {**found, "standard_errors": errors if math.isfinite(errors) else None}

"""Does a posterior help? Negative log-likelihoods compared row by row, in words and numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...catalog import CALIBRATED
from ...core.prediction import Comparison, Prediction
from ...run.posteriors.calibration import MAP, TEMPERATURE

CLEAR = 2.0  # standard errors from which on a difference counts
NEGLIGIBLE = 1e-4  # a difference in nll that nobody can act on
MOST_NAMED = 3


@dataclass(frozen=True)
class _Judged:
    prediction: Prediction
    losses: Tensor  # nll of each test row

    @property
    def nll(self) -> float:
        return float(self.losses.mean())

    def better_by(self, other: "_Judged") -> tuple[float, float]:
        """(how much lower its nll is than the other's, that in standard errors of the difference by row)."""
        gain = other.losses - self.losses
        mean, error = float(gain.mean()), float(gain.std(correction=1)) / math.sqrt(len(gain))
        if abs(mean) < NEGLIGIBLE:
            return mean, 0.0
        return mean, mean / error if error > 0 else math.copysign(math.inf, mean) if mean else 0.0


def verdict(predictions: Sequence[Prediction], rivals: Sequence[Prediction], known: Comparison) -> dict[str, Any]:
    """The comparison by nll; empty without targets."""
    if known.targets is None or len(known.targets) < 2:
        return {}
    judged = [_Judged(each, known.likelihood.nll(each.outputs, known.targets)) for each in (*predictions, *rivals)]
    if not all(math.isfinite(each.nll) for each in judged):
        return {}
    network = next(each for each in judged if each.prediction.method == MAP)
    posteriors = [each for each in judged if has_posterior(each.prediction)]
    simple = [each for each in judged if not has_posterior(each.prediction)]
    if not posteriors:
        return {}
    best = min(posteriors, key=lambda each: each.nll)
    text = [*_worse_than_map(posteriors, network), _best(best, simple)]
    rival = min(simple, key=lambda each: each.nll)
    if best.better_by(rival)[1] < CLEAR:
        text.append(_conclusion(best, rival))
    compared = [_numbers(each, network) for each in judged]
    return {"text": text, "nll_against_map": compared}


def _conclusion(best: _Judged, rival: _Judged) -> str:
    how = "clearly better" if rival.better_by(best)[1] >= CLEAR else "not clearly worse"
    found = f"{rival.prediction.name} needs no posterior and is {how}"
    if best.prediction.calibration is None:  # its size may be all that is wrong with it
        return f"{found}; before you decide, compare with --rescale {CALIBRATED}"
    what_is_left = "(rejecting some, finding unknown inputs, choosing new data)"
    return f"{found}: only the order of the rows {what_is_left} can justify one here"


def has_posterior(prediction: Prediction) -> bool:
    """Not the network alone, and not one variance for all rows."""
    return prediction.method not in (MAP, TEMPERATURE) and not prediction.method.startswith("constant")


def _worse_than_map(posteriors: Sequence[_Judged], network: _Judged) -> list[str]:
    gaps = [(each, *network.better_by(each)) for each in posteriors]
    worse = sorted((gap for gap in gaps if gap[2] > CLEAR), key=lambda gap: -gap[1])
    if not worse:
        return []
    named = ", ".join(f"{each.prediction.name} by {gain:.3g}" for each, gain, _ in worse[:MOST_NAMED])
    more = f" and {len(worse) - MOST_NAMED} more" if len(worse) > MOST_NAMED else ""
    calibrated = all(each.prediction.calibration is not None for each, _, _ in worse)
    remedy = "" if calibrated else f"; fit the size of the variances with --rescale {CALIBRATED}"
    return [f"worse than the network alone (map, nll {network.nll:.4g}): {named}{more}{remedy}"]


def _best(best: _Judged, simple: Sequence[_Judged]) -> str:
    return f"best posterior by nll: {best.prediction.name}, {best.nll:.4g}; " + ", ".join(
        f"{each.prediction.name} {each.nll:.4g} ({_in_words(*best.better_by(each))})" for each in simple
    )


def _in_words(gain: float, errors: float) -> str:
    if abs(errors) < CLEAR:
        return f"no clear difference: {abs(errors):.1f} standard errors"
    return f"{'better' if gain > 0 else 'worse'} by {abs(gain):.3g}, {abs(errors):.1f} standard errors"


def _numbers(each: _Judged, network: _Judged) -> dict[str, Any]:
    gain, errors = each.better_by(network)
    found = {"method": each.prediction.method, "k": each.prediction.k, "better_by": gain}
    return {**found, "standard_errors": errors if math.isfinite(errors) else None}

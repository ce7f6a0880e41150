"""How far metrics may be off where the full posterior is known to within intervals: half-widths, by name."""

from collections.abc import Mapping

from ...core.metrics import w2_bounds
from ...core.prediction import Comparison, Prediction


def half_widths(prediction: Prediction, known: Comparison, values: Mapping[str, float | None]) -> dict[str, float]:
    """Of the metrics that compare with the full posterior, and of its own row; the values are known already.

    For each metric the true value lies within ± its half-width for any full posterior within the bounds. `ipv` of the
    full posterior comes from a sample of the training rows: what depends on it holds with a probability of 95 %.
    """
    if known.std_bounds is None or known.std_full is None:
        return {}
    found = _of_ipv(prediction, known, values)
    low, high = known.std_bounds
    if prediction.std_bounds is not None:  # the full posterior itself, whose w2 is 0 by definition
        return {"mean_std": _far(float(prediction.std.mean()), float(low.mean()), float(high.mean())), **found}
    least, most = w2_bounds(prediction.common_std, low, high)
    found |= _within(values, "w2", least, most)
    if float(low.mean()) > 0:
        found |= _within(values, "w2_relative", least / float(high.mean()), most / float(low.mean()))
    noise = known.likelihood.noise(prediction.outputs)
    if noise is not None:
        own, low, high = ((std.square() + noise).sqrt() for std in (prediction.common_std, low, high))
        found |= _within(values, "w2_total", *w2_bounds(own, low, high))
    return found


def _of_ipv(prediction: Prediction, known: Comparison, values: Mapping[str, float | None]) -> dict[str, float]:
    full, off, own = known.of_full.ipv, known.of_full.ipv_half_width, values.get("ipv")
    if full is None or own is None or not off:
        return {}
    if prediction.std_bounds is not None:
        return {"ipv": off}
    found = _within(values, "discrepancy", full - off - own, full + off - own)
    return found | (_within(values, "retained", own / (full + off), own / (full - off)) if full > off else {})


def _within(values: Mapping[str, float | None], name: str, low: float, high: float) -> dict[str, float]:
    value = values.get(name)
    return {} if value is None else {name: _far(value, low, high)}


def _far(value: float, low: float, high: float) -> float:
    return max(high - value, value - low)

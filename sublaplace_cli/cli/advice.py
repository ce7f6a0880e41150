"""The hint for each reason of a numerical error: which flag or spec key helps."""

from ..errors import Reason, SublaplaceError

_RAISE = "raise posterior.prior_precision or posterior.noise_variance"
ADVICE = {
    Reason.NOT_POSITIVE_DEFINITE: "likely causes: (a) non-finite or huge gradients, (b) a prior precision much "
    f"smaller than the data term: {_RAISE}, (c) parameters that are exact copies",
    Reason.ILL_CONDITIONED: f"{_RAISE}, or rescale the model's outputs",
    Reason.SCHUR_COMPLEMENT_LOST: f"{_RAISE}, or choose a smaller k",
    Reason.THEOREM_1_BROKEN: "a larger sub-network can never have a smaller variance, so rounding has taken over: "
    f"{_RAISE}, or use --dtype float64",
    Reason.GRAM_FLOAT32: f"use --gram-dtype float64, or split in place of float32, or {_RAISE}",
    Reason.NO_ROOM_FOR_SUBNET: "lower --k, use fewer training rows (splits.train.n), or raise --memory",
    Reason.NO_ROOM_FOR_FULL: "use --full certified or --full none, use fewer training rows "
    "(splits.train.n), or raise --memory",
    Reason.NO_ROOM_FOR_TUNING: "use fewer training rows (splits.train.n), fewer groups, or raise --memory",
    Reason.LEFT_OUT_NOT_CERTIFIED: f"lower --tolerance, or {_RAISE}",
    Reason.GRADIENT_NOT_FINITE: "look for a division by zero, sqrt(0) or log(0) in that layer, or try --dtype float64",
    Reason.GRADIENTS_DISAGREE: "a custom autograd function whose backward depends on the batch can do that; "
    "try --dtype float64",
    Reason.POOL_TOO_SMALL: "a pool must hold at least k candidates: raise --pool or lower --k",
    Reason.NO_LINEAR_LAYER: "name the parameters yourself: --method 'names:PATTERN'",
    Reason.NOT_ONE_LOGIT: "use task: multiclass, or collapse the classes with "
    "model.wrap: {binary-logodds: {classes: […]}}",
    Reason.NOT_SEVERAL_LOGITS: "use task: binary",
    Reason.OUTPUTS_ARE_SAMPLED: "set posterior.hessian: exact in the spec, or use the test rows: --reference test",
    Reason.OUT_OF_MEMORY: "lower --memory, --k or the number of rows",
}


def hint_of(error: SublaplaceError) -> str | None:
    """The hint of the error if it has one, otherwise the advice for its reason."""
    if error.hint is not None or error.reason is None:
        return error.hint
    return ADVICE[error.reason]

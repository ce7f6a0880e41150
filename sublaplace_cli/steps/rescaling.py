"""`--rescale`, `norm` and `constant`: numbers fitted to the full posterior on left-out training rows."""

from __future__ import annotations

from torch import Tensor

from ..core.omega.row_sums import row_norms
from ..core.posterior.posterior import SubnetPosterior
from ..core.posterior.rescale import Rescale, fit_rescale, fit_scale, left_out_full, left_out_subnet, outside_norms
from .full import full_posterior_of
from .jacobians import precision_of
from .passes import jacobian_of
from .session import Session


def rescale_of(session: Session, posterior: SubnetPosterior) -> Rescale:
    """c and b of a sub-network's posterior, as this run asks for."""
    if session.rescale == "none":
        return Rescale()
    precision = precision_of(session)
    full = left_out_variances(session)
    with session.timed("rescale"):
        own = left_out_subnet(posterior, precision)
        train, S = jacobian_of(session, "train"), posterior.indices
        outside = outside_norms(train, squared_norms(session, "train"), S, session.prior, session.memory)
        return fit_rescale(session.rescale, full, own, outside.reshape(full.shape))


def left_out_variances(session: Session) -> Tensor:
    """Of the full network on each training row, without that row (N, C)."""
    if "left out" not in session.kept:
        posterior = full_posterior_of(session)
        with session.timed("rescale"):
            session.kept["left out"] = left_out_full(posterior)
    return session.kept["left out"]


def squared_norms(session: Session, name: str) -> Tensor:
    """‖g‖² of the rows of a split in the metric V⁻¹ (M·C,)."""
    key = f"norms-{session.split_name(name)}"
    if key not in session.kept:
        with session.timed("predict"):
            session.kept[key] = row_norms(jacobian_of(session, name), session.prior, session.memory)
    return session.kept[key]


def norm_factor(session: Session) -> float:
    """b of the method `norm`: variance = b·‖g‖²."""
    root = fit_scale(_sigma(session), squared_norms(session, "train").sqrt())
    return 0.0 if root is None else root**2


def constant_variance(session: Session) -> float:
    """The one variance of the method `constant`."""
    sigma = _sigma(session)
    return (fit_scale(sigma, sigma.new_ones(sigma.shape)) or 0.0) ** 2


def _sigma(session: Session) -> Tensor:
    return left_out_variances(session).clamp(min=0.0).sqrt().flatten()

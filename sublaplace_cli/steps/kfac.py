"""`kfac`: Kronecker-factored Laplace as a reference, its factors by curvlinops (extra `[kfac]`)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from ..core.posterior.kronecker import Factors, kronecker_freedom, kronecker_variance
from ..errors import UserError
from .inputs import targets_of
from .jacobians import noise_variance
from .passes import jacobian_of
from .session import Session

SUPPORTED = (nn.Linear, nn.Conv2d)
ROWS_PER_BATCH = 128


def require_kfac(session: Session) -> None:
    """What can be known beforehand: the package, a network of modules, one input."""
    if find_spec("curvlinops") is None:
        raise UserError(
            "--method kfac needs a package that is not installed (curvlinops-for-pytorch)",
            hint="pip install 'sublaplace[kfac]'",
        )
    row = session.reader(session.split("train"), 0, 1)
    if not isinstance(row, Tensor):
        raise UserError("--method kfac takes networks with one input tensor, this one has several")
    with torch.no_grad():
        if session.model(row).ndim != 2:
            raise UserError("--method kfac takes networks that return (rows, outputs), this one returns (rows,)")
    if not _supported(session)[0]:
        raise UserError("--method kfac: the network has no nn.Linear or nn.Conv2d with parameters of its own")


def kfac_spread(session: Session) -> tuple[Tensor, float]:
    """Variances on the test rows (M, C), and tr((KFAC + V)⁻¹ KFAC)."""
    layers, left = _supported(session)
    if left:
        shown = ", ".join(left[:5]) + (f" and {len(left) - 5} more" if len(left) > 5 else "")
        session.report.note(f"kfac: {shown} have no Kronecker factors and stay at their prior")
    with session.timed("kfac"):
        factors = _factors(session, layers)
        variance = kronecker_variance(jacobian_of(session, "test"), factors, session.prior, session.memory)
    priors = {q.name: float(session.prior[q.offset]) for q in session.layout.parameters if q.size}
    return variance, kronecker_freedom(factors, priors)


def _supported(session: Session) -> tuple[dict[str, nn.Module], list[str]]:
    """Layers whose trainable parameters are theirs alone, and the names of all other parameters."""
    wanted = {q.name for q in session.layout.parameters}
    shared: dict[int, int] = {}
    for _, tensor in session.model.named_parameters(remove_duplicate=False):
        shared[id(tensor)] = shared.get(id(tensor), 0) + 1
    layers, covered = {}, set()
    for name, module in session.model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        full = {f"{name}.{key}" if name else key for key in own}
        plain = type(module) in SUPPORTED and getattr(module, "groups", 1) == 1
        if plain and full & wanted and all(shared[id(t)] == 1 for t in own.values()):
            layers[name] = module
            covered |= full & wanted
    return layers, sorted(wanted - covered)


def _factors(session: Session, layers: dict[str, nn.Module]) -> dict[str, Factors]:
    from curvlinops import KFACLinearOperator

    loss, scale = _loss(session)
    parameters = [q for layer in layers.values() for q in layer.parameters(recurse=False) if q.requires_grad]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        operator = KFACLinearOperator(
            session.model,
            loss,
            parameters,
            list(_batches(session)),
            check_deterministic=False,
            fisher_type="type-2",
            num_per_example_loss_terms=1,
            num_data=len(session.split("train")),
        )
        operator.compute_kronecker_factors()
    state = operator.state_dict()
    factors = {}
    for name, layer in layers.items():
        if name not in state["gradient_covariances"]:  # it never ran
            continue
        B = state["gradient_covariances"][name].double() * scale
        for key, tensor in layer.named_parameters(recurse=False):
            if tensor.requires_grad:
                A = state["input_covariances"][name].double() if key == "weight" else None
                factors[f"{name}.{key}" if name else key] = Factors(A, B)
    return factors


def _loss(session: Session) -> tuple[nn.Module, float]:
    """A loss whose Hessian is the likelihood's up to a factor, and that factor."""
    if session.task == "regression":
        return nn.MSELoss(reduction="sum"), 0.5 / (noise_variance(session) or 1.0)
    return (nn.BCEWithLogitsLoss if session.task == "binary" else nn.CrossEntropyLoss)(reduction="sum"), 1.0


def _batches(session: Session) -> Iterator[tuple[Tensor, Tensor]]:
    split = session.split("train")
    targets = targets_of(split, session.device)
    assert targets is not None, "the training rows have targets"
    for a in range(0, len(split), ROWS_PER_BATCH):
        x = session.reader(split, a, min(a + ROWS_PER_BATCH, len(split)))
        y = targets[a : a + ROWS_PER_BATCH]
        assert isinstance(x, Tensor), "require_kfac has seen it"
        if session.task == "binary":
            y = y.unsqueeze(1)
        yield x, y if session.task == "multiclass" else y.to(next(session.model.parameters()).dtype)

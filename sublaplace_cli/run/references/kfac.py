"""`kfac`: Kronecker-factored Laplace, its factors by curvlinops (extra `[kfac]`)."""

import warnings
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from ...core.gaussian import Gaussian
from ...core.likelihoods import Likelihood
from ...core.network.layout import Layout
from ...core.posterior.kronecker import Factors, KroneckerPosterior
from ...core.prediction import Prediction
from ...errors import UserError, how_to_install
from ..run import Run
from . import ReferenceInputs

SUPPORTED = (nn.Linear, nn.Conv2d)
ROWS_PER_BATCH = 128


def check(run: Run) -> None:
    """Requirements: the package, a network of modules, one input."""
    if find_spec("curvlinops") is None:
        raise UserError(
            "--method kfac needs a package that is not installed (curvlinops-for-pytorch)",
            hint=how_to_install("kfac"),
        )
    row = run.passes.reader(run.split("train"), 0, 1)
    if not isinstance(row, Tensor):
        raise UserError("--method kfac takes networks with one input tensor, this one has several")
    with torch.no_grad():
        if run.passes.model(row).ndim != 2:
            raise UserError("--method kfac takes networks that return (rows, outputs), this one returns (rows,)")
    if not _supported(run.passes.model, run.layout)[0]:
        raise UserError("--method kfac: the network has no nn.Linear or nn.Conv2d with unshared trainable parameters")


def predict(inputs: ReferenceInputs) -> Prediction:
    problem, run = inputs.problem, inputs.problem.run
    layers, left = _supported(run.passes.model, run.layout)
    if left:
        shown = ", ".join(left[:5]) + (f" and {len(left) - 5} more" if len(left) > 5 else "")
        run.reporter.note(f"kfac: {shown} have no Kronecker factors and stay at their prior")
    with run.store.timed("kfac"):
        likelihood = problem.hyperparameters.likelihood
        factors = _factors(run.passes.model, layers, likelihood, list(_batches(run)))
        posterior = KroneckerPosterior(factors, problem.omega)
        covariance = posterior.covariance(inputs.rows.jacobian)
        freedom = posterior.freedom
    return Prediction(inputs.name, None, Gaussian(inputs.f, covariance), freedom)


class _Weighted(nn.Module):
    """The network with the outputs Wᵀf, W held fixed: its squared error has the curvature of any likelihood."""

    def __init__(self, model: nn.Module, likelihood: Likelihood) -> None:
        super().__init__()
        self.model, self.likelihood = model, likelihood

    def forward(self, x: Tensor) -> Tensor:
        f = self.model(x)
        return torch.einsum("ncd,nc->nd", self.likelihood.root(f.detach()).to(f), f)


def _supported(model: nn.Module, layout: Layout) -> tuple[dict[str, nn.Module], list[str]]:
    """Layers whose trainable parameters no other layer uses, and the names of all other parameters."""
    wanted = {parameter.name for parameter in layout.parameters}
    uses = Counter(id(tensor) for _, tensor in model.named_parameters(remove_duplicate=False))
    layers, covered = {}, set()
    for name, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        full = {f"{name}.{key}" if name else key for key in own}
        plain = type(module) in SUPPORTED and getattr(module, "groups", 1) == 1
        if plain and full & wanted and all(uses[id(tensor)] == 1 for tensor in own.values()):
            layers[name] = module
            covered |= full & wanted
    return layers, sorted(wanted - covered)


def _factors(
    model: nn.Module, layers: dict[str, nn.Module], likelihood: Likelihood, batches: list[tuple[Tensor, Tensor]]
) -> dict[str, Factors]:
    from curvlinops import KFACLinearOperator

    own = [tensor for layer in layers.values() for tensor in layer.parameters(recurse=False) if tensor.requires_grad]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        operator = KFACLinearOperator(
            _Weighted(model, likelihood),
            nn.MSELoss(reduction="sum"),
            own,
            batches,
            check_deterministic=False,
            fisher_type="type-2",
            num_per_example_loss_terms=1,
            num_data=sum(len(x) for x, _ in batches),
        )
        operator.compute_kronecker_factors()
    state = operator.state_dict()
    factors = {}
    for name, layer in layers.items():
        inside = f"model.{name}" if name else "model"
        if inside not in state["gradient_covariances"]:  # it never ran
            continue
        B = 0.5 * state["gradient_covariances"][inside].double()  # the squared error has the Hessian 2
        for key, tensor in layer.named_parameters(recurse=False):
            if tensor.requires_grad:
                A = state["input_covariances"][inside].double() if key == "weight" else None
                factors[f"{name}.{key}" if name else key] = Factors(A, B)
    return factors


def _batches(run: Run) -> Iterator[tuple[Tensor, Tensor]]:
    """The training rows, with zeros for targets: the Hessian of a squared error does not depend on them."""
    split, dtype = run.split("train"), next(run.passes.model.parameters()).dtype
    for a in range(0, len(split), ROWS_PER_BATCH):
        x = run.passes.reader(split, a, min(a + ROWS_PER_BATCH, len(split)))
        assert isinstance(x, Tensor), "check has seen it"
        yield x, torch.zeros(len(x), run.passes.n_outputs, dtype=dtype, device=x.device)

"""Prior precisions and noise variance that the spec leaves open, chosen by the data.

`marglik`: by the Laplace marginal likelihood. `{tune: nll}`: by the predictions on held-out rows. Both use the
full posterior or, in an evaluation of one sub-network or feature map with `--full none`, that one.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from ..catalog import CALIBRATED
from ..core.features.views import EntryView, View, view_of
from ..core.gaussian import Gaussian
from ..core.jacobian.rows import Jacobian
from ..core.linalg import row_products
from ..core.omega.gram import gram
from ..core.omega.row_sums import column_chunks, own_products, weigh_columns
from ..core.posterior.full import full_bytes
from ..core.tuning import marglik, nll
from ..core.tuning.calibration import best_factors, fold_numbers
from ..core.tuning.marglik import Evidence, Optimum, maximise
from ..core.tuning.nll import Spectrum, minimise
from ..errors import Reason, RunError, UserError
from ..files.artifacts.artifact import Artifact
from ..files.spec.splits import TEST
from .choosing.features import first_features
from .choosing.selections import first_selection
from .hyperparameters import Hyperparameters, OpenHyperparameters, settled_by_spec
from .problem import Problem, Rows
from .project import prior_vector
from .run import Run
from .store import Content, Key

NAME = "hyperparameters"
NEARLY_ALL = 0.99  # share of the training rows that are classified correctly


def tune(run: Run, rows: Rows, open_parts: OpenHyperparameters) -> Hyperparameters:
    """The hyperparameters of a run, with the open ones chosen by the data."""
    start = settled_by_spec(run, None)  # open precisions at 1, open noise at the mean square
    tuner = _Tuner(run, rows, open_parts, start, _view(Problem(run, rows, start), open_parts))
    best = run.store.get(Key(NAME, NAME, step="tune"), tuner.best, tuner.read, _content).value
    return tuner.settled(best)


def _view(problem: Problem, open_parts: OpenHyperparameters) -> View | None:
    """What the one posterior of k parameters or features is over, for a unit prior; None for the full posterior."""
    run, compact = problem.run, [choice for choice in problem.run.choices if choice.call.is_compact]
    if run.job.posterior.full != "none" or len(compact) != 1:
        return None
    (choice,) = compact
    if choice.call.own_code or choice.retain is not None:
        return None
    if choice.call.selects:
        return EntryView(first_selection(problem, choice))
    if len(open_parts.globs) > 1:
        message = f"{choice.call.name} sums entries of several tensors, so their precisions cannot be tuned one by one"
        raise UserError(message, hint="tune one number, or leave --full none out: then the full posterior decides")
    unit = torch.ones_like(problem.hyperparameters.prior)
    return view_of(first_features(problem, choice).features, run.layout, unit, run.memory)


def _content(best: Optimum) -> Content:
    numbers = [best.sigma2, best.value, best.start_value, float(best.at_a_bound)]
    tensors = {"alphas": best.alphas, "others": numbers}
    found = {name: torch.tensor(values, dtype=torch.float64) for name, values in tensors.items()}
    return found, {"by_fold": list(best.by_fold)}


def _at_a_bound(alpha: float) -> str:
    """What it means that a prior precision at a bound has the least nll."""
    if alpha > 1:
        return (
            f"the best nll is at the upper bound of the prior precision, {nll.MOST_ALPHA:g}: "
            "on these rows the network predicts best without a posterior"
        )
    return (
        f"the best nll is at the lower bound of the prior precision, {nll.LEAST_ALPHA:g}: "
        "on these rows the widest posterior predicts best; are they like the training rows?"
    )


@dataclass(frozen=True)
class _Tuner:
    run: Run
    rows: Rows
    open_parts: OpenHyperparameters
    start: Hyperparameters
    view: View | None  # what the posterior to tune for is over; None: the full posterior

    def best(self) -> Optimum:
        if self.open_parts.by_nll:
            return self._by_nll()
        parts, sigma2 = self.open_parts, self.start.noise_variance or 1.0
        return maximise(self._evidence(), parts.numbers, sigma2, parts.open, parts.noise_is_open)

    def read(self, artifact: Artifact) -> Optimum | None:
        if len(artifact.meta["by_fold"]) != self._n_folds:
            return None
        sigma2, value, start_value, at_a_bound = artifact.tensor("others", (4,)).tolist()
        alphas = artifact.tensor("alphas", (len(self.open_parts.globs),)).tolist()
        by_fold = tuple(artifact.meta["by_fold"])
        return Optimum(tuple(alphas), sigma2, value, start_value, bool(at_a_bound), by_fold)

    @property
    def _n_folds(self) -> int:
        """Parts of the test rows that are tuned for separately; 0 if other rows are tuned on."""
        return self.run.job.posterior.folds if self.open_parts.by_nll and self.run.held_out == "test" else 0

    def settled(self, best: Optimum) -> Hyperparameters:
        """The best hyperparameters, with how they were found."""
        start, prior_precision = self.start, self.open_parts.prior_precision(best.alphas)
        likelihood = start.likelihood.with_noise(best.sigma2) if self.open_parts.noise_is_open else start.likelihood
        by_fold = tuple(Hyperparameters(alpha, self._prior(alpha), likelihood) for alpha in best.by_fold)
        tuned = self._report(best, prior_precision)
        return Hyperparameters(prior_precision, self._prior(prior_precision), likelihood, tuned, by_fold)

    def _prior(self, prior_precision: Any) -> Tensor:
        run = self.run
        return prior_vector(prior_precision, run.layout, run.project.loaded.path).to(run.device)

    def _report(self, best: Optimum, prior_precision: Any) -> dict[str, Any]:
        """Report the optimum; returns its part of the result."""
        by_nll, start = self.open_parts.by_nll, self.start
        criterion, what = ("nll", f"nll on the {self._held_out}") if by_nll else ("log_evidence", "marginal likelihood")
        bounds = [nll.LEAST_ALPHA, nll.MOST_ALPHA] if by_nll else [marglik.LEAST, marglik.MOST]
        sigma2 = None if start.noise_variance is None else best.sigma2
        shown = ", ".join(f"{alpha:.4g}" for alpha in best.alphas)
        self.run.reporter.note(
            f"{what} of {self._whose}: prior precision {shown}"
            + ("" if sigma2 is None else f", noise variance {sigma2:.4g}")
            + f"; {criterion} {best.start_value:.6g} → {best.value:.6g}"
        )
        if not by_nll:
            self._warn_of_a_perfect_fit()
        if best.at_a_bound:
            self.run.reporter.warn(
                _at_a_bound(best.alphas[0])
                if by_nll
                else "the best log_evidence is at a bound: the data do not determine this number"
            )
        begun = {"prior_precision": 1.0, "noise_variance": start.noise_variance, criterion: best.start_value}
        return {
            "by": f"{what} of {self._whose}",
            "prior_precision": prior_precision,
            "noise_variance": sigma2,
            criterion: best.value,
            "start": begun,
            "bounds": bounds,
            **({"by_fold": list(best.by_fold)} if best.by_fold else {}),
            **({"at_bound": _at_a_bound(best.alphas[0])} if best.at_a_bound and by_nll else {}),
        }

    @property
    def _whose(self) -> str:
        """The posterior that is tuned for, in words."""
        if self.view is None:
            return "the full posterior"
        return "the sub-network" if self.view.has_outside else "the features"

    @property
    def _held_out(self) -> str:
        """The rows to tune on, in words."""
        run = self.run
        of_set = f" of {run.tests[0].name}" if run.held_out == TEST and len(run.tests) > 1 else ""
        return f"{run.held_out} rows{of_set}"

    @property
    def _n_terms(self) -> int:
        """Rows of A."""
        return len(self.run.split("train")) * self.run.passes.over("train").row_outputs

    def _warn_of_a_perfect_fit(self) -> None:
        """Where nearly all training rows are right, the evidence wants ever larger logits, and so a wide prior."""
        outputs, targets = Gaussian.certain(self.rows.train.jacobian.outputs), self.run.targets("train")
        log_p = self.start.likelihood.log_probabilities(outputs)
        if log_p is None or targets is None:
            return
        right = float((log_p.argmax(1) == targets).double().mean())
        if right >= NEARLY_ALL:
            self.run.reporter.warn(
                f"marglik is no guide here: the network classifies {right:.4g} of its {len(targets)} training rows "
                f"correctly. Compare with --rescale {CALIBRATED}"
            )

    def _inside(self) -> Tensor:
        """Mask of the parameters to tune for (p,)."""
        subnet = None if self.view is None or not self.view.has_outside else self.view.indices
        inside = torch.full((self.run.layout.size,), subnet is None, dtype=torch.bool, device=self.run.device)
        if subnet is not None:
            inside[subnet] = True
        return inside

    def _evidence(self) -> Evidence:
        run, globs, likelihood = self.run, self.open_parts.globs, self.start.likelihood
        n_terms = self._n_terms
        self._require_room(len(globs) + 2, n_terms)
        theta = run.layout.flatten(run.passes.model).double()
        inside, group_of, train = self._inside(), self._group_of(), self.rows.train.jacobian
        groups = [(group_of == number) & inside for number in range(len(globs))]
        root = None if self.rows.train.is_sampled else likelihood.kernel_root(train.outputs)
        kernels = [self._kernel(train, group, root) for group in groups]
        if len(kernels) == 1:
            kernels = [torch.linalg.eigvalsh(kernels[0]).clamp(min=0.0)]
        squares = [float(theta[group].square().sum()) for group in groups]
        targets = run.targets("train")
        assert targets is not None, "training rows without targets are refused when the run is opened"
        return Evidence(kernels, squares, n_terms, *likelihood.fit_terms(train.outputs, targets))

    def _group_of(self) -> Tensor:
        """The group number of each parameter: that of the first glob that matches its name."""
        run, globs = self.run, self.open_parts.globs
        groups = torch.zeros(run.layout.size, dtype=torch.int64, device=run.device)
        for parameter in run.layout.parameters:
            groups[parameter.span] = next(i for i, glob in enumerate(globs) if fnmatchcase(parameter.name, glob))
        return groups

    def _kernel(self, left: Jacobian, inside: Tensor, root: Tensor | None) -> Tensor:
        """Gram matrix of rows with the training rows over these parameters, for a unit prior."""
        train = rows = self.rows.train.jacobian
        is_square = left is train
        prior = torch.where(inside, 1.0, torch.inf).to(torch.float64)  # infinite precision leaves a parameter out
        if self.view is not None and not self.view.has_outside:
            rows = self.view.rows(train)
            left, prior = rows if is_square else self.view.rows(left), prior.new_ones(len(self.view.indices))
        K = gram(left, rows, prior, self.run.memory, progress=self.run.reporter.progress)
        if root is not None:
            K = weigh_columns(K, root, in_place=True)
            K = K if not is_square else weigh_columns(K.T.contiguous(), root, in_place=True)
        return K

    def _require_room(self, matrices: int, rows: int) -> None:
        needed, memory = matrices * full_bytes(rows), self.run.memory
        if needed > memory:
            raise RunError(
                f"tuning over {rows} training rows needs about {needed / 2**30:.1f} GiB, more than the "
                f"{memory / 2**30:.1f} GiB allowed",
                reason=Reason.NO_ROOM_FOR_TUNING,
            )

    def _by_nll(self) -> Optimum:
        """The one prior precision whose posterior predicts the held-out rows best."""
        run, likelihood = self.run, self.start.likelihood
        self._require_room(3, self._n_terms)
        held_out, train = self.rows.of(run.held_out).jacobian, self.rows.train.jacobian
        targets = run.targets(run.held_out)
        assert targets is not None, "they were checked before"
        inside, root = self._inside(), None if self.rows.train.is_sampled else likelihood.root(train.outputs)
        K, cross = self._kernel(train, inside, root), self._kernel(held_out, inside, root).T
        if self.view is None:
            products = own_products(held_out, torch.ones_like(self.start.prior), run.memory)
        else:
            chunks = column_chunks(self.view.rows(held_out), self.view.indices, run.memory)
            products = torch.cat([row_products(chunk, run.passes.n_outputs) for _, chunk in chunks])
        spectrum, f = Spectrum.of(K, cross, products), held_out.outputs

        def losses(alpha: float) -> Tensor:
            return likelihood.nll(Gaussian(f, spectrum.covariance(alpha)), targets)

        def loss(alpha: float) -> float:
            found = float(losses(alpha).mean())
            return found if abs(found) < float("inf") else float("inf")

        alpha, value = minimise(loss)
        at_a_bound = not nll.LEAST_ALPHA * 1.01 < alpha < nll.MOST_ALPHA / 1.01
        fold = fold_numbers(len(f), self._n_folds or 1).to(f.device)
        others = [fold != number for number in range(self._n_folds)]
        by_fold = tuple(factor.value for factor in best_factors(losses, others))
        return Optimum((alpha,), self.start.noise_variance or 1.0, value, loss(1.0), at_a_bound, by_fold)

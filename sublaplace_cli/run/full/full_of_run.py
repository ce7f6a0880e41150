"""What methods need of the full posterior, each computed when it is first needed."""

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from ...catalog import FULL
from ...core.jacobian.rows import Jacobian
from ...core.kernels.arithmetic import Arithmetic
from ...core.omega.precision import Precision
from ...core.omega.row_sums import SquaresBeside, own_products
from ...core.posterior.certified.training_rows import FreedomEstimate
from ...core.posterior.full import FullPosterior, fit_full
from ...core.posterior.left_out import LeftOut, left_out
from ...errors import NumericsError, Reason
from ...files.artifacts.artifact import Artifact
from ...files.artifacts.run_folder import file_stem
from ..hyperparameters import Hyperparameters, posterior_facts, warn_if_ill_conditioned
from ..run import Run
from ..store import Content, Key
from .certifier import Certifier


@dataclass(frozen=True)
class FullOfRun:
    """The full posterior with the hyperparameters of one problem."""

    run: Run
    omega: Precision
    hyperparameters: Hyperparameters
    squares: SquaresBeside | None = None  # where square sums are kept that scores will need
    _next_rows: list[Jacobian] = field(default_factory=list)

    def exact_for(self, rows: Jacobian) -> FullPosterior:
        """`exact`, of which the variances at these rows are wanted next: if it is fitted only now, they cost less."""
        self._next_rows[:] = [rows]
        return self.exact

    @cached_property
    def exact(self) -> FullPosterior:
        """Through the Gram matrix of the training rows."""
        store, name, omega = self.run.store, file_stem("posterior", FULL, self.run.layout.size), self.omega

        def read(artifact: Artifact) -> FullPosterior:
            factor = artifact.tensor("factor", (omega.n_rows, omega.n_rows)).to(self.run.device)
            factor = factor.T.contiguous().T  # the memory layout of a fitted factor
            digits = artifact.meta.get("digits")
            used = omega if digits is None else replace(omega, gram_dtype=Arithmetic(digits))
            return FullPosterior(used, factor, artifact.meta["condition"], lambda: artifact.meta["freedom"])

        def write(full: FullPosterior) -> Content | None:
            warn_if_ill_conditioned(self.run.reporter, name, full.condition)
            numbers = {"freedom": full.freedom, "condition": full.condition, **posterior_facts(self.hyperparameters)}
            if digits := full.precision.gram_dtype.digits:
                numbers["digits"] = digits
            return ({"factor": full.factor}, numbers) if store.fits(name, {"factor": full.factor}) else None

        def make() -> FullPosterior:
            full = fit_full(omega, next(iter(self._next_rows), None), self.squares)
            if full.precision.gram_dtype is not omega.gram_dtype:
                self.run.reporter.note(
                    f"the Gram matrix is of {full.precision.gram_dtype.products}: fewer are too few here"
                )
            return full

        return store.get(Key("posterior", name, {}, {"method": FULL}, "full"), make, read, write).value

    @cached_property
    def certifier(self) -> Certifier:
        return Certifier(self.run, self.omega)

    @cached_property
    def freedom(self) -> FreedomEstimate:
        """tr(Ω⁻¹AᵀA)."""
        if not self.run.full_is_certified:
            return FreedomEstimate(self.exact.freedom, 0.0)

        def read(artifact: Artifact) -> FreedomEstimate:
            return FreedomEstimate(*artifact.tensor("numbers", (2,)).tolist())

        def write(found: FreedomEstimate) -> Content:
            return {"numbers": torch.tensor([found.value, found.half_width], dtype=torch.float64)}, {}

        key = Key("freedom", f"freedom-{self.run.job.compute.tolerance:g}", step="full")
        return self.run.store.get(key, lambda: self.certifier.training_rows.freedom, read, write).value

    @cached_property
    def left_out(self) -> LeftOut:
        """Variances at training rows, each without that row."""
        if not self.run.full_is_certified:
            exact = self.exact
            with self.run.store.timed("rescale"):
                return LeftOut(left_out(exact, self.omega))
        found, dropped = self.certifier.training_rows.left_out()
        if not len(found.variances):
            message = "no sampled training row has a certified variance without itself"
            raise NumericsError(message, reason=Reason.LEFT_OUT_NOT_CERTIFIED)
        if dropped:
            self.run.reporter.note(f"{dropped} sampled training rows may determine their own output alone: left out")
        return found

    @cached_property
    def left_out_products(self) -> Tensor:
        """G V⁻¹ Gᵀ of those training rows (n, C, C)."""
        rows = self.left_out.of(self.omega).jacobian
        return own_products(rows, self.hyperparameters.prior, self.run.memory)

"""Float32 passes compared with float64, at a sample of rows and at rows near a kink, and replaced where they differ.

At a kink of an activation the gradient jumps: a pre-activation of 1e-9 that rounding turns into 0 changes a variance by
half. Elsewhere float32 passes are right to about 1e-7.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from .jacobian.capture import Capture, Captured
from .network.forward import Inputs, row_count
from .network.kinks import FunctionWatch, Kinks, ModuleWatch, NearKinks, activation_modules, measured_rounding

MOST_DIFFERENCE = 1e-3  # of a row's gradient in float32 and float64, relative to its norm


def in_float64(capture: Capture) -> Capture:
    """The same passes through a copy of the network in float64."""
    model = copy.deepcopy(capture.model).double()
    layers = tuple(replace(layer, module=model.get_submodule(layer.name)) for layer in capture.layers)
    return replace(capture, model=model, layers=layers)


def relative_differences(found: Captured, exact: Captured) -> Tensor:
    """‖J − J′‖ / max(‖J‖, ‖J′‖) of each row (m,), over all outputs and parameters; 0 where both are 0."""
    difference, sizes = torch.zeros(len(exact.f)).to(exact.f), torch.zeros(2, len(exact.f)).to(exact.f)
    for one, other in zip(found.blocks, exact.blocks, strict=True):
        done = 0
        for piece, true_piece in zip(one.dense_pieces(), other.dense_pieces(), strict=True):
            J, true_J = (part.values.double().flatten(1) for part in (piece, true_piece))
            rows = slice(done, done := done + len(J))
            difference[rows] += (J - true_J).square().sum(1)
            sizes[:, rows] += torch.stack([J.square().sum(1), true_J.square().sum(1)])
    return (difference / sizes.amax(0)).sqrt().nan_to_num(0.0)


@dataclass(frozen=True)
class CheckedPass:
    """Passes in float32 that know which rows are near a kink."""

    capture: Capture
    exact: Capture  # in float64
    kinks: NearKinks
    sample_differences: tuple[float, ...]  # of the rows of the sample
    sample_near: tuple[int, ...] = ()  # numbers in the sample of the rows near a kink, if some row differs
    n_wide: int = 0  # activations that are too wide to be watched

    @classmethod
    def of(
        cls, capture: Capture, exact: Capture, sample: Inputs, exact_sample: Inputs, U: Tensor | None = None
    ) -> Self:
        """Compare both passes on a sample of rows, and measure the rounding of its pre-activations.

        U are the combinations of these rows, if the passes are through combinations of the outputs.
        """
        n_rows, modules = row_count(sample), activation_modules(capture.model)
        seen, exactly_seen = FunctionWatch(n_rows, _keep), FunctionWatch(n_rows, _keep)
        of_modules = ModuleWatch(modules, n_rows, lambda _number, z, kinks: (z.shape, kinks))
        with of_modules:
            captured = capture(sample, check=False, watch=seen, U=U)
        exactly = exact(exact_sample, check=False, watch=exactly_seen, U=U)
        differences = relative_differences(captured, exactly).tolist()
        roundings = measured_rounding(seen.seen, [z for z, _ in exactly_seen.seen])
        sees_all = of_modules.seen == [(z.shape, kinks) for z, kinks in seen.seen]
        kinks = NearKinks(roundings, modules if sees_all else None)
        made = cls(capture, exact, kinks, tuple(differences), n_wide=seen.n_wide)
        return made if max(differences) <= MOST_DIFFERENCE else replace(made, sample_near=tuple(made(sample, U)[1]))

    def __call__(self, inputs: Inputs, U: Tensor | None = None) -> tuple[Captured, list[int]]:
        """A pass in float32, and its rows near a kink."""
        watch = self.kinks.watch(row_count(inputs))
        captured = self.capture(inputs, watch=watch, U=U)
        return captured, self.kinks.rows(watch)

    def corrected(
        self, captured: Captured, rows: Sequence[int], exact_inputs: Inputs, U: Tensor | None = None
    ) -> tuple[Captured, list[int]]:
        """The pass with these rows in float64 where that makes a difference, and the rows where it does.

        U are the combinations of these rows: those of the pass, because others would differ from it without a kink.
        """
        exact = self.exact(exact_inputs, check=False, U=U)
        differs = (relative_differences(captured.some_rows(rows), exact) > MOST_DIFFERENCE).tolist()
        at = [number for number, different in enumerate(differs) if different]
        wrong = [rows[number] for number in at]
        return (captured.with_rows(wrong, exact.some_rows(at)) if wrong else captured), wrong


def _keep(_number: int, z: Tensor, kinks: Kinks) -> tuple[Tensor, Kinks]:
    return z.clone(), kinks

"""Data rows as the network takes them, and its passes over them: outputs and Jacobian blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ... import device as devices
from ...core.jacobian.capture import Capture, Captured, joined_passes
from ...core.network.forward import Inputs, evenly_spaced_numbers, outputs
from ...errors import SublaplaceError, UserError
from ...files.data.datasets import ArrayInputs, Split
from ...reporter import Reporter
from .float64_check import Float64Checks, TwoPrecisions
from .splits import IN_OMEGA

ROWS_PER_FORWARD = 128


@dataclass(frozen=True)
class InputReader:
    """Turns rows of a split into tensors on the device; integers stay integers if the network takes them."""

    device: torch.device
    dtype: torch.dtype
    integers_as_floats: bool

    @classmethod
    def for_model(cls, model: nn.Module, split: Split, device: torch.device) -> InputReader:
        """Try one row: token ids must stay integers, a table of whole numbers must not."""
        dtype = next((parameter.dtype for parameter in model.parameters()), torch.float32)
        as_stored, as_floats = cls(device, dtype, False), cls(device, dtype, True)
        if as_stored._failure(model, split) is None:
            return as_stored
        if isinstance(split.raw, dict) and as_floats._failure(model, split) is not None:
            as_stored.check_row(model, split, "the data")  # the message that names what is wrong with token ids
        as_floats.check_row(model, split, "the data")
        return as_floats

    def check_row(self, model: nn.Module, split: Split, where: str) -> None:
        """Refuse rows that the model cannot take, before any computation; `where` they are is part of the message."""
        failure = self._failure(model, split)
        if failure is None:
            return
        shapes = [str(tuple(tensor.shape)) for tensor in parts_of(self(split, 0, 1))]
        raise UserError(
            [
                f"the model cannot take a row of {where}: {type(failure).__name__}: {failure}",
                f"one row has the shape {' and '.join(shapes)}, with the row axis first",
            ],
            hint="check model.build.args (for an mlp: in = number of input columns), the data columns and transforms "
            "(for texts: data.text.max_length)",
        )

    def _failure(self, model: nn.Module, split: Split) -> Exception | None:
        try:
            with torch.no_grad():
                outputs(model, self(split, 0, 1))
        except SublaplaceError:
            raise
        except Exception as error:  # a user's forward may raise anything
            return error
        return None

    def __call__(self, split: Split, start: int, stop: int) -> Inputs:
        return self._tensors(split.inputs(slice(start, stop)))

    def some(self, split: Split, rows: Sequence[int]) -> Inputs:
        """These rows, by number."""
        return self._tensors(split.inputs(list(rows)))

    def _tensors(self, raw: ArrayInputs) -> Inputs:
        if isinstance(raw, dict):
            return {name: self._tensor(array) for name, array in raw.items()}
        if isinstance(raw, tuple):
            return tuple(self._tensor(array) for array in raw)
        return self._tensor(raw)

    def evenly_spaced(self, split: Split, count: int) -> Inputs:
        return self.some(split, evenly_spaced_numbers(len(split), count))

    def outputs(self, model: nn.Module, split: Split) -> Tensor:
        """f of all rows of a split (N, C) float64, by plain forward passes."""
        starts = range(0, len(split), ROWS_PER_FORWARD)
        with torch.no_grad():
            parts = [outputs(model, self(split, a, min(a + ROWS_PER_FORWARD, len(split)))) for a in starts]
        return torch.cat(parts).double()

    def _tensor(self, array: np.ndarray) -> Tensor:
        keep_integer = array.dtype.kind in "iub" and not self.integers_as_floats
        kind = np.int64 if keep_integer and array.dtype.kind != "b" else array.dtype
        tensor = torch.from_numpy(np.array(array, dtype=kind))  # a copy: the rows of the split stay unchanged
        return tensor.to(self.device) if keep_integer else tensor.to(device=self.device, dtype=self.dtype)


def parts_of(inputs: Any) -> list[Any]:
    """The tensors or arrays of a network's input: one, or those of a dict or tuple."""
    return list(inputs.values()) if isinstance(inputs, dict) else [*inputs] if isinstance(inputs, tuple) else [inputs]


def hessian_of(row_outputs: int | None, n_outputs: int) -> str:
    """The output Hessian of training rows with so many combinations of the outputs; None: with all outputs."""
    return "exact" if row_outputs in (None, n_outputs) else f"sampled: {row_outputs}"


class Passes:
    """Reads rows and differentiates the network at them."""

    def __init__(self, model: nn.Module, reader: InputReader, capture: Capture, reporter: Reporter) -> None:
        self.model, self.reader, self.capture, self.reporter = model, reader, capture, reporter
        network = TwoPrecisions(capture, reader.some, replace(reader, dtype=torch.float64).some)
        self.float64_checks = Float64Checks(network, reporter)
        self.sampled: Passes | None = None  # for the rows of Ω, if they need not have all outputs
        self.most_rows = 2**62  # per pass; halved whenever memory runs out

    @property
    def n_outputs(self) -> int:
        return self.capture.n_outputs

    @property
    def row_outputs(self) -> int:
        """Rows of the Jacobian per row of the data: all outputs, or combinations of them."""
        return self.capture.templates[0].n_outputs

    def over(self, name: str) -> Passes:
        """The passes over the rows that are stored under this name: those of Ω and the scores may be sampled."""
        return self.sampled if self.sampled is not None and name in IN_OMEGA else self

    @property
    def hessian(self) -> str:
        """How the output Hessian of the training rows is computed."""
        return hessian_of(self.over("train").row_outputs, self.n_outputs)

    def combinations(self, split: Split, start: int, stop: int) -> Tensor | None:
        """U (m, C, s) whose Uᵀf are differentiated; None for f itself."""
        return None

    def rows_per_pass(self, split: Split) -> int:
        return self.capture.rows_of_pass(len(split))

    def __call__(self, split: Split, start: int, stop: int) -> Captured:
        while True:
            rows = min(self.most_rows, stop - start)
            try:
                cuts = [(a, min(a + rows, stop)) for a in range(start, stop, rows)]
                return joined_passes([self._pass(split, *cut) for cut in cuts])
            except devices.OUT_OF_MEMORY:
                if rows == 1:
                    raise
            # Not inside the handler: the exception keeps the tensors of the failed pass alive.
            devices.release(self.reader.device)
            self.most_rows = rows // 2
            self.reporter.note(
                f"out of memory on {self.reader.device}: continuing with passes of {rows // 2} rows instead of {rows}"
            )

    def _pass(self, split: Split, start: int, stop: int) -> Captured:
        check, inputs = self.float64_checks.of(split), self.reader(split, start, stop)
        U = self.combinations(split, start, stop)
        return self.capture(inputs, U=U) if check is None else check.captured(inputs, start, U)

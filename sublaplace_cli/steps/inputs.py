"""Data rows as the network wants them, and the checks that need both of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ..core.network.forward import Inputs, outputs
from ..core.network.layout import Layout
from ..errors import SublaplaceError, UserError, suggestion
from ..files.data.datasets import Split

ROWS_PER_FORWARD = 128
MARGLIK = "marglik"  # in place of a number: by marginal likelihood


@dataclass(frozen=True)
class InputReader:
    """Turns rows of a split into tensors on the device; integers stay integers where the network takes them."""

    device: torch.device
    dtype: torch.dtype
    integers_as_floats: bool

    @classmethod
    def for_model(cls, model: nn.Module, split: Split, device: torch.device) -> InputReader:
        """Try one row: token ids must stay integers, a table of whole numbers must not."""
        dtype = next((q.dtype for q in model.parameters()), torch.float32)
        as_stored, as_floats = cls(device, dtype, False), cls(device, dtype, True)
        failures = []
        for reader in (as_stored, as_floats):
            try:
                with torch.no_grad():
                    outputs(model, reader(split, 0, 1))
                return reader
            except SublaplaceError:
                raise
            except Exception as error:  # whatever a user's forward raises: it is told below
                failures.append(error)
        shapes = _shapes(as_floats(split, 0, 1))
        raise UserError(
            f"the model cannot take a row of the data: {type(failures[-1]).__name__}: {failures[-1]}\n"
            f"one row has the shape {shapes}, with the row axis first",
            hint="check model.build.args (for an mlp: in = number of input columns), the data columns and transforms",
        )

    def __call__(self, split: Split, start: int, stop: int) -> Inputs:
        raw = split.inputs(start, stop)
        if isinstance(raw, dict):
            return {name: self._tensor(array) for name, array in raw.items()}
        if isinstance(raw, tuple):
            return tuple(self._tensor(array) for array in raw)
        return self._tensor(raw)

    def evenly_spaced(self, split: Split, count: int) -> Inputs:
        """About this many rows, evenly spread over the split."""
        step = max(1, len(split) // count)
        rows = [self(split, i, i + 1) for i in range(0, len(split), step)][:count]
        if isinstance(rows[0], dict):
            return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}  # type: ignore[index,call-overload]
        if isinstance(rows[0], tuple):
            return tuple(torch.cat(parts) for parts in zip(*rows, strict=True))
        return torch.cat(rows)  # type: ignore[arg-type]

    def outputs(self, model: nn.Module, split: Split) -> Tensor:
        """f of all rows of a split (N, C) float64, by plain forward passes."""
        starts = range(0, len(split), ROWS_PER_FORWARD)
        with torch.no_grad():
            parts = [outputs(model, self(split, a, min(a + ROWS_PER_FORWARD, len(split)))) for a in starts]
        return torch.cat(parts).double()

    def _tensor(self, array: np.ndarray) -> Tensor:
        keep_integer = array.dtype.kind in "iub" and not self.integers_as_floats
        kind = np.int64 if keep_integer and array.dtype.kind != "b" else array.dtype
        tensor = torch.from_numpy(np.array(array, dtype=kind))  # a copy: the split's own rows stay untouched
        return tensor.to(self.device) if keep_integer else tensor.to(device=self.device, dtype=self.dtype)


def check_targets(task: str, n_outputs: int, splits: Mapping[str, Split]) -> None:
    """The likelihood, the network's outputs and the targets must fit together."""
    if task == "binary" and n_outputs != 1:
        raise UserError(
            f"task: binary needs one output (a logit), the model has {n_outputs}",
            hint="use task: multiclass, or collapse the classes with model.wrap: {binary-logodds: {classes: […]}}",
        )
    if task == "multiclass" and n_outputs < 2:
        raise UserError("task: multiclass needs at least two outputs, the model has one", hint="use task: binary")
    for name, split in splits.items():
        if split.targets is None:
            if name == "train":
                raise UserError(
                    "the training rows have no targets",
                    hint="name them with data.columns.target or data.arrays.target",
                )
        elif task == "regression" and split.targets.shape[1] != n_outputs:
            raise UserError(
                f"the {name} rows have {split.targets.shape[1]} target columns, the model has {n_outputs} outputs"
            )
        elif task == "multiclass" and int(split.targets.max()) >= n_outputs:
            row = int(split.rows[int(split.targets.argmax())])
            raise UserError(
                f"class label {int(split.targets.max())} (row {row} of the {name} data) is out of range: the model "
                f"has {n_outputs} outputs, so labels run from 0 to {n_outputs - 1}"
            )


def targets_of(split: Split, device: torch.device) -> Tensor | None:
    """Targets as a tensor: (N, C) float64 for regression, (N,) int64 for classification."""
    return None if split.targets is None else torch.from_numpy(np.array(split.targets)).to(device)


def prior_vector(prior: object, layout: Layout, spec: Path) -> Tensor:
    """v (p,): one number for all, or for each parameter that of the first glob that matches its name.

    What is left open starts at 1.
    """
    if not layout.parameters:
        raise UserError("the model has no trainable parameter", hint="check requires_grad in the code that builds it")
    v = torch.empty(layout.size, dtype=torch.float64)
    if not isinstance(prior, Mapping):
        return v.fill_(_number(prior))
    names = [q.name for q in layout.parameters]
    for pattern in prior:
        if not layout.matching(pattern):
            raise UserError(
                f"{spec}: posterior.prior_precision: '{pattern}' matches no trainable parameter",
                hint=suggestion(pattern, names),
            )
    for q in layout.parameters:
        found = [value for pattern, value in prior.items() if fnmatchcase(q.name, pattern)]
        if not found:
            raise UserError(
                f"{spec}: posterior.prior_precision: no pattern matches parameter '{q.name}'",
                hint="end the mapping with '*': NUMBER for all the others",
            )
        v[q.span] = _number(found[0])
    return v


def _number(prior: object) -> float:
    return float(prior) if isinstance(prior, (int, float)) else 1.0


def _shapes(inputs: Inputs) -> str:
    tensors = inputs.values() if isinstance(inputs, dict) else inputs if isinstance(inputs, tuple) else (inputs,)
    return " and ".join(str(tuple(tensor.shape)) for tensor in tensors)

"""The oracle of the coverage metric: another network's outputs at the test rows, or a file of them."""

import numpy as np
import torch
from torch import Tensor

from ...errors import UserError
from ...files.data.datasets import read_matrix
from ...files.spec.models import OracleSpec
from ..rows.input_reader import InputReader
from ..run import Run


def oracle_outputs(run: Run) -> Tensor | None:
    """f of the oracle at the test rows (M, C) float64; None if the spec names none."""
    oracle = run.project.spec.oracle
    if oracle is None:
        return None
    f = _from_network(run, oracle) if oracle.predictions is None else _from_file(run, oracle.predictions, oracle.array)
    expected = (len(run.split("test")), run.passes.n_outputs)
    if tuple(f.shape) != expected:
        raise UserError(
            f"oracle: its outputs have the shape {tuple(f.shape)}, expected {expected} (test rows, outputs)",
            hint="for a ten-class oracle of a binary task add oracle.wrap: {binary-logodds: {classes: […]}}",
        )
    if not bool(torch.isfinite(f).all()):
        raise UserError("oracle: its outputs are not all finite")
    return f.to(run.device)


def _from_network(run: Run, oracle: OracleSpec) -> Tensor:
    network = run.project.load_network(oracle.as_model(run.project.spec.model), "oracle")
    model, split = network.module.eval().to(device=run.device, dtype=run.dtype), run.split("test")
    return InputReader.for_model(model, split, run.device).outputs(model, split)


def _from_file(run: Run, predictions: str, array: str | None) -> Tensor:
    field, split = "oracle.predictions", run.split("test")
    path = run.project.resolve(predictions, field)
    values = np.asarray(read_matrix(path, array, field, run.memory), dtype=np.float64)
    values = values.reshape(len(values), -1)
    if len(values) != len(split) and len(values) == split.source_rows:
        run.reporter.note(f"oracle: {path.name} has all {len(values)} rows of the test file; using those of the split")
        values = values[split.rows]
    return torch.from_numpy(values)

"""The oracle of the coverage metric: another network's outputs on the test rows, or a file of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from ..files.data.matrix import read_matrix
from ..files.networks.networks import load_network
from .inputs import InputReader
from .session import Session


def oracle_outputs(session: Session) -> Tensor | None:
    """f of the oracle at the test rows (M, C) float64; None where the spec names none."""
    oracle = session.spec.spec.oracle
    if oracle is None:
        return None
    found = _from_file(session) if oracle.predictions is not None else _from_network(session)
    expected = (len(session.split("test")), session.n_outputs)
    if tuple(found.shape) != expected:
        raise UserError(
            f"oracle: its outputs have the shape {tuple(found.shape)}, expected {expected} (test rows, outputs)",
            hint="for a ten-class oracle of a binary task add oracle.wrap: {binary-logodds: {classes: […]}}",
        )
    if not bool(torch.isfinite(found).all()):
        raise UserError("oracle: its outputs are not all finite")
    return found.to(session.device)


def _from_network(session: Session) -> Tensor:
    spec, model_spec = session.spec.spec.oracle, session.spec.spec.model
    assert spec is not None, "the caller has seen it"
    network = load_network(
        spec.build if spec.build is not None else model_spec.build,
        spec.weights,
        spec.wrap if "wrap" in spec.model_fields_set else model_spec.wrap,
        resolve=lambda value, field: session.spec.resolve(value, field, session.settings.allow_outside),
        field="oracle",
        allow_code=session.settings.allow_code,
        spec_folder=session.spec.folder,
        memory=session.memory,
    )
    model = network.module.eval().to(device=session.device, dtype=session.dtype)
    split = session.split("test")
    return InputReader.for_model(model, split, session.device).outputs(model, split)


def _from_file(session: Session) -> Tensor:
    spec, split = session.spec.spec.oracle, session.split("test")
    assert spec is not None, "the caller has seen it"
    assert spec.predictions is not None, "the caller has seen it"
    path: Path = session.spec.resolve(spec.predictions, "oracle.predictions", session.settings.allow_outside)
    values = np.asarray(read_matrix(path, spec.array, "oracle.predictions", session.memory), dtype=np.float64)
    values = values.reshape(len(values), -1)
    if len(values) != len(split) and len(values) == split.source_rows:
        session.report.note(
            f"oracle: {path.name} covers all {len(values)} rows of the test file; taking the chosen ones"
        )
        values = values[split.rows]
    return torch.from_numpy(values)

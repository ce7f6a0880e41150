"""Files that the command line or the spec names for reading: a selection made elsewhere, and the oracle."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..core.selectors import checked
from ..errors import UserError
from ..files.artifacts.artifact import open_artifact
from ..files.artifacts.atomic import digest_of
from ..files.data.arrays import npy_header
from ..files.data.datasets import read_matrix
from ..files.reading import reading
from ..json_files import read_bounded
from .project import parameter_table
from .rows.passes import InputReader
from .run import Run
from .selections import Chosen

INDEX_BYTES = 64  # of one index in a file, at most; 2²⁰ bytes are always allowed


def read_indices(run: Run, path: Path) -> Chosen:
    """An indices artifact of the same weights and data, or a plain list of numbers."""
    if not path.exists():
        raise UserError(f"--indices {path}: no such file")
    if path.suffix == ".safetensors":
        return _from_artifact(run, path)
    hint = "expected an indices-*.safetensors, a .npy, or one flat index per line"
    with reading(f"--indices {path}", "it cannot be read", hint):
        content = read_bounded(path, max(2**20, INDEX_BYTES * run.layout.size))
        numbers = _npy(content, f"--indices {path}") if path.suffix == ".npy" else _whole_numbers(content)
        indices = torch.from_numpy(numbers.astype(np.int64, casting="same_kind"))
    indices = checked(indices, run.layout.size, str(path)).to(run.device)
    digest = digest_of(indices.tolist())
    return Chosen(f"indices-{digest[:8]}", indices, digest)


def _whole_numbers(content: bytes) -> np.ndarray:
    """The numbers of a text, without comments (# …). Not by numpy.loadtxt: some characters make it end in a crash."""
    words = b" ".join(line.partition(b"#")[0] for line in content.splitlines()).split()
    wrong = next((word for word in words if not word.lstrip(b"+-").isdigit()), None)
    if wrong is not None:
        raise ValueError(f"{wrong[:40].decode(errors='replace')!r} is not a whole number")
    return np.array([int(word) for word in words], dtype=np.int64)


def _npy(content: bytes, where: str) -> np.ndarray:
    """The vector of integers in a .npy file."""
    header = npy_header(content, len(content), where)
    if len(header.shape) != 1 or header.dtype.kind not in "iu":
        raise ValueError(f"expected a vector of integers, its header declares {header.dtype} of shape {header.shape}")
    return np.frombuffer(content, header.dtype, offset=header.offset).copy()


def _from_artifact(run: Run, path: Path) -> Chosen:
    artifact = open_artifact(path, "indices")
    for what in ("weights", "data"):
        if artifact.meta[f"{what}_sha256"] != run.store.identity[what]:
            raise UserError(
                f"--indices {path}: it was chosen for other {what}",
                hint="choose again with: sublaplace select; or save the flat indices as a plain .npy or .txt file",
            )
    if artifact.meta["parameters"] != parameter_table(run.layout):
        raise UserError(f"--indices {path}: its parameter table is not that of this model")
    indices = checked(artifact.tensor("indices"), run.layout.size, str(path)).to(run.device)
    return Chosen(artifact.meta["method"], indices, artifact.digest)


def oracle_outputs(run: Run) -> Tensor | None:
    """What the oracle predicts for the targets of the test rows (M, D) float64; None if the spec names none."""
    oracle = run.project.spec.oracle
    if oracle is None:
        return None
    split = run.split("test")
    if oracle.predictions is not None:
        f = _from_file(run, oracle.predictions, oracle.array)
    else:
        network = run.project.load_network(oracle.as_model(run.project.spec.model), "oracle")
        model = network.module.eval().to(device=run.device, dtype=run.dtype)
        f = InputReader.for_model(model, split, run.device).outputs(model, split)
    expected = (len(split), run.passes.n_outputs)
    means = run.unit_likelihood.means(run.passes.n_outputs)
    n_means = len(range(run.passes.n_outputs)[means])
    if tuple(f.shape) not in (expected, (len(split), n_means)):
        raise UserError(
            f"oracle: its outputs have the shape {tuple(f.shape)}, expected {expected} (test rows, outputs)",
            hint="for a ten-class oracle of a binary task add oracle.wrap: {binary-logodds: {classes: […]}}",
        )
    if not bool(torch.isfinite(f).all()):
        raise UserError("oracle: its outputs are not all finite")
    return (f if f.shape[1] == n_means else f[:, means]).to(run.device)


def _from_file(run: Run, predictions: str, array: str | None) -> Tensor:
    field, split = "oracle.predictions", run.split("test")
    path = run.project.resolve(predictions, field)
    values = np.asarray(read_matrix(path, array, field, run.memory), dtype=np.float64)
    values = values.reshape(len(values), -1)
    if len(values) != len(split) and len(values) == split.source_rows:
        run.reporter.note(f"oracle: {path.name} has all {len(values)} rows of the test file; using those of the split")
        values = values[split.rows]
    return torch.from_numpy(values)

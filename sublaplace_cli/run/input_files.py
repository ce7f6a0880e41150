"""Files that the command line or the spec names for reading: a selection made elsewhere, and the oracle."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..core.features.subset import Subset
from ..core.selectors import checked
from ..errors import UserError
from ..files.artifacts.artifact import open_artifact
from ..files.artifacts.atomic import digest_of
from ..files.data.arrays import npy_header
from ..files.data.datasets import Split, read_matrix
from ..files.reading import reading
from ..files.spec.models import OracleSpec
from ..json_files import read_bounded
from .choosing.chosen import Chosen
from .identity.network import require_same_function
from .identity.run_identity import parameter_table
from .rows.passes import InputReader
from .rows.test_sets import TestSet
from .run import Run

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
    return Chosen(f"indices-{digest[:8]}", Subset(indices), digest)


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
    row = run.passes.reader(run.split("train"), 0, 1)
    require_same_function(artifact, run.passes.model, row, f"--indices {path}")
    return Chosen(artifact.meta["method"], Subset(indices), artifact.digest)


@dataclass(frozen=True)
class OracleOutputs:
    """What the oracle predicts for the targets of the rows of a test set, or why it predicts nothing."""

    f: Tensor | None  # (M, D) float64
    missing: str = ""


def oracle_outputs(run: Run, test: TestSet) -> OracleOutputs:
    """By the network or the file that the spec names, if it names one."""
    oracle = run.project.spec.oracle
    if oracle is None:
        return OracleOutputs(None, "no oracle in the spec")
    if oracle.predictions is not None and (run.job.project.test or test != run.tests[0]):
        whose = "test rows" if run.job.project.test else f"rows of {run.tests[0].name}"
        return OracleOutputs(None, f"oracle.predictions of the spec are about its {whose}")
    return OracleOutputs(_oracle_outputs(run, oracle, run.split(test.split)))


def _oracle_outputs(run: Run, oracle: OracleSpec, split: Split) -> Tensor:
    if oracle.predictions is not None:
        f = _from_file(run, oracle.predictions, oracle.array, split)
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


def _from_file(run: Run, predictions: str, array: str | None, split: Split) -> Tensor:
    field = "oracle.predictions"
    path = run.project.resolve(predictions, field)
    values = np.asarray(read_matrix(path, array, field, run.memory), dtype=np.float64)
    values = values.reshape(len(values), -1)
    if len(values) != len(split) and len(values) == split.source_rows:
        run.reporter.note(f"oracle: {path.name} has all {len(values)} rows of the test file; using those of the split")
        values = values[split.rows]
    return torch.from_numpy(values)

"""Checks of a network, and what identifies it: its weights and function, but neither names of files nor comments."""

from dataclasses import asdict, dataclass
from pathlib import Path

from torch import nn

from ...catalog import TASKS
from ...core.network.forward import Inputs
from ...core.network.layout import Layout
from ...core.network.logits import doubt_about_logits
from ...core.network.probe import Probe, rounded_outputs
from ...core.workers import LEADER, WorkerGroup
from ...errors import UserError
from ...files.artifacts.artifact import Artifact
from ...files.artifacts.atomic import digest_of, digest_of_files
from ...reporter import Reporter

LOGIT_ROWS = 64  # evenly spaced, on which a classifier's outputs are looked at


@dataclass(frozen=True)
class NetworkIdentity:
    """Equal for two networks with the same parameters, buffers and function."""

    weights: str  # digest of parameters and buffers
    function: str | None  # digest of what the code computes; None for a built-in architecture: the spec names it
    probe: Probe | None  # the numbers behind `function`


@dataclass(frozen=True)
class NetworkFacts:
    """Facts about the network that need no derivatives."""

    layout: Layout
    last_linear: tuple[str, ...]  # parameters of the last nn.Linear that runs
    files: tuple[Path, ...]  # all that the run reads
    defined_by: tuple[Path, ...]  # those of the network itself
    identity: NetworkIdentity


def identify(
    weights: str, model: nn.Module, sample: Inputs, files: list[Path], workers: WorkerGroup
) -> NetworkIdentity:
    """Of a network that code, an exported graph or a folder defines; all workers take the numbers of the leader."""
    probe = Probe.of(model, sample)
    records = workers.exchange(None if probe is None else asdict(probe))
    if records[LEADER] is None:  # it cannot be tried out: then every change of its files counts
        return NetworkIdentity(weights, digest_of_files(files), None)
    leading = Probe.from_record(records[LEADER])
    for rank, record in enumerate(records):
        difference = "no outputs" if record is None else Probe.from_record(record).difference(leading)
        if difference is not None:
            hint = "all ranks need the same code, and the same version of torch"
            raise UserError(f"the network of rank {rank} gives {difference} than that of rank {LEADER}", hint=hint)
    parameters = [part.name for part in Layout.of(model).parameters]
    settings = [file for file in files if file.suffix == ".json"]  # of a folder: every change of them counts
    # Code of its own may do to some rows what made-up ones do not show; that of a folder is a package's.
    more = [digest_of_files(settings)] if settings else [workers.exchange(rounded_outputs(model, sample))[LEADER]]
    return NetworkIdentity(weights, digest_of([parameters, *leading.rounded(), *more]), leading)


def require_same_function(artifact: Artifact, model: nn.Module, row: Inputs, where: str) -> None:
    """Refuse an artifact of a network that has the same weights and computes something else."""
    record = artifact.meta.get("probe")
    if record is None:
        return
    known = Probe.from_record(record)
    if not known.fits(row):
        raise UserError(f"{where}: it was made for rows of another shape", hint="check the data section of the spec")
    found = Probe.within(model, row, known.ranges)
    difference = "no finite outputs" if found is None else found.difference(known)
    if difference is not None:
        raise UserError(
            f"{where}: the weights are those that it was made for, but the network gives {difference}",
            hint="was the code of the network changed? Undo that, or fit again",
        )


def check_logits(task: str, model: nn.Module, rows: Inputs, reporter: Reporter) -> None:
    """Refuse probabilities where logits are needed, or warn of what looks like them."""
    doubt = doubt_about_logits(model, rows) if TASKS[task].labels else None
    if doubt is not None and doubt.is_certain:
        raise UserError(doubt.message, hint=doubt.hint)
    if doubt is not None:
        reporter.warn(f"{doubt.message}; if they are probabilities, all numbers here are wrong: {doubt.hint}")

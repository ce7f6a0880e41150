"""Files that the command line names for writing: overwritten only with --overwrite, and never an input of the run."""

import csv
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ..core.prediction import Comparison, Prediction
from ..core.tuning.conformal import Intervals, Sets
from ..errors import UserError
from ..files.artifacts.artifact import write_artifact
from ..files.artifacts.atomic import PART_SUFFIX, write_text
from ..files.artifacts.run_folder import LOCK_NAME, MANIFEST
from ..files.data.datasets import Split
from ..plain_text import csv_cell
from .job import Job
from .run import Run
from .store import Key

Line = dict[str, Any]  # of a file of predictions


def check_outputs(job: Job) -> None:
    """No file exists yet, unless --overwrite is given; its folder exists; no two are the same."""
    seen: set[Path] = set()
    for option, path in job.outputs.named():
        try:
            exists, resolved = path.exists(), path.resolve()
        except OSError as error:
            raise UserError(f"{option} {path}: {error.strerror}") from error
        if resolved in seen:
            raise UserError(f"{option} {path}: two results cannot go to the same file")
        if path.is_dir():
            raise UserError(f"{option} {path} is a folder, expected a file name")
        if exists and not path.is_file():
            raise UserError(f"{option} {path} is not a regular file", hint="for stdout, leave the option out")
        if exists and not job.outputs.overwrite:
            raise UserError(f"{option} {path}: the file exists already", hint="choose another name, or add --overwrite")
        if not path.absolute().parent.is_dir():
            raise UserError(f"{option} {path}: there is no folder {path.absolute().parent}")
        if not job.compute.dry_run:
            _try_to_write(option, path)
        seen.add(resolved)


def _try_to_write(option: str, path: Path) -> None:
    """Fail now, not after the work."""
    trial = path.with_name(f".{path.name}.{os.getpid()}{PART_SUFFIX}")
    try:
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise UserError(f"{option} {path}: it cannot be written here: {error.strerror}") from error


def protect_inputs(run: Run) -> None:
    """Refuse to overwrite an input of the run or a file of a run folder, even with --overwrite."""
    job = run.job
    named = (job.outputs.baseline, job.posterior.posterior, job.posterior.indices)
    inputs = {path.resolve() for path in (*run.network.files, *named) if path is not None}
    for option, path in job.outputs.named():
        if path.resolve() in inputs:
            raise UserError(f"{option} {path}: this file is an input of the run", hint="choose another name")
        if _belongs_to_run_folder(path.resolve(), run.store.path.resolve()):
            message = f"{option} {path}: this file of a run folder is written by the run itself"
            raise UserError(message, hint="choose another name or folder")


def _belongs_to_run_folder(path: Path, own_folder: Path) -> bool:
    known = path.name in (MANIFEST, LOCK_NAME, ".gitignore", "evaluation.json") or path.suffix == ".safetensors"
    is_run_folder = all((path.parent / name).exists() for name in (MANIFEST, LOCK_NAME))
    return known and (is_run_folder or path.parent == own_folder)


def check_predictions(path: Path, n_predictions: int, n_sets: int = 1) -> None:
    """A safetensors file holds one method at one k of one run; the text formats have a column for them."""
    if path.suffix == ".safetensors" and n_predictions != 1:
        raise UserError(
            f"--predictions {path}: a .safetensors file holds one method at one k, {n_predictions} were asked for",
            hint="use .csv or .jsonl, which name method and k on every line",
        )
    if path.suffix == ".safetensors" and n_sets != 1:
        raise UserError(
            f"--predictions {path}: a .safetensors file holds one set of test rows, there are {n_sets}",
            hint="use .csv or .jsonl, which name the set on every line",
        )


def write_lines(path: Path, lines: list[Line]) -> None:
    """As csv or jsonl, by suffix."""
    if path.suffix == ".jsonl":
        text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
    else:
        out = io.StringIO()
        writer = csv.DictWriter(out, fieldnames=list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: csv_cell(value) for name, value in line.items()} for line in lines)
        text = out.getvalue()
    write_text(path, text)


def write_tensors(path: Path, run: Run, prediction: Prediction, known: Comparison) -> None:
    """As safetensors, with the metadata of an artifact."""
    tensors = {"mean": prediction.mean, "std": prediction.std, **_own_noise(prediction, known)}
    samples = None if prediction.samples is None else prediction.samples[:, :, prediction.means].contiguous()
    optional = {"std_full": known.std_full, "target": known.targets, "samples": samples}
    tensors |= {name: tensor for name, tensor in optional.items() if tensor is not None}
    tensors |= known.likelihood.row_columns(prediction.outputs)
    bounds, std_conformal, sets = _regions(prediction, known)
    tensors |= {**bounds, **std_conformal, **({} if sets is None else {"in_set": sets.members.long()})}
    key = Key("predictions", path.name, {}, {"method": prediction.method, "k": prediction.k})
    write_artifact(path, key.kind, run.store.describe(key, run.class_details), tensors)


def _own_noise(prediction: Prediction, known: Comparison) -> dict[str, torch.Tensor]:
    """Standard deviations of the noise and of a new observation, if they differ from row to row."""
    noise = known.likelihood.noise(prediction.outputs)
    if noise is None or known.likelihood.noise_variance is not None:
        return {}
    return {"noise_std": noise.sqrt(), "total_std": (prediction.std.square() + noise).sqrt()}


def _regions(
    prediction: Prediction, known: Comparison
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], Sets | None]:
    """Conformal bounds of each target, and the standard deviation that belongs to them; or sets of classes."""
    region = None if known.conformal is None else known.conformal.region(prediction.outputs)
    if isinstance(region, Intervals):
        return {"lower": region.lower, "upper": region.upper}, {"std_conformal": region.std}, None
    return {}, {}, region


def prediction_lines(split: Split, prediction: Prediction, known: Comparison, label: Line) -> Iterator[Line]:
    """One line per test row and target; the columns of the label come first."""
    mean = prediction.mean
    bounds, std_conformal, sets = _regions(prediction, known)
    stds = {"std": prediction.std, **_own_noise(prediction, known), **std_conformal}
    columns: dict[str, torch.Tensor] = {"mean": mean, **stds, **bounds}
    if known.std_full is not None:
        columns["std_full"] = known.std_full
    if split.target_scale is not None:
        scale = torch.as_tensor(split.target_scale.std, dtype=torch.float64, device=mean.device)
        shift = torch.as_tensor(split.target_scale.mean, dtype=torch.float64, device=mean.device)
        columns |= {f"{name}_original": place * scale + shift for name, place in {"mean": mean, **bounds}.items()}
        columns |= {f"{name}_original": std * scale for name, std in stds.items()}
    log_p = known.likelihood.log_probabilities(prediction.outputs)
    if log_p is not None:
        columns["probability"] = log_p.exp()[:, -mean.shape[1] :]
    if sets is not None:
        columns["in_set"] = sets.members[:, -mean.shape[1] :].long()
        columns["set_size"] = sets.members.sum(1, keepdim=True).expand_as(mean)
    further = known.likelihood.row_columns(prediction.outputs)
    if known.targets is not None:
        further = {**further, "target": known.targets}
    # What a row has once is repeated for each of its outputs.
    columns |= {name: t if t.ndim == 2 else t.unsqueeze(1).expand_as(mean) for name, t in further.items()}
    for i, sample in enumerate(prediction.samples if prediction.samples is not None else (), start=1):
        columns[f"sample_{i}"] = sample[:, prediction.means]
    values: dict[str, Any] = {name: tensor.cpu().tolist() for name, tensor in columns.items()}
    if split.classes is not None:  # of the probability, and of the target
        values["class"] = [split.classes[-mean.shape[1] :]] * len(mean)
        if known.targets is not None:
            values["target_class"] = [[split.classes[number]] * mean.shape[1] for number in known.targets.tolist()]
    for i, row in enumerate(split.rows.tolist()):
        for c in range(mean.shape[1]):
            numbers = {name: column[i][c] for name, column in values.items()}
            yield {**label, "method": prediction.method, "k": prediction.k, "row": row, "output": c, **numbers}

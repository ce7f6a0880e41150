"""`--predictions FILE`: mean and std of every test row for people (csv, jsonl) and programs (safetensors)."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ..core.metrics import log_probabilities
from ..errors import UserError
from ..files.artifacts.artifact import write_artifact
from ..files.artifacts.atomic import write_text
from .evaluate import Evaluation
from .session import Session
from .spreads import Spread

Line = dict[str, Any]


def check_predictions(path: Path, n_choices: int) -> None:
    """A safetensors file holds one method at one k of one run; the text formats have a column for them."""
    if path.suffix == ".safetensors" and n_choices != 1:
        raise UserError(
            f"--predictions {path}: a .safetensors file holds one method at one k, {n_choices} were asked for",
            hint="use .csv or .jsonl, which name method and k on every line",
        )


def write_predictions(path: Path, session: Session, evaluation: Evaluation) -> None:
    """Write the predictions of every row of the result."""
    if path.suffix == ".safetensors":
        _write_tensors(path, session, evaluation)
    else:
        write_lines(path, prediction_lines(session, evaluation))


def prediction_lines(session: Session, evaluation: Evaluation, **first: Any) -> list[Line]:
    """One line for each method, test row and output; what is `first` comes first on each."""
    return [{**first, **line} for spread in evaluation.spreads for line in _lines(session, evaluation, spread)]


def write_lines(path: Path, lines: list[Line]) -> None:
    """As csv or jsonl, by suffix."""
    if path.suffix == ".jsonl":
        text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
    else:
        out = io.StringIO()
        writer = csv.DictWriter(out, fieldnames=list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
        text = out.getvalue()
    write_text(path, text)


def _write_tensors(path: Path, session: Session, evaluation: Evaluation) -> None:
    (spread,), known = evaluation.spreads, evaluation.known
    tensors = {"mean": known.f if spread.mean is None else spread.mean, "std": spread.variance.clamp(min=0).sqrt()}
    for name, tensor in (("std_full", known.std_full), ("target", known.targets), ("samples", spread.samples)):
        if tensor is not None:
            tensors[name] = tensor
    write_artifact(path, "predictions", session.describe({}, method=spread.method, k=spread.k), tensors)


def _lines(session: Session, evaluation: Evaluation, spread: Spread) -> Iterator[Line]:
    known, split = evaluation.known, session.split("test")
    std = spread.variance.clamp(min=0).sqrt()
    mean = known.f if spread.mean is None else spread.mean
    columns: dict[str, torch.Tensor] = {"mean": mean, "std": std}
    if known.std_full is not None:
        columns["std_full"] = known.std_full
    if split.target_scale is not None:
        scale = torch.as_tensor(split.target_scale.std, dtype=torch.float64, device=std.device)
        shift = torch.as_tensor(split.target_scale.mean, dtype=torch.float64, device=std.device)
        columns |= {"mean_original": mean * scale + shift, "std_original": std * scale}
    if session.task != "regression":
        columns["probability"] = log_probabilities(mean, std).exp()[:, -mean.shape[1] :]
    if known.targets is not None:
        per_output = session.task == "regression"
        columns["target"] = known.targets if per_output else known.targets.unsqueeze(1).expand_as(known.f)
    for i, sample in enumerate(spread.samples if spread.samples is not None else (), start=1):
        columns[f"sample_{i}"] = sample
    values = {name: tensor.cpu().tolist() for name, tensor in columns.items()}
    for i, row in enumerate(split.rows.tolist()):
        for c in range(known.f.shape[1]):
            numbers = {name: column[i][c] for name, column in values.items()}
            yield {"method": spread.method, "k": spread.k, "row": row, "output": c, **numbers}

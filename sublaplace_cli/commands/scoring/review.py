"""`--review N`: the test rows that a person should look at first."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core.prediction import Comparison, Prediction
from ...files.data.datasets import Split
from ...run.run import Run


def review(run: Run, prediction: Prediction, known: Comparison) -> dict[str, Any]:
    """The most uncertain rows, the most uncertain first: the order of `aurc`. Empty unless they were asked for."""
    count = run.job.outputs.review
    if count is None:
        return {}
    prediction = replace(prediction, outputs=prediction.comparable)  # one factor for all rows, or the order looks odd
    order = known.likelihood.uncertainty(prediction.outputs).argsort(descending=True, stable=True)[:count]
    columns: dict[str, Tensor] = {"row": torch.from_numpy(run.split("test").rows.copy()).to(order.device)}
    columns |= _predicted(prediction, known)
    if known.targets is not None:
        columns |= _by_target("target", known.targets)
    columns = _in_data_units(columns, run.split("test"))
    chosen = {name: values[order].tolist() for name, values in columns.items()}
    if run.classes is not None:
        chosen |= {name: [run.classes[i] for i in chosen[name]] for name in ("predicted", "target") if name in chosen}
    rows = [{name: values[i] for name, values in chosen.items()} for i in range(len(order))]
    of_set = {"set": run.tests[0].name} if len(run.tests) > 1 else {}  # the first one
    return {"review": {**of_set, "method": prediction.method, "k": prediction.k, "rows": rows}}


def _predicted(prediction: Prediction, known: Comparison) -> dict[str, Tensor]:
    log_p = known.likelihood.log_probabilities(prediction.outputs)
    if log_p is not None:
        return {"predicted": log_p.argmax(1), **known.likelihood.row_columns(prediction.outputs)}
    noise = known.likelihood.noise(prediction.outputs)
    total = {} if noise is None else _by_target("total_std", (prediction.std.square() + noise).sqrt())
    return {**_by_target("predicted", prediction.mean), **_by_target("std", prediction.std), **total}


def _in_data_units(columns: dict[str, Tensor], split: Split) -> dict[str, Tensor]:
    """Predictions and targets as people know them, where the targets were standardised."""
    if split.target_scale is None:
        return columns
    scales = zip(np.ravel(split.target_scale.mean).tolist(), np.ravel(split.target_scale.std).tolist(), strict=True)
    for i, (mean, std) in enumerate(scales):
        for name in ("predicted", "target", "std", "total_std"):
            own = name if name in columns else f"{name}_{i}"
            if own in columns:
                columns[own] = columns[own] * std + (0.0 if name.endswith("std") else mean)
    return columns


def _by_target(name: str, values: Tensor) -> dict[str, Tensor]:
    """One column per target, numbered if there are several."""
    if values.ndim == 1 or values.shape[1] == 1:
        return {name: values.reshape(-1)}
    return {f"{name}_{i}": column for i, column in enumerate(values.unbind(1))}

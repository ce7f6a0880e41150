"""Twenty rows for the tests of the data readers, and ways to load them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sublaplace_cli.errors import UserError
from sublaplace_cli.files.data.datasets import Split, load_splits
from sublaplace_cli.files.spec.data import DataSpec
from sublaplace_cli.files.spec.models import LogOdds, ModelSpec, Spec, WrapSpec

ENOUGH = 2**28
RNG = np.random.default_rng(7)
X = RNG.normal(size=(20, 3))
Y = RNG.normal(size=20)
COLUMNS = {"target": "y"}


def load(folder: Path, names: tuple[str, ...] = ("train",), /, *, task: str = "regression", **data: Any) -> Any:
    memory, classes = data.pop("memory", ENOUGH), data.pop("positive_classes", None)
    wrap = None if classes is None else WrapSpec(binary_logodds=LogOdds(classes=classes))
    # not validated as a whole: the data layer must refuse what the spec would refuse first
    spec = Spec.model_construct(
        task=task, model=ModelSpec.model_construct(wrap=wrap), data=DataSpec.model_validate(data)
    )
    return load_splits(spec, names, lambda value, _: folder / value, memory)


def train(folder: Path, **data: Any) -> Split:
    return load(folder, **data)["train"]


def refusal(folder: Path, *names: str, **data: Any) -> str:
    with pytest.raises(UserError) as caught:
        load(folder, names or ("train",), **data)
    assert caught.value.exit_code == 2
    return str(caught.value)


def write_csv(path: Path, table: np.ndarray, header: str | None = "a,b,c,y") -> None:
    lines = [",".join(repr(float(cell)) for cell in row) for row in table]
    path.write_text("\n".join(([header] if header else []) + lines) + "\n")


def whole(split: Split) -> Any:
    return split.inputs(slice(len(split)))

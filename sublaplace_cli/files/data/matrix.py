"""One array from a file outside the data section, such as the predictions of an oracle."""

from pathlib import Path

import numpy as np

from ... import catalog
from ...errors import UserError
from ..spec.data import ArraysSpec, ColumnsSpec
from .sources import ReadRequest, choose


def read_matrix(path: Path, array: str | None, field: str, memory: int) -> np.ndarray:
    """One array or column of a csv, npz, npy or safetensors file, (rows, …), with the checks of data files."""
    format_name = path.suffix.removeprefix(".")
    if format_name not in ("csv", "npz", "npy", "safetensors"):
        raise UserError(f"{field}: {path} is not a .csv, .npz, .npy or .safetensors file")
    columns = ColumnsSpec(input=[array]) if format_name == "csv" and array is not None else None
    arrays = ArraysSpec(input=array or "f") if format_name in ("npz", "safetensors") else None
    read = catalog.find(catalog.DATA_FORMATS, format_name, "data format")
    chosen = choose(read(ReadRequest(path, columns, arrays, None, memory)), None, "predictions", memory)
    assert isinstance(chosen.raw, np.ndarray), "one array was requested"
    return chosen.raw

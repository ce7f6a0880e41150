"""The rows of `data_cases` on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from files.data.data_cases import X, Y, write_csv
from safetensors.numpy import save_file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The same 20 rows in every format."""
    table = np.column_stack([X, Y])
    write_csv(tmp_path / "d.csv", table)
    index = np.array([[0, 2, 4], [1, 3, 5]])
    np.savez(tmp_path / "d.npz", x=X, y=Y, idx=index, flat=index[0], mask=Y > 0, twice=[1, 1], far=[20])
    np.save(tmp_path / "d.npy", table)
    save_file({"x": X, "y": Y, "idx": index}, tmp_path / "d.safetensors")
    return tmp_path

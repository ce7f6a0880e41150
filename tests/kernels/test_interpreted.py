"""The kernels in Triton's interpreter, beside torch in float64: `TRITON_INTERPRET=1 pytest tests/kernels`.

The interpreter takes no notice of `input_precision`, of races and of a missing `other=`: see test_compiled.py.
"""

from __future__ import annotations

import os

import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1 from the start", allow_module_level=True)
pytest.importorskip("triton")

import mmap
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from core.problems import random_matrix, solved
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import mutations
from torch import Tensor
from triton.runtime.interpreter import GridExecutor

from sublaplace_cli.core.kernels import choice
from sublaplace_cli.core.kernels.arithmetic import Arithmetic
from sublaplace_cli.core.kernels.digits import Digits, error_bound
from sublaplace_cli.core.kernels.launch import LinearFactors, level_gram, outer_gram

SIZES = (1, 15, 16, 17, 63, 64, 65, 201)
NUMBERS = (0.7, 0.3)
SENTINEL = -7.25
NO_RESERVE = 0x4000  # of Linux; Python names it from 3.13 on
F32, F64 = torch.float32, torch.float64

if fault := mutations.asked_for():
    mutations.apply(fault, Path(tempfile.mkdtemp()))


def guarded(X: Tensor, fill: float) -> Tensor:
    """The same numbers within a larger tensor of `fill`: strided, and nothing else may be read."""
    room = torch.full([size + 2 for size in X.shape[:-1]] + [X.shape[-1] + 48], fill, dtype=X.dtype)
    inner = room[tuple(slice(1, size + 1) for size in X.shape[:-1]) + (slice(16, 16 + X.shape[-1]),)]
    return inner.copy_(X)


def factors(rows: int, C: int, d_in: int, d_out: int, seed: int, kept: torch.dtype = F64) -> LinearFactors:
    a, delta = random_matrix(rows, d_in, seed=seed), random_matrix(rows, C, d_out, seed=seed + 1)
    return LinearFactors(guarded(a.to(kept), torch.nan), guarded(delta.to(kept), torch.nan))


def room_for(m: int, n: int) -> tuple[Tensor, Tensor]:
    """(a matrix of random numbers, what it lies in: sentinels around it)."""
    whole = torch.full((m + 5, n + 9), SENTINEL, dtype=F64)
    return whole[2 : m + 2, 3 : n + 3].copy_(random_matrix(m, n, seed=99)), whole


def is_untouched(whole: Tensor, m: int, n: int) -> bool:
    around = torch.ones_like(whole, dtype=torch.bool)
    around[2 : m + 2, 3 : n + 3] = False
    return bool((whole[around] == SENTINEL).all())


def check_outer(own: LinearFactors, other: LinearFactors, upper: bool, dtype: torch.dtype = F64) -> None:
    m, n = (len(each.inputs) * each.deltas.shape[1] for each in (own, other))
    found, whole = room_for(m, n)
    expected = found + choice.by_torch(own, other, NUMBERS)
    outer_gram(found, own, other, NUMBERS, dtype, upper)
    error = (found - expected) / expected.abs().max()
    assert float((error.triu() if upper else error).abs().max()) <= choice.CHECK_WITHIN[dtype]
    assert is_untouched(whole, m, n)


@pytest.mark.parametrize("kept", [F32, F64])
@pytest.mark.parametrize("size", SIZES)
def test_linear_layers_of_all_sizes(size: int, kept: torch.dtype) -> None:
    for others, d_in, d_out in [(17, 16, 15), (1, 201, 17), (65, size, 1)]:
        own, other = factors(size, 1, d_in, d_out, 1, kept), factors(others, 1, d_in, d_out, 7, kept)
        check_outer(own, other, upper=False)
        check_outer(own, own, upper=True)


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("kept", [F32, F64])
@pytest.mark.parametrize(("C", "C2"), [(3, 3), (10, 10), (3, 1)])
def test_several_outputs(C: int, C2: int, kept: torch.dtype, dtype: torch.dtype) -> None:
    own, other = factors(65, C, 17, 9, 1, kept), factors(17, C2, 17, 9, 7, kept)
    check_outer(own, other, upper=False, dtype=dtype)
    check_outer(other, other, upper=True, dtype=dtype)


def check_levels(own: Digits, other: Digits, upper: bool, factor: float = 0.7) -> None:
    m, n = len(own.scale), len(other.scale)
    found, whole = room_for(m, n)
    expected = found + own.products(other).mul_(factor)
    level_gram(found, own, other, factor, upper)
    assert torch.equal(found.triu() if upper else found, expected.triu() if upper else expected)
    assert is_untouched(whole, m, n)


@pytest.mark.parametrize("kept", [F32, F64])
@pytest.mark.parametrize("s", [4, 5])
@pytest.mark.parametrize("size", SIZES)
def test_digits_of_all_sizes(size: int, s: int, kept: torch.dtype) -> None:
    for others, columns in [(65, 17), (1, 201), (16, size)]:
        own, other = (Digits.of(random_matrix(r, columns, seed=r).to(kept), s) for r in (size, others))
        check_levels(own, other, upper=False)
        check_levels(own, own, upper=True)


def test_rows_that_are_a_part_of_others() -> None:
    digits = Digits.of(random_matrix(140, 40, seed=1), 4)
    check_levels(digits.rows(slice(3, 133)), digits.rows(slice(3, None)), upper=True)


def mapped(elements: int, dtype: torch.dtype) -> Tensor:
    """Numbers of which only those that are touched take memory."""
    size = elements * dtype.itemsize
    room = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    return torch.frombuffer(room, dtype=dtype)


@pytest.fixture
def in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter works on tensors of the CPU as they are, but copies whole storages onto themselves afterwards."""
    monkeypatch.setattr(GridExecutor, "_restore_args_dev", lambda *unused: None)


@pytest.mark.usefixtures("in_place")
@pytest.mark.parametrize("what", ["K", "inputs", "deltas"])
def test_offsets_beyond_32_bits(what: str) -> None:
    """65 rows so far from each other that the last one begins beyond 2³¹ numbers."""
    rows, far = 65, 2**31 // 64 + 64
    own, other = factors(rows, 1, 9, 7, 1, F32), factors(5, 1, 9, 7, 3, F32)
    total = torch.zeros(rows, 5, dtype=F64)
    expected = choice.by_torch(own, other, NUMBERS)
    if what == "K":
        total = mapped(rows * far, F64).view(rows, far)[:, :5]
    elif what == "inputs":
        own = replace(own, inputs=mapped(rows * far, F32).view(rows, far)[:, :9].copy_(own.inputs))
    else:
        own = replace(own, deltas=mapped(rows * far, F32).view(rows, 1, far)[:, :, :7].copy_(own.deltas))
    outer_gram(total, own, other, NUMBERS, F64, upper=False)
    torch.testing.assert_close(total.clone(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("in_place")
def test_digits_with_offsets_beyond_32_bits() -> None:
    rows, far = 129, 2**31 // 128 + 64
    own, other = (Digits.of(random_matrix(r, 20, seed=r), 4) for r in (rows, 5))
    total = mapped(rows * far, F64).view(rows, far)[:, :5]
    level_gram(total, own, other, 1.0, upper=False)
    assert torch.equal(total.clone(), own.products(other))


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 70), d=st.integers(1, 40), cut=st.integers(0, 70), seed=st.integers(0, 10**6))
def test_symmetry_and_rows_in_parts(rows: int, d: int, cut: int, seed: int) -> None:
    own, cut = factors(rows, 1, d, d + 1, seed), min(cut, rows)
    digits = Digits.of(own.inputs, 4)
    whole, levels = torch.zeros(rows, rows, dtype=F64), torch.zeros(rows, rows, dtype=F64)
    outer_gram(whole, own, own, NUMBERS, F64, upper=False)
    level_gram(levels, digits, digits, 1.0, upper=False)
    torch.testing.assert_close(whole, whole.T, rtol=1e-12, atol=1e-12)
    assert torch.equal(levels, levels.T)
    for first, last in [(0, cut), (cut, rows)]:
        if first < last:
            part, digit_part = (torch.zeros(last - first, rows, dtype=F64) for _ in range(2))
            outer_gram(part, own.rows(first, last), own, NUMBERS, F64, upper=False)
            level_gram(digit_part, digits.rows(slice(first, last)), digits, 1.0, upper=False)
            torch.testing.assert_close(part, whole[first:last], rtol=1e-12, atol=1e-12)
            assert torch.equal(digit_part, levels[first:last])


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 300), s=st.sampled_from([4, 5]), seed=st.integers(0, 10**6), spread=st.floats(0, 8))
def test_digits_are_within_their_bound(n: int, s: int, seed: int, spread: float) -> None:
    x, y = (random_matrix(1, n, seed=seed + i) * 10 ** (-spread * random_matrix(1, n, seed=seed + 9)) for i in (0, 1))
    found = torch.zeros(1, 1, dtype=F64)
    level_gram(found, Digits.of(x, s), Digits.of(y, s), 1.0, upper=False)
    exact = float(x @ y.T)
    rounding = n * 2.0**-52 * float(x.abs() @ y.abs().T)  # of the product that it is compared with
    assert abs(float(found) - exact) <= error_bound(x[0], y[0], s) + rounding


@pytest.mark.parametrize("by", [Arithmetic.FLOAT64, Arithmetic.SPLIT_4])
def test_a_whole_gram_matrix_by_the_kernels(by: Arithmetic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for as on a GPU: checked against torch first, and used."""
    problem = solved("mlp-3-outputs", "equal")
    precision = replace(problem.precision, gram_dtype=by)
    expected = precision.gram()
    monkeypatch.setattr(choice, "on_gpu", lambda device: True)
    monkeypatch.setattr(choice, "_chosen", choice.KernelChoice())
    chosen = choice.choose("triton", pytest.fail)
    found = precision.gram()
    torch.testing.assert_close(found, expected, rtol=1e-12 if by is Arithmetic.FLOAT64 else 0, atol=0)
    assert by is Arithmetic.FLOAT64 or list(chosen.passed.values()) == [True]


@pytest.mark.skipif(mutations.asked_for() is not None, reason="the kernels have a fault already")
@pytest.mark.parametrize("fault", sorted(set(mutations.FAULTS) - {"tf32", "nothing in place of what is not read"}))
def test_a_fault_makes_these_tests_fail(fault: str) -> None:
    """In a process of its own, which may also end by reading what is not there."""
    sizes = "(all_sizes and (65 or 15)) or (several and 3-3) or offsets"
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", __file__, "-k", sizes],
        env={**os.environ, "KERNEL_FAULT": fault},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1 or done.returncode < 0, done.stdout[-2000:]

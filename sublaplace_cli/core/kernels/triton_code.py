"""The kernels for GPUs, in Triton: only imported where one is launched.

Offsets are 64-bit, because a Gram matrix has more than 2³¹ entries from 46,341 rows on. A number that is given to a
kernel would arrive in float32: so numbers come in float64 tensors. `ieee` keeps products of float32 from being TF32.
"""

import triton
import triton.language as tl


@triton.jit
def tile_products(
    left, right, depth, in_rows, in_columns, DTYPE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):  # fmt: skip
    """Products of the rows at `left` (ROWS,) and at `right` (COLUMNS,), `depth` numbers each."""
    total = tl.zeros((ROWS, COLUMNS), dtype=DTYPE)
    for start in range(0, depth, DEPTH):
        at = start + tl.arange(0, DEPTH)
        inside = at < depth
        x = tl.load(left[:, None] + at[None, :], mask=in_rows[:, None] & inside[None, :], other=0.0)
        y = tl.load(right[None, :] + at[:, None], mask=in_columns[None, :] & inside[:, None], other=0.0)
        total = tl.dot(x.to(DTYPE), y.to(DTYPE), total, input_precision="ieee", out_dtype=DTYPE)
    return total


@triton.jit
def outer_gram_kernel(
    a, b, d, e, K, numbers, m, n, d_in, d_out, C, C2, a_row, b_row, d_row, d_output, e_row, e_output, K_row,
    UPPER: tl.constexpr, DTYPE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """K += (a b ᵀ·scale + shift) ∘ (δ εᵀ) for all pairs of outputs, one tile of rows and other rows per program."""
    i, j = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    if UPPER:  # noqa: SIM102 - known when it is compiled
        if i * ROWS >= (j + 1) * COLUMNS:  # wholly below the diagonal
            return
    rows, columns = i * ROWS + tl.arange(0, ROWS), j * COLUMNS + tl.arange(0, COLUMNS)
    in_rows, in_columns = rows < m, columns < n
    inputs = tile_products(
        a + rows * a_row, b + columns * b_row, d_in, in_rows, in_columns, DTYPE, ROWS, COLUMNS, DEPTH
    )
    inputs = inputs.to(tl.float64) * tl.load(numbers) + tl.load(numbers + 1)
    inside = in_rows[:, None] & in_columns[None, :]
    for pair in range(C * C2):
        c, c2 = pair // C2, pair % C2
        left, right = d + rows * d_row + c * d_output, e + columns * e_row + c2 * e_output
        deltas = tile_products(left, right, d_out, in_rows, in_columns, DTYPE, ROWS, COLUMNS, DEPTH)
        at = K + (rows * C + c)[:, None] * K_row + (columns * C2 + c2)[None, :]
        tl.store(at, tl.load(at, mask=inside, other=0.0) + inputs * deltas.to(tl.float64), mask=inside)


@triton.jit
def level_gram_kernel(
    a, b, K, a_scale, b_scale, numbers, m, n, depth, K_row,
    UPPER: tl.constexpr, S: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """K += factor·(products of rows of S digits, (m, S, depth) and (n, S, depth)): the operations of `Digits`."""
    i, j = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    if UPPER:  # noqa: SIM102 - known when it is compiled
        if i * ROWS >= (j + 1) * COLUMNS:
            return
    rows, columns = i * ROWS + tl.arange(0, ROWS), j * COLUMNS + tl.arange(0, COLUMNS)
    in_rows, in_columns = rows < m, columns < n
    left, right = a + rows * (S * depth), b + columns * (S * depth)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float64)
    for left_out in range(S):  # the last level first: digits 1…l with l…1
        level = tl.zeros((ROWS, COLUMNS), dtype=tl.int32)
        for digit in range(S - left_out):
            x_at, y_at = left + digit * depth, right + (S - 1 - left_out - digit) * depth
            for start in range(0, depth, DEPTH):
                at = start + tl.arange(0, DEPTH)
                inside = at < depth
                x = tl.load(x_at[:, None] + at[None, :], mask=in_rows[:, None] & inside[None, :], other=0)
                y = tl.load(y_at[None, :] + at[:, None], mask=in_columns[None, :] & inside[:, None], other=0)
                level = tl.dot(x, y, level, out_dtype=tl.int32)
        total = total * 0.00390625 + level.to(tl.float64)
    total *= (tl.load(a_scale + rows, mask=in_rows, other=0.0) * 0.0000152587890625)[:, None]
    total *= tl.load(b_scale + columns, mask=in_columns, other=0.0)[None, :]
    total *= tl.load(numbers)
    inside = in_rows[:, None] & in_columns[None, :]
    at = K + rows[:, None] * K_row + columns[None, :]
    tl.store(at, tl.load(at, mask=inside, other=0.0) + total, mask=inside)

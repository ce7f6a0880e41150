"""Products of rows for Gram matrices: in which arithmetic, and by which code.

`arithmetic` says how rows are multiplied, `digits` splits them into 8-bit digits, `integers` multiplies these exactly,
and `factored` does so for the two factors of a linear layer's rows.
"""

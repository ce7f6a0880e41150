"""Judging a result, without torch: `metric_table` knows every metric, `result` and `sweep` hold the numbers, `limits`,
`baseline` and `gate` decide whether they are good enough, `figures` holds what pictures are drawn from.
"""

"""Judging a result, without torch: its numbers, the metrics, limits and baselines, and the gate."""

"""Test rows and rows unlike the training rows, told apart: the `scores` of a row, and the `metrics` of each score."""

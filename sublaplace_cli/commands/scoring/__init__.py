"""Predictions → what a result says of them: metrics, the data of pictures, and the verdict."""

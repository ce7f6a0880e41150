"""The full posterior of a run: through the Gram matrix of the training rows, or certified without it."""

"""The public functions: `library` on tensors, `predictor` for serving, `command` for whole commands."""

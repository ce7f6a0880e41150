"""The public functions, one room: `library` on tensors, `predictor` for serving, `command` for whole commands."""

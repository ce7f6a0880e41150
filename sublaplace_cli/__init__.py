"""Sub-network Laplace approximations over saved PyTorch checkpoints."""

__version__ = "0.1.0"

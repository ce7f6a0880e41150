"""A digest of a network's weights, independent of their file."""

import hashlib

import torch
from torch import nn


def network_digest(model: nn.Module) -> str:
    """sha256 of all parameters and buffers by name, floating-point values as float32."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        values = tensor.detach().cpu().to(torch.float32 if tensor.is_floating_point() else torch.int64).contiguous()
        digest.update(f"{name} {list(values.shape)} {values.dtype}\n".encode())
        digest.update(values.numpy().tobytes())
    return digest.hexdigest()

"""Flat index ↔ (parameter name, position): `named_parameters()` order, each tensor row-major. Digest of a network."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import accumulate
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from ...errors import UserError, suggestion


@dataclass(frozen=True)
class Parameter:
    """One trainable tensor and its position in the flat vector."""

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def span(self) -> slice:
        return slice(self.offset, self.offset + self.size)


@dataclass(frozen=True)
class Layout:
    """The flat vector of all trainable parameters; frozen parameters are not part of it."""

    parameters: tuple[Parameter, ...]

    @classmethod
    def of(cls, model: nn.Module) -> Self:
        return cls.from_shapes([(name, tuple(t.shape)) for name, t in model.named_parameters() if t.requires_grad])

    @classmethod
    def from_shapes(cls, shapes: Sequence[tuple[str, tuple[int, ...]]]) -> Self:
        shapes = [(name, shape) for name, shape in shapes if math.prod(shape)]  # empty tensors are left out too
        offsets = accumulate((math.prod(shape) for _, shape in shapes), initial=0)
        return cls(tuple(Parameter(name, shape, o) for (name, shape), o in zip(shapes, offsets, strict=False)))

    @cached_property
    def size(self) -> int:
        return sum(parameter.size for parameter in self.parameters)

    def describe(self, index: int) -> str:
        """`layer.weight[2, 5]` for a flat index."""
        for parameter in self.parameters:
            if parameter.offset <= index < parameter.offset + parameter.size:
                position = np.unravel_index(index - parameter.offset, parameter.shape or (1,))
                return f"{parameter.name}[{', '.join(str(int(i)) for i in position)}]"
        raise IndexError(f"flat index {index} is outside 0..{self.size - 1}")

    def matching(self, pattern: str) -> list[Parameter]:
        return [parameter for parameter in self.parameters if fnmatchcase(parameter.name, pattern)]

    def vector(self, by_glob: Mapping[str, float]) -> Tensor:
        """One number per parameter (p,) float64: that of the first glob that matches its tensor's name."""
        names = [parameter.name for parameter in self.parameters]
        for pattern in by_glob:
            if not self.matching(pattern):
                raise UserError(f"'{pattern}' matches no trainable parameter", hint=suggestion(pattern, names))
        v = torch.empty(self.size, dtype=torch.float64)
        for parameter in self.parameters:
            found = [value for pattern, value in by_glob.items() if fnmatchcase(parameter.name, pattern)]
            if not found:
                hint = "end the mapping with '*': NUMBER for all the others"
                raise UserError(f"no pattern matches parameter '{parameter.name}'", hint=hint)
            v[parameter.span] = found[0]
        return v

    def indices(self, parameters: Sequence[Parameter]) -> Tensor:
        """All flat indices of these parameters, in flat order."""
        spans = sorted((parameter.span for parameter in parameters), key=lambda span: span.start)
        return torch.cat([torch.empty(0, dtype=torch.int64), *(torch.arange(s.start, s.stop) for s in spans)])

    def flatten(self, model: nn.Module) -> Tensor:
        """θ as one float64 vector (p,)."""
        tensors = dict(model.named_parameters())
        return torch.cat([tensors[parameter.name].detach().reshape(-1).double() for parameter in self.parameters])


def network_digest(model: nn.Module) -> str:
    """sha256 of all parameters and buffers by name, floating-point values as float32: the same for every dtype."""
    return _digest(model.state_dict(), torch.float32)


def weights_digest(model: nn.Module) -> str:
    """sha256 of all parameters and buffers by name with their exact values, those that are not stored too."""
    return _digest({**dict(model.named_parameters()), **dict(model.named_buffers())}, None)


def _digest(tensors: Mapping[str, Tensor], dtype: torch.dtype | None) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        values = tensor.detach().cpu().contiguous()
        if dtype is not None:
            values = values.to(dtype if values.is_floating_point() else torch.int64)
        digest.update(f"{name} {list(values.shape)} {values.dtype}\n".encode())
        digest.update(values.reshape(-1).view(torch.uint8).numpy().data)  # without a copy
    return digest.hexdigest()

"""`wrap: {binary-logodds: …}`: a network of C classes as one log-odds, with the same parameter names."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError

LOGODDS_FIELD = "wrap.binary-logodds.classes"


def add_binary_logodds(module: nn.Module, classes: Sequence[int], outputs: int | None = None) -> nn.Module:
    """f = logsumexp(logits in classes) − logsumexp(the others), as (B, 1); `outputs` is C if known."""
    # A hook, not a wrapping module: the names of named_parameters() must not change.
    hook = _LogOdds(classes)
    if outputs is not None:
        hook.check(outputs)
    module.register_forward_hook(hook)
    return module


class _LogOdds:
    def __init__(self, classes: Sequence[int]) -> None:
        self.classes = sorted(set(classes))
        if not self.classes or len(self.classes) != len(classes) or self.classes[0] < 0:
            raise UserError(f"{LOGODDS_FIELD}: found {list(classes)}, expected different class numbers, counted from 0")

    def check(self, outputs: int) -> None:
        if self.classes[-1] >= outputs:
            message = f"{LOGODDS_FIELD}: there is no class {self.classes[-1]}"
            raise UserError(f"{message}, the network has {outputs} outputs (0 to {outputs - 1})")
        if len(self.classes) == outputs:
            message = f"{LOGODDS_FIELD}: names all {outputs} outputs, no class is left for the other side of the odds"
            raise UserError(message, hint="list only the classes that count as 1")

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], logits: Any) -> Tensor:
        if not isinstance(logits, Tensor) or logits.ndim == 0:
            raise UserError(f"wrap.binary-logodds: the output is a {type(logits).__name__}, expected logits")
        self.check(logits.shape[-1])
        others = [c for c in range(logits.shape[-1]) if c not in self.classes]
        inside, outside = (torch.logsumexp(logits[..., c], dim=-1, keepdim=True) for c in (self.classes, others))
        return inside - outside

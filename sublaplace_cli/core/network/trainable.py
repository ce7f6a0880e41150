"""Which parameters of a network are part of θ, by globs over their names."""

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

from torch import nn

from ...errors import UserError, nearest

CLOSE_NAMES = 5


def chosen_parameters(module: nn.Module, globs: Sequence[str], field: str) -> set[str]:
    """All names of the parameters that some glob matches; those that the code froze too, buffers never."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    matched: set[str] = set()
    for glob in globs:
        own = {name for name in parameters if fnmatchcase(name, glob)}
        if not own:
            raise UserError(f"{field}: '{glob}' matches no parameter", hint=nearest(glob, parameters, CLOSE_NAMES))
        matched |= own
    wrong = next((name for name in sorted(matched) if not parameters[name].is_floating_point()), None)
    if wrong is not None:
        raise UserError(f"{field}: '{wrong}' holds {parameters[wrong].dtype} values, which have no gradients")
    tensors = {id(parameters[name]) for name in matched}
    return {name for name, parameter in parameters.items() if id(parameter) in tensors}  # a tied one by all its names


def train_only(module: nn.Module, names: Collection[str]) -> None:
    """Freeze all other parameters, and unfreeze these."""
    for name, parameter in module.named_parameters(remove_duplicate=False):
        parameter.requires_grad_(name in names)

"""The spec's model → an nn.Module with its weights, in eval mode on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from ... import catalog
from ...architectures.binary_logodds import add_binary_logodds
from ...errors import UserError
from .checkpoints import load_state
from .containers import binary_size
from .exported import load_exported
from .imports import build_imported
from .weights import checked_weights, put_weights

if TYPE_CHECKING:
    from ..spec.models import BuildSpec, WeightsSpec, WrapSpec


@dataclass(frozen=True)
class Network:
    """A network that is ready to run, and every file whose bytes define it."""

    module: nn.Module
    files: tuple[Path, ...]


def load_network(
    build: BuildSpec,
    weights: WeightsSpec | None,
    wrap: WrapSpec | None,
    *,
    resolve: Callable[[str, str], Path],
    field: str,
    allow_code: Sequence[str],
    spec_folder: Path,
    memory: int,
    weights_path: Path | None = None,
) -> Network:
    """Build the network, put its weights in (`weights_path` replaces weights.path), wrap it if asked."""
    checkpoint = weights_path
    if checkpoint is None and weights is not None:
        checkpoint = resolve(weights.path, f"{field}.weights.path")
    state = None if checkpoint is None else _read_state(checkpoint, weights, memory)

    module, files = _build(build, state is not None, resolve, field, allow_code, spec_folder, memory)
    if state is not None and checkpoint is not None:
        strict = True if weights is None else weights.strict
        fitting = checked_weights(module, state, path=checkpoint, field=field, strict=strict)
        if _is_meta(module):
            # the sizes are known to be sane now; building once more gives the buffers their defaults
            module = _on_cpu(build)
        put_weights(module, fitting)
        files = (*files, checkpoint)
    module = _as_floats(module).eval()
    if wrap is not None:
        outputs = _last_width(module) if build.arch is not None else None
        add_binary_logodds(module, wrap.binary_logodds.classes, outputs)
    return Network(module, files)


def _read_state(path: Path, weights: WeightsSpec | None, memory: int) -> dict[str, torch.Tensor]:
    if weights is None:
        return load_state(path, memory=memory)
    return load_state(path, key=weights.key, strip_prefix=weights.strip_prefix, rename=weights.rename, memory=memory)


def _build(
    build: BuildSpec,
    has_weights: bool,
    resolve: Callable[[str, str], Path],
    field: str,
    allow_code: Sequence[str],
    spec_folder: Path,
    memory: int,
) -> tuple[nn.Module, tuple[Path, ...]]:
    if build.exported is not None:
        path = resolve(build.exported, f"{field}.build.exported")
        return load_exported(path, memory=memory), (path,)
    if build.import_ is not None:
        return build_imported(build.import_, build.args, field=field, allow_code=allow_code, spec_folder=spec_folder)
    if not has_weights:
        raise UserError(
            f"{field}.weights: missing; build.arch gives the shape of a network, not its values",
            hint="add weights: {path: model.safetensors} or give --checkpoint FILE",
        )
    return _on_meta(build, field, memory), ()


def _on_meta(build: BuildSpec, field: str, memory: int) -> nn.Module:
    make = catalog.find(catalog.ARCHITECTURES, str(build.arch), "architecture")
    try:
        with torch.device("meta"):
            module = make(**build.args)
    except UserError as error:
        raise UserError(f"{field}.build.args: {error.message}", hint=error.hint) from error
    needed = sum(tensor.numel() * tensor.element_size() for tensor in module.parameters())
    if needed > memory:
        raise UserError(
            f"{field}.build.args: a network of {binary_size(needed)}, more than the memory allowed"
            f" ({binary_size(memory)})",
            hint="check the widths, or raise --memory if the machine has it",
        )
    return module


def _on_cpu(build: BuildSpec) -> nn.Module:
    # the random initial values are overwritten at once and must not move the caller's random numbers
    with torch.random.fork_rng(devices=[]):
        return catalog.find(catalog.ARCHITECTURES, str(build.arch), "architecture")(**build.args)


def _is_meta(module: nn.Module) -> bool:
    return any(parameter.is_meta for parameter in module.parameters())


def _as_floats(module: nn.Module) -> nn.Module:
    half = any(p.dtype in (torch.float16, torch.bfloat16) for p in module.parameters())
    return module.float() if half else module.to("cpu")


def _last_width(module: nn.Module) -> int | None:
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    return layers[-1].out_features if layers else None

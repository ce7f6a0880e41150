"""A model of the spec → an nn.Module with its weights, in eval mode on the CPU."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from ... import catalog
from ...architectures.binary_logodds import add_binary_logodds
from ...errors import UserError
from ..spec.models import BuildSpec, WeightsSpec, WrapSpec
from .checkpoints import load_state
from .containers import binary_size
from .exported import load_exported
from .imports import build_imported
from .weights import checked_weights, put_weights


class NetworkPart(Protocol):
    """The part of a spec that describes a network, such as `model`."""

    @property
    def build(self) -> BuildSpec: ...
    @property
    def weights(self) -> WeightsSpec | None: ...
    @property
    def wrap(self) -> WrapSpec | None: ...


@dataclass(frozen=True)
class NetworkSource:
    """What all networks of a spec are loaded with."""

    resolve: Callable[[str, str], Path]  # (value, field of the spec) → path
    allow_code: Sequence[str]  # packages whose code may run
    spec_folder: Path
    memory: int  # bytes


@dataclass(frozen=True)
class Network:
    """A network that is ready to run, and all files that define it."""

    module: nn.Module
    files: tuple[Path, ...]


def load_network(part: NetworkPart, source: NetworkSource, *, field: str, weights_path: Path | None = None) -> Network:
    """Build the network, load its weights (`weights_path` replaces weights.path), wrap it if the spec says so."""
    checkpoint, weights = weights_path, part.weights
    if checkpoint is None and weights is not None:
        checkpoint = source.resolve(weights.path, f"{field}.weights.path")
    state = None if checkpoint is None else _read_state(checkpoint, weights, source.memory)

    module, files = _build(part.build, source, field, has_weights=state is not None)
    if state is not None and checkpoint is not None:
        strict = True if weights is None else weights.strict
        fitting = checked_weights(module, state, path=checkpoint, field=field, strict=strict)
        if _is_meta(module):
            # the sizes are known to be valid now; a second build gives the buffers their defaults
            module = _on_cpu(part.build)
        put_weights(module, fitting)
        files = (*files, checkpoint)
    module = _as_floats(module).eval()
    if part.wrap is not None:
        outputs = _last_width(module) if part.build.arch is not None else None
        add_binary_logodds(module, part.wrap.binary_logodds.classes, outputs)
    return Network(module, files)


def _read_state(path: Path, weights: WeightsSpec | None, memory: int) -> dict[str, torch.Tensor]:
    if weights is None:
        return load_state(path, memory=memory)
    return load_state(path, key=weights.key, strip_prefix=weights.strip_prefix, rename=weights.rename, memory=memory)


def _build(
    build: BuildSpec, source: NetworkSource, field: str, *, has_weights: bool
) -> tuple[nn.Module, tuple[Path, ...]]:
    if build.exported is not None:
        path = source.resolve(build.exported, f"{field}.build.exported")
        return load_exported(path, memory=source.memory), (path,)
    if build.import_ is not None:
        import_field = f"{field}.build.import"
        return build_imported(build.import_, build.args, import_field, source.allow_code, source.spec_folder)
    if not has_weights:
        raise UserError(
            f"{field}.weights: missing; build.arch defines the shape of a network, not its values",
            hint="add weights: {path: model.safetensors} or use --checkpoint FILE",
        )
    return _on_meta(build, field, source.memory), ()


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
            f"{field}.build.args: a network of {binary_size(needed)}, more than the allowed memory"
            f" ({binary_size(memory)})",
            hint="check the widths, or raise --memory if the machine has it",
        )
    return module


def _on_cpu(build: BuildSpec) -> nn.Module:
    # the random initial values are overwritten: they must not advance the caller's random numbers
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

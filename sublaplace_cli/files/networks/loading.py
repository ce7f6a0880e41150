"""A model of the spec → an nn.Module with its weights, in eval mode on the CPU."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from ... import catalog
from ...architectures.binary_logodds import add_binary_logodds
from ...errors import UserError
from ..spec.models import BuildSpec, ModelSpec
from .checkpoints import load_state
from .containers import refuse_above
from .exported import load_exported
from .imports import build_imported
from .weights import checked_weights, put_weights


@dataclass(frozen=True)
class NetworkSource:
    """Settings for loading the networks of a spec."""

    resolve: Callable[[str, str], Path]  # (value, field of the spec) → path
    allow_code: Sequence[str]  # packages whose code may run
    spec_folder: Path
    memory: int  # bytes


@dataclass(frozen=True)
class Network:
    """A network that is ready to run, and all files that define it."""

    module: nn.Module
    files: tuple[Path, ...]


def load_network(part: ModelSpec, source: NetworkSource, *, field: str, weights_path: Path | None = None) -> Network:
    """Build the network, load its weights (`weights_path` replaces weights.path), wrap it if the spec says so."""
    checkpoint, weights, state = weights_path, part.weights, {}
    if checkpoint is None and weights is not None:
        checkpoint = source.resolve(weights.path, f"{field}.weights.path")
    if checkpoint is not None:
        options = {name: getattr(weights, name, None) for name in ("key", "strip_prefix", "rename")}
        state = load_state(checkpoint, memory=source.memory, **options)
    module, files = _build(part.build, source, field, weights=checkpoint is not None)
    if checkpoint is not None:
        strict = weights is None or weights.strict
        fitting = checked_weights(module, state, path=checkpoint, field=field, strict=strict)
        if any(parameter.is_meta for parameter in module.parameters()):
            # the sizes are known to be valid now; a second build gives the buffers their defaults
            module = _on_cpu(part.build)
        put_weights(module, fitting)
        files = (*files, checkpoint)
    half = any(p.dtype in (torch.float16, torch.bfloat16) for p in module.parameters())
    module = (module.float() if half else module.to("cpu")).eval()
    if part.wrap is not None:
        layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
        outputs = layers[-1].out_features if layers and part.build.arch is not None else None
        add_binary_logodds(module, part.wrap.binary_logodds.classes, outputs)
    return Network(module, files)


def _build(build: BuildSpec, source: NetworkSource, field: str, weights: bool) -> tuple[nn.Module, tuple[Path, ...]]:
    if build.exported is not None:
        path = source.resolve(build.exported, f"{field}.build.exported")
        return load_exported(path, memory=source.memory), (path,)
    if build.import_ is not None:
        import_field = f"{field}.build.import"
        return build_imported(build.import_, build.args, import_field, source.allow_code, source.spec_folder)
    if not weights:
        message = f"{field}.weights: missing; build.arch defines the shape of a network, not its values"
        raise UserError(message, hint="add weights: {path: model.safetensors} or use --checkpoint FILE")
    return _on_meta(build, field, source.memory), ()


def _on_meta(build: BuildSpec, field: str, memory: int) -> nn.Module:
    make = catalog.find(catalog.ARCHITECTURES, str(build.arch), "architecture")
    try:
        with torch.device("meta"):
            module = make(**build.args)
    except UserError as error:
        raise UserError(f"{field}.build.args: {error.message}", hint=error.hint) from error
    needed = sum(tensor.numel() * tensor.element_size() for tensor in module.parameters())
    hint = "check the widths, or raise --memory if the machine has it"
    refuse_above(memory, needed, f"{field}.build.args: a network of", hint)
    return module


def _on_cpu(build: BuildSpec) -> nn.Module:
    # the random initial values are overwritten: they must not advance the caller's random numbers
    with torch.random.fork_rng(devices=[]):
        return catalog.find(catalog.ARCHITECTURES, str(build.arch), "architecture")(**build.args)

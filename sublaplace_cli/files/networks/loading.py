"""A model of the spec → an nn.Module with its weights, in eval mode on the CPU."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from ... import catalog
from ...architectures.binary_logodds import add_binary_logodds
from ...core.network.trainable import chosen_parameters, train_only
from ...errors import UserError
from ..spec.models import BuildSpec, ModelSpec
from .checkpoints import load_state
from .containers import refuse_above
from .exported import load_exported
from .huggingface.network import OtherWeights, load_from_folder
from .imports import build_imported
from .names import COUNTER, named_for, suggested_rename

HALF = (torch.float16, torch.bfloat16)
NAMES_SHOWN = 10


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
        state = load_state(checkpoint, key=None if weights is None else weights.key, memory=source.memory)
    is_folder = part.build.huggingface is not None
    if is_folder:
        module, files = _from_folder(part, source, field, checkpoint, state)
    else:
        module, files = _build(part.build, source, field, weights=checkpoint is not None)
    chosen = None if part.trainable is None else chosen_parameters(module, part.trainable, f"{field}.trainable")
    if checkpoint is not None and not is_folder:
        state = named_for(module.state_dict(), state, checkpoint, weights)
        fitting = _checked_weights(module, state, checkpoint, part, field, chosen or ())
        if any(parameter.is_meta for parameter in module.parameters()):
            # The sizes are known to be valid now; a second build gives the buffers their defaults.
            # The random initial values are overwritten: they must not advance the caller's random numbers.
            with torch.random.fork_rng(devices=[]):
                module = catalog.load(catalog.ARCHITECTURES[str(part.build.arch)])(**part.build.args)
        parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
        if any(fitting[name].dtype == torch.float64 for name in parameters & set(fitting)):
            module.double()  # a float64 file makes the network float64
        elif any(parameter.dtype in HALF for parameter in module.parameters()):
            module.float()
        module.load_state_dict(fitting, strict=False)  # keeps requires_grad and ties
    if checkpoint is not None:
        files = (*files, checkpoint)
    half = any(parameter.dtype in HALF for parameter in module.parameters())
    module = (module.float() if half else module.to("cpu")).eval()
    if chosen is not None:
        train_only(module, chosen)
    if part.wrap is not None:
        layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
        outputs = layers[-1].out_features if layers and part.build.arch is not None else None
        add_binary_logodds(module, part.wrap.binary_logodds.classes, outputs)
    return Network(module, files)


def _from_folder(
    part: ModelSpec, source: NetworkSource, field: str, checkpoint: Path | None, state: dict[str, Tensor]
) -> tuple[nn.Module, tuple[Path, ...]]:
    """A folder has its own weights, unless a checkpoint replaces them."""
    other = None
    if checkpoint is not None:
        strict = part.weights is None or part.weights.strict
        other = OtherWeights(checkpoint, state, strict, partial(named_for, path=checkpoint, options=part.weights))
    return load_from_folder(part.build, field, source.resolve, source.memory, other)


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
    try:
        with torch.device("meta"):
            module = catalog.load(catalog.ARCHITECTURES[str(build.arch)])(**build.args)
    except UserError as error:
        raise UserError(f"{field}.build.args: {error.message}", hint=error.hint) from error
    needed = sum(tensor.numel() * tensor.element_size() for tensor in module.parameters())
    hint = "check the widths, or raise --memory if the machine has it"
    refuse_above(source.memory, needed, f"{field}.build.args: a network of", hint)
    return module, ()


def _checked_weights(
    module: nn.Module, state: Mapping[str, Tensor], path: Path, part: ModelSpec, field: str, chosen: Collection[str]
) -> dict[str, Tensor]:
    """The tensors of `state` that the module has; one error lists everything that does not fit.

    The `chosen` parameters must be there, even if the code of the network froze them.
    """
    expected, strict = module.state_dict(), part.weights is None or part.weights.strict
    found = {name: tensor for name, tensor in state.items() if name in expected}
    unexpected = [name for name in state if name not in expected] if strict else []
    missing = _missing(module, found, strict, chosen)
    wrong = [name for name, tensor in found.items() if tensor.shape != expected[name].shape]
    if missing or unexpected or wrong:
        problems = [
            _listing("missing", missing, lambda name: _shape(expected[name])),
            _listing("unexpected", unexpected, lambda name: _shape(state[name])),
            _listing("wrong shape", wrong, lambda n: f"{_shape(found[n])}, expected {_shape(expected[n])}"),
        ]
        lines = [f"{path}: the weights do not fit {field}.build", *filter(None, problems)]
        unnamed = part.weights is None or not (part.weights.rename or part.weights.prefix)
        if missing and unnamed and (rename := suggested_rename(state, expected)) is not None:
            hint = "the shapes fit in this order; if the layers are the same ones: weights: {…, " + rename + "}"
            raise UserError(lines, hint=hint)
        raise UserError(lines, hint=_hint(_fitting_prefix(state, expected), missing, unexpected, wrong))
    for name, tensor in found.items():
        if expected[name].is_floating_point() != tensor.is_floating_point():
            kind = "floating point" if expected[name].is_floating_point() else expected[name].dtype
            raise UserError(f"{path}: '{name}' holds {tensor.dtype} values, expected {kind}")
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            count = int((~torch.isfinite(tensor)).sum())
            message = f"{path}: '{name}' has {count} values that are NaN or infinite, expected finite weights"
            raise UserError(message, hint="the training diverged, or the file is damaged; use an earlier checkpoint")
    return found


def _missing(module: nn.Module, found: Mapping[str, Tensor], strict: bool, chosen: Collection[str]) -> list[str]:
    parameters = dict(module.named_parameters(remove_duplicate=False))
    # a tied parameter needs only one of its names
    present = {id(parameter) for name, parameter in parameters.items() if name in found}
    trained = {name for name, parameter in parameters.items() if parameter.requires_grad} | {*chosen}
    needed = [name for name in module.state_dict() if strict or name in trained]
    needed = [name for name in needed if name not in found and not name.endswith(COUNTER)]
    return [name for name in needed if id(parameters.get(name)) not in present]


def _listing(title: str, names: list[str], detail: Callable[[str], str]) -> str:
    if not names:
        return ""
    rest = f" ... and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return f"  {title}: " + ", ".join(f"{name} {detail(name)}" for name in names[:NAMES_SHOWN]) + rest


def _shape(tensor: Tensor) -> str:
    return f"({', '.join(map(str, tensor.shape))})"


def _hint(prefix: str | None, missing: list[str], unexpected: list[str], wrong: list[str]) -> str:
    if prefix:
        return f"some keys would fit without '{prefix}': weights: {{…, strip_prefix: {prefix}}}"
    if missing and unexpected:
        return "is it another architecture, depth or shortcut? weights.rename maps old names to new ones"
    if wrong:
        return "check the widths, depth and number of outputs in build.args"
    if missing:
        return "check depth and layers in build.args; weights.key picks another part of the file"
    return "check depth and layers in build.args; weights: {…, strict: false} ignores unexpected keys"


def _fitting_prefix(state: Iterable[str], expected: Mapping[str, Tensor]) -> str | None:
    cuts = ((name, dot.end()) for name in state if name not in expected for dot in re.finditer(r"\.", name))
    return next((name[:end] for name, end in cuts if name[end:] in expected), None)

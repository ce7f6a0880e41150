"""The spec's `data` section → splits of checked rows, which are prepared chunk by chunk.

Each format is one function `read_…(request) -> Source` named in `catalog.DATA_FORMATS`.
To add one: 1. write the reader, 2. add the catalog line, 3. if it needs an optional package, add that to `EXTRAS`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ... import catalog
from ...errors import UserError, suggestion
from ..spec.data import DataSpec, SplitSpec
from ..spec.models import Spec
from . import transforms
from .sources import ArrayInputs, ChosenRows, ReadRequest, Source, check_lengths, choose, map_inputs
from .transforms import MeanStd, Preparation, Scales

__all__ = ["ArrayInputs", "MeanStd", "Preparation", "Scales", "Split", "data_files", "load_splits", "require_extra"]

Resolve = Callable[[str, str], Path]

SPLIT_NAMES = ("train", "test", "reference", "validation")
EXTRAS = {"parquet": ("pyarrow", "parquet"), "imagefolder": ("PIL", "image")}


@dataclass(frozen=True)
class Split:
    """The chosen rows of one split, as stored; `inputs` prepares a chunk of them."""

    name: str
    raw: ArrayInputs
    targets: np.ndarray | None
    rows: np.ndarray
    source_rows: int
    preparation: Preparation
    target_scale: MeanStd | None

    def __len__(self) -> int:
        return len(self.rows)

    def inputs(self, start: int, stop: int) -> ArrayInputs:
        """Rows [start, stop) after transforms and standardisation."""
        raw, prepare = self.raw, self.preparation.apply
        if isinstance(raw, np.ndarray):
            return prepare(raw[start:stop])
        return map_inputs(lambda array: prepare(array[start:stop]), raw)

    def inputs_at(self, rows: list[int]) -> ArrayInputs:
        """The same for any rows."""
        return map_inputs(lambda array: self.preparation.apply(array[rows]), self.raw)


def require_extra(format_name: str) -> None:
    """Refuse early if the package that a data format needs is not installed."""
    module, extra = EXTRAS.get(format_name, ("numpy", ""))
    if find_spec(module) is None:
        hint = f"pip install 'sublaplace[{extra}]'"
        raise UserError(f"data.format: {format_name} needs a package that is not installed ({module})", hint=hint)


def data_files(data: DataSpec, resolve: Resolve, names: Sequence[str] | None = None) -> list[Path]:
    """Every file that the splits (or those called `names`) read, for hashing."""
    origins = dict.fromkeys(origin_of(data, name) for name in names or _configured(data))
    paths = dict.fromkeys(_path(data, origin, resolve) for origin in origins)
    if data.format == "imagefolder":
        from .images import image_files

        return [file for path in paths for file in image_files(path)]
    return list(paths)


def load_splits(
    spec: Spec, names: Sequence[str], resolve: Resolve, memory: int, scales: Scales | None = None
) -> dict[str, Split]:
    """The splits called `names`, checked; `scales` replace those that are measured on the training rows."""
    data = spec.data
    require_extra(data.format)
    origins = {name: origin_of(data, name) for name in names}
    train = origin_of(data, "train")
    needed = list(dict.fromkeys(origins.values()))
    if scales is None and "from-train" in (data.standardise.input, data.standardise.target) and train not in needed:
        needed.append(train)
    sources = _read_sources(data, needed, resolve, memory, needs_train=scales is None)
    chosen = {name: choose(source, _split_spec(data, name), name, memory) for name, source in sources.items()}
    targets = {origin: _targets(part, spec, is_train=origin == train) for origin, part in chosen.items()}
    target_scale = _target_scale(spec, targets, train) if scales is None else scales.target
    preparations = _preparations(data, chosen, train, scales)
    built = {}
    for origin, part in chosen.items():
        values = _scaled(targets[origin], target_scale, origin)
        built[origin] = Split(origin, part.raw, values, part.rows, len(part.source), preparations[origin], target_scale)
    return {name: replace(built[origin], name=name) for name, origin in origins.items()}


def _read_sources(
    data: DataSpec, origins: Sequence[str], resolve: Resolve, memory: int, needs_train: bool
) -> dict[str, Source]:
    """The source of each split; each file is read once, within the memory that is left."""
    train = origin_of(data, "train")
    has_path = (getattr(_split_spec(data, train), "path", None) or data.path) is not None
    training_path = _path(data, train, resolve) if needs_train and has_path else None
    read: dict[tuple[Path, str], Source] = {}
    sources = {}
    for origin in origins:
        path = _path(data, origin, resolve)
        arrays = getattr(_split_spec(data, origin), "arrays", None) or data.arrays
        key = path, repr(arrays)
        if key not in read:
            left = memory - sum(source.held for source in read.values())
            request = ReadRequest(path, data.columns, arrays, None if path == training_path else training_path, left)
            read[key] = catalog.find(catalog.DATA_FORMATS, data.format, "data format")(request)
            check_lengths(read[key])
        sources[origin] = read[key]
    return sources


def _split_spec(data: DataSpec, name: str) -> SplitSpec | None:
    return getattr(data.splits, name, None)


def _configured(data: DataSpec) -> list[str]:
    """The splits of the spec, and `train`, which defaults to all rows of `data.path`."""
    names = [name for name in SPLIT_NAMES if _split_spec(data, name) is not None]
    return names if "train" in names or data.path is None else ["train", *names]


def origin_of(data: DataSpec, name: str) -> str:
    """The split whose rows `name` uses, through `same_as`."""
    chain = [name]
    while True:
        spec = _split_spec(data, chain[-1])
        source = "train" if spec is None and chain[-1] == "reference" else getattr(spec, "same_as", None)
        if source is None:
            break
        if source not in SPLIT_NAMES:
            hint = suggestion(source, SPLIT_NAMES)
            raise UserError(f"data.splits.{chain[-1]}.same_as: unknown split '{source}'", hint=hint)
        if source in chain:
            raise UserError(f"data.splits: same_as leads in a circle: {' → '.join([*chain, source])}")
        chain.append(source)
    if spec is None and chain[-1] != "train":
        raise UserError(f"the spec has no split '{chain[-1]}'", hint=f"add data.splits.{chain[-1]}")
    return chain[-1]


def _path(data: DataSpec, origin: str, resolve: Resolve) -> Path:
    own = getattr(_split_spec(data, origin), "path", None)
    field = f"data.splits.{origin}.path" if own else "data.path"
    value = own or data.path
    if not value:
        raise UserError(f"split '{origin}' has no file", hint=f"set data.path or data.splits.{origin}.path")
    path = resolve(value, field)
    folder = data.format == "imagefolder"
    if not (path.is_dir() if folder else path.is_file()):
        found = "is missing" if not path.exists() else f"is not a {'folder' if folder else 'file'}"
        raise UserError(f"{field}: {path} {found}", hint="paths are relative to the folder of the spec")
    return path


def _targets(chosen: ChosenRows, spec: Spec, *, is_train: bool) -> np.ndarray | None:
    if chosen.targets is None:
        return None
    where = str(chosen.source.path)
    if not catalog.TASKS[spec.task].labels:
        return transforms.measured_targets(chosen.targets, where)
    wrap = spec.model.wrap
    positive_classes = None if wrap is None else wrap.binary_logodds.classes
    labels = transforms.class_labels(chosen.targets, spec.task, positive_classes, where, chosen.row_label)
    if is_train:
        transforms.refuse_one_class(labels, where)
    return labels


def _target_scale(spec: Spec, targets: dict[str, np.ndarray | None], train: str) -> MeanStd | None:
    mode = spec.data.standardise.target
    if mode == "none":
        return None
    if catalog.TASKS[spec.task].labels:
        hint = "remove it: only regression targets can be standardised"
        raise UserError(f"data.standardise.target: the targets of task {spec.task} are classes", hint=hint)
    if mode != "from-train":
        known = [values.shape[1] for values in targets.values() if values is not None]
        return transforms.fixed_scale(mode, (known[0] if known else np.size(mode.mean),), "data.standardise.target")
    values = targets[train]
    if values is None:
        hint = "name the target in data.columns or data.arrays, or set mean and std"
        raise UserError("data.standardise.target is from-train, but the training rows have no target", hint=hint)
    return transforms.measured_scale(values)


def _scaled(values: np.ndarray | None, scale: MeanStd | None, origin: str) -> np.ndarray | None:
    if values is None or scale is None:
        return values
    if values.shape[1:] != scale.mean.shape:
        message = f"split '{origin}' has {values.shape[1]} target columns, its standardisation {len(scale.mean)}"
        raise UserError(message, hint="all splits need the same target columns")
    return scale.apply(values)


def _preparations(
    data: DataSpec, chosen: dict[str, ChosenRows], train: str, scales: Scales | None
) -> dict[str, Preparation]:
    mode = data.standardise.input
    if mode == "none" and not data.transforms and (scales is None or scales.input is None):
        return dict.fromkeys(chosen, Preparation())
    arrays, compiled = {}, {}
    for origin, part in chosen.items():
        if not isinstance(part.raw, np.ndarray):
            message = "data.transforms and data.standardise.input work on one input array"
            hint = "prepare the arrays before storing them, and remove both keys from the spec"
            raise UserError(f"{part.source.path}: {message}, but there are {len(part.raw)}", hint=hint)
        arrays[origin] = part.raw
        compiled[origin] = transforms.compile_steps(data.transforms, part.raw.shape[1:])
    from_train = scales.input if scales is not None else None
    if mode == "from-train" and scales is None:
        from_train = transforms.measured_scale(arrays[train], compiled[train][0])
    preparations = {}
    for origin, (steps, shape) in compiled.items():
        scale = (
            from_train
            if mode in ("none", "from-train")
            else transforms.fixed_scale(mode, shape, "data.standardise.input")
        )
        if scale is not None and scale.mean.shape != shape:
            hint = "all splits need the same inputs"
            raise UserError(f"rows of split '{origin}' have shape {shape}, training rows {scale.mean.shape}", hint=hint)
        preparations[origin] = Preparation(steps, scale)
    return preparations

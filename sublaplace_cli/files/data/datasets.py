"""The spec's `data` section → splits of checked rows, which are prepared chunk by chunk.

Each format is one function `read_…(request) -> Source` named in `catalog.DATA_FORMATS`.
To add one: 1. write the reader, 2. add the catalog line, 3. if it needs an optional package, add that to `EXTRAS`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ... import catalog
from ...errors import UserError, how_to_install
from ..reading import reason_of
from ..spec.columns import ArraysSpec, ColumnsSpec
from ..spec.data import DataSpec
from ..spec.models import Spec
from ..spec.splits import TEST, SplitSpec
from . import labels, transforms
from .columnar.arrow_files import arrow_files, is_saved_dataset, split_folder
from .images import image_files
from .sources import ArrayInputs, ChosenRows, ReadRequest, Source, TargetRequest, check_lengths, choose, map_inputs
from .text import read_texts
from .tokenizing import open_tokenizer
from .transforms import MeanStd, Preparation, Scales

Resolve = Callable[[str, str], Path]
Reader = Callable[[ReadRequest], Source]

EXTRAS = {"parquet": ("pyarrow", "parquet"), "arrow": ("pyarrow", "parquet"), "imagefolder": ("PIL", "image")}


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
    classes: tuple[str, ...] | None = None  # the label of each class number, if labels are texts or true/false
    columns: tuple[str, ...] = ()  # names of the input columns, where they have names of their own
    notes: tuple[str, ...] = ()  # about its file

    def __len__(self) -> int:
        return len(self.rows)

    def inputs(self, rows: slice | list[int]) -> ArrayInputs:
        """These rows after transforms and standardisation."""
        raw, prepare = self.raw, self.preparation.apply
        return prepare(raw[rows]) if isinstance(raw, np.ndarray) else map_inputs(lambda a: prepare(a[rows]), raw)


def require_extra(format_name: str) -> None:
    """Refuse early if the package that a data format needs is not installed."""
    module, extra = EXTRAS.get(format_name, ("numpy", ""))
    try:
        import_module(module)
    except ImportError:
        message = f"data.format: {format_name} needs a package that is not installed ({module})"
        raise UserError(message, hint=how_to_install(extra)) from None


def data_files(data: DataSpec, resolve: Resolve, names: Sequence[str] | None = None) -> list[Path]:
    """Every file that the splits (or those called `names`) read, for hashing."""
    # train needs no entry: it defaults to all rows of data.path
    defined = [*(["train"] if data.path else []), *data.named_splits]
    origins = dict.fromkeys(origin_of(data, name) for name in names or defined)
    paths = dict.fromkeys(_path(data, origin, resolve) for origin in origins)
    if data.format == "imagefolder":
        return [file for path in paths for file in image_files(path)]
    if data.format == "arrow":
        return [file for path in paths for file in arrow_files(path)]
    return list(paths)


def load_splits(
    spec: Spec, names: Sequence[str], resolve: Resolve, memory: int, scales: Scales | None = None
) -> dict[str, Split]:
    """The splits called `names`, checked; `scales` replace what is found in the training rows."""
    data = spec.data
    require_extra(data.format)
    origins = {name: origin_of(data, name) for name in names}
    train = origin_of(data, "train")
    needed = list(dict.fromkeys(origins.values()))
    if scales is None and "from-train" in (data.standardise.input, data.standardise.target) and train not in needed:
        needed.append(train)
    sources = _read_sources(spec, needed, resolve, memory, scales)
    chosen = {name: choose(source, _split_spec(data, name), name, memory) for name, source in sources.items()}
    classes = _known_classes(data, scales) or _training_classes(spec, chosen.get(train))
    targets = {origin: _targets(part, spec, classes, is_train=origin == train) for origin, part in chosen.items()}
    target_scale = _target_scale(data, targets, train) if scales is None else scales.target
    preparations = _preparations(data, chosen, train, scales)
    for origin, values in targets.items():
        if values is None or target_scale is None:
            continue
        if values.shape[1:] != target_scale.mean.shape:
            expected = len(target_scale.mean)
            message = f"split '{origin}' has {values.shape[1]} target columns, its standardisation {expected}"
            raise UserError(message, hint="all splits need the same target columns")
        targets[origin] = scaled = target_scale.apply(values)
        if not (np.abs(scaled) <= transforms.LARGEST_VALUE).all():
            raise transforms.overflow("data.standardise.target")
    splits = {}
    for name, origin in origins.items():
        part, prepare = chosen[origin], preparations[origin]
        about_rows = (part.raw, targets[origin], part.rows, len(part.source))
        facts = (classes, part.source.input_names, part.source.notes)
        splits[name] = Split(name, *about_rows, prepare, target_scale, *facts)
    return splits


def read_matrix(path: Path, array: str | None, field: str, memory: int) -> np.ndarray:
    """One array or column of a csv, npz, npy or safetensors file, (rows, …), with the checks of data files."""
    format_name = path.suffix.removeprefix(".")
    if format_name not in ("csv", "npz", "npy", "safetensors"):
        raise UserError(f"{field}: {path} is not a .csv, .npz, .npy or .safetensors file")
    columns = ColumnsSpec(input=[array]) if format_name == "csv" and array is not None else None
    arrays = ArraysSpec(input=array or "f") if format_name in ("npz", "safetensors") else None
    reader = catalog.load(catalog.DATA_FORMATS[format_name])
    source = _read(reader, ReadRequest(path, columns, arrays, None, memory))
    return choose(source, SplitSpec(), "predictions", memory).raw  # type: ignore[return-value]


def _reader(spec: Spec, resolve: Resolve) -> Reader:
    data = spec.data
    if data.text is None:
        return catalog.load(catalog.DATA_FORMATS[data.format])
    return partial(read_texts, format_name=data.format, spec=data.text, tokenizer=open_tokenizer(spec, resolve))


def _read(reader: Reader, request: ReadRequest) -> Source:
    """All rows of one file; what the system refuses (no permission, a damaged disk) is reported here."""
    try:
        source = reader(request)
    except OSError as error:
        hint = "expected a file that you may read"
        raise UserError(f"{error.filename or request.path}: cannot be read: {reason_of(error)}", hint=hint) from error
    check_lengths(source)
    return labels.with_array_labels(source, request)


def _read_sources(
    spec: Spec, origins: Sequence[str], resolve: Resolve, memory: int, scales: Scales | None
) -> dict[str, Source]:
    """The source of each split; each file is read once, within the memory that is left."""
    data, reader, needs_train = spec.data, _reader(spec, resolve), scales is None
    train = origin_of(data, "train")
    has_path = (_split_spec(data, train).path or data.path) is not None
    takes_labels = catalog.TASKS[spec.task].labels and spec.model.wrap is None  # a wrap counts classes by number
    classes = _known_classes(data, scales) if takes_labels else None
    training_path = _path(data, train, resolve) if needs_train and has_path else None
    read: dict[tuple[Path, str, bool], Source] = {}
    sources = {}
    for origin in origins:
        path = _path(data, origin, resolve)
        arrays = _split_spec(data, origin).arrays or data.arrays
        with_targets = origin not in data.ood_sets
        key = path, repr(arrays), with_targets
        if key not in read:
            left = memory - sum(source.held for source in read.values())
            training = None if path == training_path else training_path
            allowed = partial(_require_allowed, resolve)
            may_lack = training is not None or not needs_train
            about_targets = TargetRequest(with_targets, may_lack, takes_labels, classes)
            rest = None if scales is None else scales.rest
            request = ReadRequest(path, data.columns, arrays, training, left, allowed, about_targets, rest)
            read[key] = _read(reader, request)
        sources[origin] = read[key]
    return sources


def _require_allowed(resolve: Resolve, path: Path) -> None:
    resolve(str(path.absolute()), "data.path")


def _split_spec(data: DataSpec, name: str) -> SplitSpec:
    return data.named_splits.get(name) or SplitSpec()


def origin_of(data: DataSpec, name: str) -> str:
    """The split whose rows `name` uses, through `same_as`, which never leads in a circle."""
    split = data.named_splits.get(name)
    if split is None and name == TEST and data.test_sets:
        return next(iter(data.test_sets))  # of several sets, the first one
    if split is None and name == "reference":
        return origin_of(data, "train")
    if split is None and name != "train":
        raise UserError(f"the spec has no split '{name}'", hint=f"add data.splits.{name}")
    return origin_of(data, split.same_as) if split and split.same_as else name


def _path(data: DataSpec, origin: str, resolve: Resolve) -> Path:
    own = _split_spec(data, origin).path
    field = f"data.splits.{origin}.path" if own else "data.path"
    value = own or data.path
    if not value:
        raise UserError(f"split '{origin}' has no file", hint=f"set data.path or data.splits.{origin}.path")
    path = resolve(value, field)
    folder = data.format == "imagefolder" or (data.format == "arrow" and is_saved_dataset(path))
    if not (path.is_dir() if folder else path.is_file()):
        found = "is missing" if not path.exists() else f"is not a {'folder' if folder else 'regular file'}"
        raise UserError(f"{field}: {path} {found}", hint="paths are relative to the folder of the spec")
    return split_folder(path, origin) if data.format == "arrow" else path


def _known_classes(data: DataSpec, scales: Scales | None) -> tuple[str, ...] | None:
    """The classes in the order of the spec, else in that of a posterior; None: sorted labels of the training rows."""
    return tuple(data.classes) if data.classes else None if scales is None else scales.classes


def _training_classes(spec: Spec, train: ChosenRows | None) -> tuple[str, ...] | None:
    if train is None or train.targets is None or train.source.labels is None:
        return None
    if spec.data.format == "imagefolder":
        return train.source.labels  # all folders: rows of some may not have been chosen
    return labels.classes_of(train.source, train.targets)


def _targets(chosen: ChosenRows, spec: Spec, classes: tuple[str, ...] | None, *, is_train: bool) -> np.ndarray | None:
    """The targets: measurements as (N, C) float64, class numbers as (N,) int64."""
    values, where = chosen.targets, str(chosen.source.path)
    if values is None:
        return None
    if catalog.TASKS[spec.task].labels:
        values = labels.numbered(chosen, values, classes, spec.task)
    if not catalog.TASKS[spec.task].labels:
        if values.ndim > 2:
            hint = "store one target row per data row: (N,) or (N, C)"
            raise UserError(f"{where}: the target has shape {values.shape}", hint=hint)
        return np.array(values, dtype=np.float64).reshape(len(values), -1)
    positive_classes = None if spec.model.wrap is None else spec.model.wrap.binary_logodds.classes
    numbers = transforms.class_labels(values, spec.task, positive_classes, where, chosen.row_label)
    if is_train and len(np.unique(numbers)) < 2:
        hint = "choose other training rows (is the file sorted by class?), or check the target"
        label = numbers[0] if classes is None else repr(classes[numbers[0]])
        raise UserError(f"{where}: one-class data: all {len(numbers)} training targets are {label}", hint=hint)
    return numbers


def _target_scale(data: DataSpec, targets: dict[str, np.ndarray | None], train: str) -> MeanStd | None:
    mode = data.standardise.target
    if mode == "none":
        return None
    if mode != "from-train":
        known = [values.shape[1] for values in targets.values() if values is not None]
        return transforms.fixed_scale(mode, (known[0] if known else np.size(mode.mean),), "data.standardise.target")
    values = targets[train]
    if values is None:
        hint = "name the target in data.columns or data.arrays, or set mean and std"
        raise UserError("data.standardise.target is from-train, but the training rows have no target", hint=hint)
    return transforms.measured_scale(values)


def _preparations(
    data: DataSpec, chosen: dict[str, ChosenRows], train: str, scales: Scales | None
) -> dict[str, Preparation]:
    mode, scale = data.standardise.input, None if scales is None else scales.input
    if mode == "none" and not data.transforms and scale is None:
        return dict.fromkeys(chosen, Preparation())
    compiled = {}
    for origin, part in chosen.items():
        if not isinstance(part.raw, np.ndarray):
            message = "data.transforms and data.standardise.input work on one input array"
            hint = "prepare the arrays before storing them, and remove both keys from the spec"
            raise UserError(f"{part.source.path}: {message}, but there are {len(part.raw)}", hint=hint)
        compiled[origin] = transforms.compile_steps(data.transforms, part.raw.shape[1:])
    if mode == "from-train" and scales is None:
        rows: Any = chosen[train].raw
        scale = transforms.measured_scale(rows, compiled[train][0])
    preparations = {}
    for origin, (steps, shape) in compiled.items():
        if not isinstance(mode, str):
            scale = transforms.fixed_scale(mode, shape, "data.standardise.input")
        if scale is not None and scale.mean.shape != shape:
            hint = "all splits need the same inputs"
            raise UserError(f"rows of split '{origin}' have shape {shape}, training rows {scale.mean.shape}", hint=hint)
        preparations[origin] = Preparation(steps, scale)
    return preparations

"""A folder of images, one sub-folder per class: path/<class>/<image>."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UserError
from ..reading import reading
from .sources import ReadRequest, Source, refuse_if_larger, suggestion_from_file

IMAGE_SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
# A fixed list: some of Pillow's other readers start external programs.
DECODERS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
# Converting these to RGB clips their values silently.
DEEP_MODES = ("I", "F")


def read_imagefolder(request: ReadRequest) -> Source:
    """RGB images of one size as (N, H, W, 3) uint8, with the class number as target."""
    from PIL import Image

    files = image_files(request.path)
    for file in files:
        request.require_allowed(file)
    names = tuple(folder.name for folder in _class_folders(request.path)) if request.targets.takes_labels else None
    targets = None
    if request.targets.wanted:
        targets = _class_numbers(request, files) if names is None else _places(files, names)
    width, height = _common_size(files, Image)
    refuse_if_larger(3 * width * height * len(files), request.memory, f"{request.path}: {len(files)} images")
    images: np.ndarray = np.empty((len(files), height, width, 3), dtype=np.uint8)
    for row, file in enumerate(files):
        with _opened(file, Image) as image:
            pixels = np.asarray(image.convert("RGB"))
        if pixels.shape != images.shape[1:]:  # some decoders turn an image or find another size
            message = f"{file} is {width}x{height} in its header, but {pixels.shape[1]}x{pixels.shape[0]} decoded"
            raise UserError(message, hint="save it again without an orientation tag")
        images[row] = pixels
    return Source(request.path, images, targets, held=images.nbytes, labels=names)


def _places(files: list[Path], names: Sequence[str]) -> np.ndarray:
    """The place of each image's class among the folders of this path."""
    places = {name: place for place, name in enumerate(names)}
    return np.array([places[file.parent.name] for file in files], dtype=np.int64)


def image_files(path: Path) -> list[Path]:
    """All images, sorted by the name of the class, then by the name of the file."""
    files = [
        file
        for folder in _class_folders(path)
        for file in sorted(folder.iterdir())
        if file.suffix.lower() in IMAGE_SUFFIXES and not file.name.startswith(".") and file.is_file()
    ]
    if not files:
        hint = f"expected {path.name}/<class>/<image>, with one of {', '.join(sorted(IMAGE_SUFFIXES))}"
        raise UserError(f"{path} has no images in class folders", hint=hint)
    return files


def _class_folders(path: Path) -> list[Path]:
    return sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _class_numbers(request: ReadRequest, files: list[Path]) -> np.ndarray:
    # The training folder defines the class numbers: a class that another folder lacks must not renumber the rest.
    names = [folder.name for folder in _class_folders(request.training_path or request.path)]
    numbers = {name: number for number, name in enumerate(names)}
    for file in files:
        if file.parent.name not in numbers:
            message = f"{request.path}: class '{file.parent.name}' is not among those of {request.training_path}"
            raise UserError(message, hint=suggestion_from_file(file.parent.name, names))
    return np.array([numbers[file.parent.name] for file in files], dtype=np.int64)


@contextmanager
def _opened(file: Path, image_class: Any) -> Iterator[Any]:
    """An image with its header read; only calls of its decoder belong in the block."""
    with reading(file, "not a readable image", "remove it, or save it again"), warnings.catch_warnings():
        warnings.simplefilter("error", image_class.DecompressionBombWarning)
        try:
            with image_class.open(file, formats=DECODERS) as image:
                yield image
        except (image_class.DecompressionBombWarning, image_class.DecompressionBombError) as error:
            raise UserError(f"{file}: refused as a decompression bomb: {error}", hint="scale it down") from None


def _common_size(files: list[Path], image_class: Any) -> tuple[int, int]:
    """Width and height of all images, from their headers only."""
    sizes = []
    for file in files:
        with _opened(file, image_class) as image:
            mode, size = image.mode, image.size
        if mode.split(";")[0] in DEEP_MODES:
            raise UserError(f"{file} has mode {mode}, expected 8 bits", hint="convert it to 8-bit RGB")
        sizes.append(size)
        if size != sizes[0]:
            message = "{} is {}x{}, but {} is {}x{}".format(file, *size, files[0], *sizes[0])
            raise UserError(message, hint="all images need the same size: resize them first")
    return sizes[0]

"""Image folders: classes, sizes, and every way in which an image can be wrong, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files.data.data_cases import load, refusal, train, whole

from sublaplace_cli.files.data.datasets import Scales, data_files, load_splits
from sublaplace_cli.files.spec.data import DataSpec
from sublaplace_cli.files.spec.models import ModelSpec, Spec


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    image = pytest.importorskip("PIL.Image")
    for number, name in enumerate(("ant", "bee", "cat")):
        (tmp_path / "p" / name).mkdir(parents=True)
        for i in range(2):
            pixels: np.ndarray = np.full((4, 5, 3), 40 * number + i, dtype=np.uint8)
            image.fromarray(pixels).save(tmp_path / "p" / name / f"{i}.png")
    (tmp_path / "p" / "ant" / "notes.txt").write_text("not an image")
    return tmp_path


IMAGES: dict[str, Any] = {"format": "imagefolder", "path": "p", "task": "multiclass"}


def test_images_by_class(pictures: Path) -> None:
    split = train(pictures, **IMAGES)
    assert whole(split).shape == (6, 4, 5, 3)
    assert whole(split).dtype == np.uint8
    assert split.targets is not None
    assert split.targets.tolist() == [0, 0, 1, 1, 2, 2]
    assert whole(split)[:, 0, 0, 0].tolist() == [0, 1, 40, 41, 80, 81]
    spec = DataSpec.model_validate({"format": "imagefolder", "path": "p"})
    names = [file.name for file in data_files(spec, lambda value, _: pictures / value)]
    assert names == ["0.png", "1.png"] * 3


def test_classes_are_numbered_by_the_training_folder(pictures: Path) -> None:
    (pictures / "q").mkdir()
    (pictures / "p" / "cat").rename(pictures / "q" / "cat")
    (pictures / "p" / "cat").mkdir()
    splits = {"train": {}, "test": {"path": "q"}}
    test = load(pictures, ("train", "test"), splits=splits, **IMAGES)["test"]
    assert test.targets.tolist() == [2, 2]
    assert test.classes == ("ant", "bee", "cat")
    ordered = load(pictures, ("train", "test"), splits=splits, classes=["cat", "bee", "ant", "owl"], **IMAGES)
    assert ordered["train"].targets.tolist() == [2, 2, 1, 1]
    assert ordered["test"].targets.tolist() == [0, 0]
    (pictures / "q" / "cat").rename(pictures / "q" / "cow")
    message = refusal(pictures, "train", "test", splits=splits, **IMAGES)
    assert "the label 'cow' is not one of the 3 classes" in message


def test_classes_of_a_posterior_number_the_images(pictures: Path) -> None:
    """The training folder is not read: without its classes, those of a folder that lacks one would shift."""
    (pictures / "p" / "ant").rename(pictures / "ant")
    splits = {"train": {"path": "-"}, "test": {"path": "p"}}
    data = DataSpec.model_validate({"format": "imagefolder", "splits": splits})
    spec = Spec.model_construct(task="multiclass", model=ModelSpec.model_construct(wrap=None), data=data)
    scales = Scales(None, None, ("ant", "bee", "cat"))
    test = load_splits(spec, ("test",), lambda value, _: pictures / value, 2**28, scales)["test"]
    assert test.targets is not None
    assert test.targets.tolist() == [1, 1, 2, 2]


def test_ood_images_may_be_of_any_class(pictures: Path) -> None:
    (pictures / "q").mkdir()
    (pictures / "p" / "cat").rename(pictures / "q" / "digit")
    ood = load(pictures, ("ood",), splits={"train": {}, "ood": {"path": "q"}}, **IMAGES)["ood"]
    assert ood.targets is None
    assert len(ood) == 2


def test_wrong_images_are_explained(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    assert "may be used" in refusal(pictures, memory=100, **IMAGES)
    odd = pictures / "p" / "bee" / "9.png"
    Image.new("RGB", (9, 9)).save(odd)
    assert "9.png is 9x9" in refusal(pictures, **IMAGES)
    Image.new("I;16", (5, 4)).save(odd)
    assert "mode I;16" in refusal(pictures, **IMAGES)
    odd.write_bytes(b"\x89PNG broken")
    assert "9.png: not a readable image" in refusal(pictures, **IMAGES)
    whole_file = (pictures / "p" / "bee" / "0.png").read_bytes()
    odd.write_bytes(whole_file[:-30])
    assert "9.png: not a readable image" in refusal(pictures, **IMAGES)
    odd.unlink()
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 15)
    assert "decompression bomb" in refusal(pictures, **IMAGES)
    (pictures / "empty").mkdir()
    assert "no images in class folders" in refusal(pictures, **{**IMAGES, "path": "empty"})
    assert "is not a folder" in refusal(pictures, **{**IMAGES, "path": "p/ant/0.png"})

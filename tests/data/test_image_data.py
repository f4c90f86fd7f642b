"""Synthetic noise, prepared image files, and the user's folder of images."""

import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from bench.data import images as image_data
from bench.data.files import data_folders, is_real, save_rows
from bench.data.images import NoiseImages, StoredImages, prepare_image_folder, save_images
from bench.errors import DataError, UnknownNameError, UsageError


def write_image(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (40, 30)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    write_image(root / "images" / "cat" / "1.png", (255, 0, 0))
    write_image(root / "images" / "cat" / "deep" / "2.PNG", (255, 0, 0), (30, 40))
    write_image(root / "images" / "dog" / "1.jpg", (0, 0, 255))
    (root / "images" / "dog" / "notes.md").write_text("not an image")
    return root


def test_noise_is_normal_and_differs_between_samples() -> None:
    dataset = NoiseImages((3, 32, 32), 1000, 1_000_000, seed=0)
    samples = torch.stack([dataset[index].args[0] for index in range(50)])
    assert samples.dtype == torch.float32 and (samples != 0).all()
    assert abs(samples.mean()) < 0.02 and abs(samples.std() - 1) < 0.02
    between = torch.corrcoef(samples.flatten(1)) - torch.eye(50)
    assert between.abs().max() < 0.1  # 3,072 values each: 5.5 standard errors
    assert len({int(dataset[index].targets) for index in range(50)}) > 40


@pytest.mark.parametrize("seed", [0, 1, -1, 2**40 + 1])
def test_noise_depends_on_seed_and_index_alone(seed: int) -> None:
    one, other = (NoiseImages((1, 8, 8), 10, 100, seed) for _ in range(2))
    other[3]
    assert one[7].args[0].equal(other[7].args[0])
    assert not one[7].args[0].equal(NoiseImages((1, 8, 8), 10, 100, seed + 1)[7].args[0])


def test_a_dataset_ends() -> None:
    dataset = NoiseImages((1, 2, 2), 10, 3, seed=0)
    assert len(list(dataset)) == 3  # type: ignore[call-overload]
    with pytest.raises(IndexError, match="sample -1 of 3"):
        dataset[-1]


def test_stored_images_are_normalised_and_pickle_as_their_path(tmp_path: Path) -> None:
    pixels = np.arange(2 * 3 * 4 * 4, dtype=np.uint8).reshape(2, 3, 4, 4)
    path = tmp_path / "x.npy"
    save_images(path, (3, 4, 4), 2, [(pixels[0], 5), (pixels[1], 7)])
    dataset = StoredImages(str(path), (0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (dataset.mean, dataset.std))
    image = dataset[1].args[0]
    torch.testing.assert_close(image, (torch.from_numpy(pixels[1]) / 255 - mean) / std)
    assert image.dtype == torch.float32 and dataset[1].targets == 7 and dataset[1].targets.dtype == torch.int64
    stream = pickle.dumps(dataset)
    assert len(stream) < 1000 and pickle.loads(stream)[1].args[0].equal(image)


def test_image_folder_is_decoded_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = prepare_image_folder(folder, tmp_path / "cache", 16, 1000)
    assert source.num_samples == 3 and source.text == f"3 of 3 images in 2 classes of {folder / 'images'}"
    dataset = StoredImages(str(source.path), (0.0,) * 3, (1.0,) * 3)
    colours = {int(item.targets): item.args[0].mean((1, 2)).round() for item in (dataset[i] for i in range(3))}
    assert colours[0].tolist() == [1, 0, 0] and colours[1].tolist() == [0, 0, 1]
    assert dataset[0].args[0].shape == (3, 16, 16)

    monkeypatch.setattr(image_data, "decode_image", lambda *_: pytest.fail("decoded again"))
    assert prepare_image_folder(folder, tmp_path / "cache", 16, 1000) == source
    assert not list((tmp_path / "cache").glob("*.part"))


def test_a_changed_folder_is_decoded_again(folder: Path, tmp_path: Path) -> None:
    before = prepare_image_folder(folder, tmp_path / "cache", 16, 1000)
    write_image(folder / "images" / "dog" / "1.jpg", (0, 255, 0), (80, 90))
    changed = prepare_image_folder(folder, tmp_path / "cache", 16, 1000)
    other_size = prepare_image_folder(folder, tmp_path / "cache", 8, 1000)
    assert len({before.path, changed.path, other_size.path}) == 3


def test_at_most_2048_images_are_sampled(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_data, "MOST_IMAGES", 2)
    assert prepare_image_folder(folder, tmp_path, 16, 1000).text.startswith("2 of 3 images in 2 classes")


def test_decoding_scales_the_shorter_side_and_cuts_the_centre(tmp_path: Path) -> None:
    picture = Image.new("RGB", (60, 20), (255, 255, 255))
    picture.paste((0, 0, 0), (20, 0, 40, 20))
    picture.save(tmp_path / "x.png")
    inner = image_data.decode_image(tmp_path / "x.png", 10)[:, :, 1:-1]
    assert inner.shape == (3, 10, 8) and not inner.any()


@pytest.mark.parametrize("content", [b"", b"no image", b"\x89PNG\r\n\x1a\n" + bytes(20)])
def test_a_corrupt_image_is_named(folder: Path, tmp_path: Path, content: bytes) -> None:
    bad = folder / "images" / "dog" / "2.png"
    bad.write_bytes(content)
    with pytest.raises(DataError, match=f"1 of 4 images cannot be decoded: {re.escape(str(bad))}.*replace or remove"):
        prepare_image_folder(folder, tmp_path / "cache", 16, 1000)
    assert not list((tmp_path / "cache").iterdir())


def test_a_truncated_jpeg_is_named(folder: Path, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    bad = folder / "images" / "dog" / "1.jpg"
    Image.fromarray(noise).save(bad)
    bad.write_bytes(bad.read_bytes()[:1500])
    with pytest.raises(DataError, match=re.escape(str(bad))):
        prepare_image_folder(folder, tmp_path / "cache", 16, 1000)


def test_missing_images_say_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    with pytest.raises(UsageError, match="one folder of JPEG or PNG files per class; name it with --data-root"):
        prepare_image_folder(None, tmp_path, 16, 1000)
    with pytest.raises(UsageError, match=f"no images in {tmp_path} or its folder images/.*correct --data-root"):
        prepare_image_folder(tmp_path, tmp_path, 16, 1000)
    with pytest.raises(UsageError, match="does not exist; check --data-root"):
        prepare_image_folder(tmp_path / "typo", tmp_path, 16, 1000)


def test_too_many_classes(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="2 class folders, the model has 1 classes; keep at most 1"):
        prepare_image_folder(folder, tmp_path, 16, 1)


def test_imagenet_layout_uses_the_train_folder(tmp_path: Path) -> None:
    write_image(tmp_path / "train" / "cat" / "1.png", (1, 2, 3))
    write_image(tmp_path / "val" / "cat" / "2.png", (1, 2, 3))
    assert prepare_image_folder(tmp_path, tmp_path / "cache", 8, 10).text.startswith("1 of 1 images in 1 classes")


def test_data_folders_tries_the_named_one_first(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    assert data_folders(tmp_path, "text", "absent") == [tmp_path / "text", tmp_path]
    assert data_folders(None, "text") == []


def test_an_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    def rows() -> Iterator[NDArray[Any]]:
        yield np.zeros(3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_rows(tmp_path / "x.npy", np.dtype("f8"), (2, 3), rows())
    assert not list(tmp_path.iterdir())


def test_unknown_kind_of_data() -> None:
    assert is_real("real") and not is_real("synthetic")
    with pytest.raises(UnknownNameError, match="unknown kind of data 'fake'; there is: real, synthetic"):
        is_real("fake")

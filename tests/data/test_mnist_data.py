"""The shipped digits, and the user's own MNIST folder."""

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.data import mnist
from bench.data.images import StoredImages
from bench.data.mnist import IMAGES, LABELS, prepare_mnist, shipped_mnist
from bench.errors import DataError, UsageError


def idx(magic: int, array: NDArray[np.uint8]) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return magic.to_bytes(4, "big") + sizes + array.tobytes()


def write_mnist(folder: Path, count: int = 20, packed: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(0).integers(0, 256, (count, 28, 28), dtype=np.uint8)
    for name, content in (
        (IMAGES, idx(2051, pixels)),
        (LABELS, idx(2049, np.arange(count, dtype=np.uint8) % 10)),
    ):
        path = folder / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(content) if packed else content)
    return folder


def test_shipped_digits() -> None:
    images, labels = shipped_mnist()
    assert images.shape == (5000, 28, 28) and images.dtype == labels.dtype == np.uint8
    assert np.bincount(labels).tolist() == [500] * 10
    assert images.reshape(5000, -1).any(axis=1).all()
    assert min(np.bincount(labels[:512], minlength=10)) > 30  # mixed, not sorted by digit
    assert len(np.unique(images.reshape(5000, -1), axis=0)) == 5000


def test_readme_has_the_hash_of_the_shipped_file() -> None:
    digest = hashlib.sha256(mnist.SHIPPED.read_bytes()).hexdigest()
    assert digest in mnist.SHIPPED.parent.joinpath("README.md").read_text()  # type: ignore[attr-defined]


def test_shipped_source(tmp_path: Path) -> None:
    source = prepare_mnist(None, tmp_path)
    assert (source.kind, source.text) == ("real", "MNIST subset, 5,000 real images (shipped)")
    assert source.num_samples == 5000 and prepare_mnist(None, tmp_path) == source
    dataset = StoredImages(str(source.path), mnist.MEAN, mnist.STD)
    images, labels = shipped_mnist()
    np.testing.assert_allclose(dataset[9].args[0][0], (images[9] / 255 - 0.1307) / 0.3081, atol=1e-6)
    assert dataset[9].args[0].shape == (1, 28, 28) and int(dataset[9].targets) == labels[9]


@pytest.mark.parametrize("inside", ["mnist/MNIST/raw", "mnist", "MNIST/raw", "raw", "."])
@pytest.mark.parametrize("packed", [False, True])
def test_own_folder_is_found(tmp_path: Path, inside: str, packed: bool) -> None:
    write_mnist(tmp_path / "root" / inside, packed=packed)
    source = prepare_mnist(tmp_path / "root", tmp_path / "cache")
    assert source.num_samples == 20
    assert source.text == f"MNIST, 20 images of {tmp_path / 'root' / inside}"
    dataset = StoredImages(str(source.path), mnist.MEAN, mnist.STD)
    assert [int(dataset[index].targets) for index in range(20)] == [*range(10), *range(10)]


def test_own_folder_reads_as_torchvision_reads_it(tmp_path: Path) -> None:
    from torchvision.datasets import MNIST

    folder = write_mnist(tmp_path / "MNIST" / "raw")
    for name in ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"):  # torchvision wants all four
        (folder / name).write_bytes(b"")
    images, labels = mnist.read_mnist(folder)
    theirs = MNIST(str(tmp_path))
    assert np.array_equal(images, theirs.data) and np.array_equal(labels, theirs.targets)


def test_a_root_for_other_workloads_leaves_the_shipped_digits(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    assert "shipped" in prepare_mnist(tmp_path, tmp_path / "cache").text
    with pytest.raises(UsageError, match="does not exist"):
        prepare_mnist(tmp_path / "typo", tmp_path / "cache")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (IMAGES, b"", "starts with the number 0, an MNIST file with 2051"),
        (IMAGES, (2051).to_bytes(4, "big") + b"\0\0", "has 6 bytes, not 16"),
        (IMAGES, idx(2051, np.zeros((20, 28, 28), np.uint8))[:-1], "has 15,695 bytes, not 15,696"),
        (IMAGES, idx(2051, np.zeros((20, 14, 14), np.uint8)), "images of shape .20, 14, 14."),
        (LABELS, idx(2049, np.zeros(19, np.uint8)), "19 labels"),
        (LABELS, idx(2049, np.full(20, 10, np.uint8)), "has label 10"),
        (f"{IMAGES}.gz", b"\x1f\x8b broken", "cannot be unpacked"),
        (LABELS, None, f"lacks {LABELS}"),
    ],
)
def test_damaged_folders(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    write_mnist(tmp_path / "root")
    if name.endswith(".gz"):
        (tmp_path / "root" / IMAGES).unlink()
    (tmp_path / "root" / name).unlink(missing_ok=True)
    if content is not None:
        (tmp_path / "root" / name).write_bytes(content)
    with pytest.raises(DataError, match=f"{message}.*(download|leave out)"):
        prepare_mnist(tmp_path / "root", tmp_path / "cache")

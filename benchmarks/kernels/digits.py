"""Classification of handwritten digits by nearest neighbours: a product, a reduction, and one copy to the host.

The squared distance of a test image a to a training image b is |a|^2 - 2 a.b + |b|^2. The first term is the same for
all b, and the last two are one product when each b carries |b|^2 as one more feature. So the distances come from the
gemm kernel, and the nearest neighbour from row_min. Pixels are small integers: float32 holds every distance exactly.
"""

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from cuda_async import DeviceOp, default_device
from kernels.example import Array, to_device
from kernels.gemm import matmul
from kernels.row_min import row_minimum

MIN_ACCURACY = 0.97


@dataclass(frozen=True)
class Outcome:
    """The number of held-out images, the share that was classified right, and whether NumPy agrees on each."""

    held_out: int
    accuracy: float
    agrees: bool

    @property
    def wrong(self) -> str:
        """The fault; "" if there is none."""
        if not self.agrees:
            return "digits: the neighbours differ from those that NumPy finds"
        if self.accuracy <= MIN_ACCURACY:
            return f"digits: accuracy {self.accuracy:.3f}, more than {MIN_ACCURACY} expected"
        return ""


def nearest(images: Array, examples: Array) -> DeviceOp[Array]:
    """Return the op that yields, for each row of `images`, the number of the nearest row of `examples`.

    Args:
        images: (m, features) array of small integers.
        examples: (n, features) array of small integers.
    """
    ones = np.ones((len(images), 1))
    a = np.concatenate([-2 * images, ones], axis=1).astype(np.float32)
    b = np.concatenate([examples, (examples**2).sum(axis=1, keepdims=True)], axis=1).astype(np.float32)
    left, right = to_device((a, np.ascontiguousarray(b.T)))
    return matmul(left, right).then(row_minimum).then(lambda found: found[1].to_numpy())


def classify(seed: int = 0) -> Outcome:
    """Classify a quarter of scikit-learn's digits by their nearest neighbours among the rest, on the default device.

    Raises:
        ModuleNotFoundError: scikit-learn, which ships the images, is not installed.
    """
    images, labels = load_images()
    order = np.random.default_rng(seed).permutation(len(images))
    held_out, training = np.split(order, [len(order) // 4])
    neighbours = nearest(images[held_out], images[training]).sync()
    return Outcome(
        held_out=len(held_out),
        accuracy=np.count_nonzero(labels[training][neighbours] == labels[held_out]) / len(held_out),
        agrees=bool(np.array_equal(neighbours, nearest_by_numpy(images[held_out], images[training]))),
    )


def nearest_by_numpy(images: Array, examples: Array) -> Array:
    """Return the result of `nearest`, from exact integer distances."""
    distances = (examples**2).sum(axis=1) - 2 * (images @ examples.T)
    return np.argmin(distances, axis=1)


def load_images() -> tuple[Array, Array]:
    """Return scikit-learn's 1797 digits as rows of 64 integer pixels, and their labels."""
    datasets: Any = importlib.import_module("sklearn.datasets")  # untyped
    images, labels = datasets.load_digits(return_X_y=True)
    return np.asarray(images).astype(np.int64), np.asarray(labels)


def main() -> None:
    """Classify on the best device and print the outcome."""
    with default_device() as device:
        outcome = classify()
    print(f"{device.name}: {outcome.held_out} held-out digits, {outcome.accuracy:.1%} right")
    if outcome.wrong:
        raise SystemExit(outcome.wrong)


if __name__ == "__main__":
    main()

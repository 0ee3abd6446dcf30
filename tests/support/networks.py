"""Loads real networks for the tests. Nine networks come from the onnx package. A trained network is
loaded if it is available."""

import csv
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks.networks import light
from benchmarks.networks.light import LIGHT, LIGHT_NETWORKS
from benchmarks.rows import CARRIED
from tests.support import ROOT

__all__ = ["EACH_NETWORK", "LIGHT", "LIGHT_NETWORKS"]

QUICK = ("inception_v1", "shufflenet", "squeezenet")
"""Networks that need little time and memory, one for each of several kinds: branches, groups, a
chain."""

EACH_NETWORK = pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in LIGHT_NETWORKS],
)
"""A parametrisation of tests with all networks. `make test` runs only the networks in QUICK."""


def light_network(name: str) -> onnx.ModelProto:
    """Return one of the nine networks. Its fully connected layers are narrower, because these
    layers have most of the weights."""
    return light.light_network(name, head=256)


def random_images(n: int, shape: tuple[int, int, int], seed: int = 0) -> np.ndarray:
    """Return n float32 images of `shape`. Like real images, these images differ in colour and
    coarse pattern.

    White noise would not be suitable, because all images of white noise look the same to a network.
    """
    rng = np.random.default_rng(seed)
    channels, height, width = shape
    coarse = rng.normal(0, 1, (n, channels, 7, 7))
    rows = np.arange(height) * 7 // height
    columns = np.arange(width) * 7 // width
    images = coarse[:, :, rows][:, :, :, columns] + rng.normal(0, 1, (n, channels, 1, 1))
    return (images + rng.normal(0, 0.3, images.shape)).astype(np.float32)


SHARED = ROOT.resolve().parent / "shared"
DATA = CARRIED / "data" if (CARRIED / "data").is_dir() and not SHARED.is_dir() else SHARED / "data"
"""The folder with SqueezeNet, the photographs and their labels: the complete folder, or the part
that `carry` copied."""

SQUEEZENET = DATA / "squeezenet1.1-fp16.onnx"

needs_shared = pytest.mark.skipif(
    not SQUEEZENET.is_file(), reason=f"needs the trained SqueezeNet, {SQUEEZENET} is absent"
)


def photographs(every: int) -> list[Path]:
    """Return one in `every` of the 200 photographs that have labels. Photographs whose files are
    missing are left out.

    A machine with carried photographs has only one in ten.
    """
    folder = DATA / "images"
    with (folder / "labels.csv").open() as table:
        chosen = [folder / row["file"] for row in csv.DictReader(table)][::every]
    return [file for file in chosen if file.is_file()]

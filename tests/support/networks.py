"""Loads real networks for the tests: the onnx package's nine, and a trained one if available."""

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
"""One network for most kinds that needs little time and memory: branches, groups, a chain."""

EACH_NETWORK = pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in LIGHT_NETWORKS],
)
"""Networks for sweeps; `make test` runs those in QUICK."""


def light_network(name: str) -> onnx.ModelProto:
    """Return one of the nine networks, with narrow fully connected layers, which have most of the
    weights."""
    return light.light_network(name, head=256)


def random_images(n: int, shape: tuple[int, int, int], seed: int = 0) -> np.ndarray:
    """Return n float32 images of `shape` that differ like real images: in colour and coarse
    pattern.

    White noise would not be suitable, because all such images look the same to a network.
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
"""SqueezeNet, photographs and their labels: all of them, or those that `carry` copied."""

SQUEEZENET = DATA / "squeezenet1.1-fp16.onnx"

needs_shared = pytest.mark.skipif(
    not SQUEEZENET.is_file(), reason=f"needs the trained SqueezeNet, {SQUEEZENET} is absent"
)


def photographs(every: int) -> list[Path]:
    """Return one in this many of the 200 photographs with labels, as far as they are available.

    If photographs were carried to the machine, every tenth is available.
    """
    folder = DATA / "images"
    with (folder / "labels.csv").open() as table:
        chosen = [folder / row["file"] for row in csv.DictReader(table)][::every]
    return [file for file in chosen if file.is_file()]

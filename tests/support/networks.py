"""Real networks for the tests: the onnx package's nine, and a trained one where it is there."""

import onnx
import pytest

from benchmarks.networks import light
from benchmarks.networks.light import LIGHT, LIGHT_NETWORKS, random_images
from tests.support import ROOT

__all__ = [
    "LIGHT",
    "LIGHT_NETWORKS",
    "SHARED",
    "SQUEEZENET",
    "light_network",
    "needs_shared",
    "random_images",
]


def light_network(name: str) -> onnx.ModelProto:
    """Return one of the nine, its fully connected layers narrow: they hold most of the weights."""
    return light.light_network(name, head=256)


SHARED = ROOT.resolve().parent / "shared"
SQUEEZENET = SHARED / "data/squeezenet1.1-fp16.onnx"

needs_shared = pytest.mark.skipif(
    not SQUEEZENET.is_file(), reason=f"needs the trained SqueezeNet, {SQUEEZENET} is absent"
)

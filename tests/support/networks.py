"""Real networks for the tests: the onnx package's nine, and a trained one where it is there."""

import pytest

from benchmarks.networks.light import LIGHT, LIGHT_NETWORKS, light_network, random_images
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

SHARED = ROOT.resolve().parent / "shared"
SQUEEZENET = SHARED / "data/squeezenet1.1-fp16.onnx"

needs_shared = pytest.mark.skipif(
    not SQUEEZENET.is_file(), reason=f"needs the trained SqueezeNet, {SQUEEZENET} is absent"
)

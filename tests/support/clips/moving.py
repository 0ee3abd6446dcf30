"""Creates clips of moving digits, and writes the network that classifies their motions."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from models.digits.dataset import Handwriting

MOTIONS = ("left", "right", "up", "down", "growing", "shrinking")
FRAMES, SIDE = 8, 32
FILTERS = (8, 16, 32)  # of conv1, conv2, conv3: 3×3×3, stride 2 in space and but for conv1 in time

_SMALL, _LARGE = 10, 20  # sides of the digit
_STEP = 1.5  # pixels a frame, at least


@dataclass(frozen=True, slots=True)
class Clips:
    """Holds clips, N×D×H×W, and the number of each clip's motion. Digits are light on a dark
    background or dark on a light background."""

    pixels: NDArray[np.uint8]
    motions: NDArray[np.int64]


def clips_of(digits: Handwriting, count: int, seed: int) -> Clips:
    """Return `count` clips. The digit and the motion of each clip are chosen at random."""
    rng = np.random.default_rng(seed)
    motions = rng.integers(0, len(MOTIONS), count)
    pixels = [
        moving(digits.images[rng.integers(len(digits.images))], MOTIONS[motion], rng)
        for motion in motions
    ]
    return Clips(np.stack(pixels), motions)


def moving(digit: NDArray[np.uint8], motion: str, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return a clip of a digit, D×H×W, on a noisy background."""
    times = np.linspace(-1, 1, FRAMES)
    side = np.full(FRAMES, rng.uniform(_SMALL, _LARGE))
    x, y = np.full((2, FRAMES), SIDE / 2) + rng.uniform(-4, 4, (2, 1))
    distance = (FRAMES - 1) * rng.uniform(_STEP, 2 * _STEP) / 2
    match motion:
        case "left":
            x = SIDE / 2 - distance * times
        case "right":
            x = SIDE / 2 + distance * times
        case "up":
            y = SIDE / 2 - distance * times
        case "down":
            y = SIDE / 2 + distance * times
        case "growing":
            side = side.mean() * rng.uniform(1.4, 2) ** (times / 1)
        case "shrinking":
            side = side.mean() * rng.uniform(1.4, 2) ** -times
    ground, ink = rng.uniform(0, 90), rng.uniform(160, 255)
    if rng.random() < 0.5:
        ground, ink = ink, ground
    image = Image.fromarray(digit)
    frames = [_placed(image, *place) for place in zip(x, y, side, strict=True)]
    clip = ground + np.stack(frames) / 255 * (ink - ground)
    noisy = clip + rng.normal(0, rng.uniform(0, 8), clip.shape)
    return noisy.clip(0, 255).astype(np.uint8)


def _placed(digit: Image.Image, x: float, y: float, side: float) -> NDArray[np.float64]:
    """Return one frame, with values from 0 to 255. The digit's centre is at x, y."""
    step = digit.width / side
    affine = (step, 0.0, -(x - side / 2) * step, 0.0, step, -(y - side / 2) * step)
    frame = digit.transform((SIDE, SIDE), Image.Transform.AFFINE, affine, Image.Resampling.BILINEAR)
    return np.asarray(frame, np.float64)


def network(
    weights: Mapping[str, NDArray[np.float32]], about: Mapping[str, str]
) -> onnx.ModelProto:
    """Return the network from `clip`, N×1×D×H×W, to `scores`. `weights` have the names that PyTorch
    gives them."""
    nodes, x = [], "clip"
    for number, _ in enumerate(FILTERS, 1):
        name = f"conv{number}"
        strides = [1 if number == 1 else 2, 2, 2]
        inputs = [x, f"{name}.weight", f"{name}.bias"]
        nodes.append(helper.make_node("Conv", inputs, [name], name, pads=[1] * 6, strides=strides))
        x = f"relu{number}"
        nodes.append(helper.make_node("Relu", [name], [x], x))
    nodes.append(helper.make_node("Flatten", [x], ["flat"], "flat"))
    inputs = ["flat", "linear.weight", "linear.bias"]
    nodes.append(helper.make_node("Gemm", inputs, ["scores"], "linear", transB=1))
    graph = helper.make_graph(
        nodes,
        "moving",
        [helper.make_tensor_value_info("clip", TensorProto.FLOAT, ["N", 1, FRAMES, SIDE, SIDE])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", len(MOTIONS)])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, dict(about))
    onnx.checker.check_model(model)
    return model

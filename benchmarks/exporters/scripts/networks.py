"""Builds PyTorch networks whose answers reveal which pixels they received.

Runs in an exporter's environment. Networks with random weights have two defects. They give nearly
the same answers for all images. They also amplify the change of a pixel's last bit hundreds of
times, because their activations cut off half of the values. The networks of this module behave like
trained networks. Their normalisations keep most values in the range in which activations are nearly
linear, and their last layer is scaled so that answers differ between images.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from pytorch_options import NEW, OLD
from recorded import COLOURS, colours, record, softmax
from torch import nn


class Colours(nn.Module):
    """A network with two convolutions that scores how close the mean colour of an image is to each
    of seven colours.

    Its input is (RGB − mean) / deviation, with RGB in [0, 1] and the channels in the order
    `channels`.
    """

    def __init__(self, mean: Any, deviation: Any, channels: str = "rgb", scale: float = 6) -> None:
        super().__init__()
        order = slice(None, None, -1) if channels == "bgr" else slice(None)
        mean, deviation = (np.broadcast_to(np.float32(v), 3)[order] for v in (mean, deviation))
        wanted = np.stack([colour[order] for _, colour in colours()])
        wanted = torch.tensor((wanted - mean) / deviation)
        spread = float(np.mean(deviation))
        torch.manual_seed(0)
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 3, 1)
        )
        with torch.no_grad():  # the features are every second pixel, whatever its sign
            first, last = self.features[0], self.features[3]
            first.weight.zero_()
            first.bias.zero_()
            last.weight.zero_()
            last.bias.zero_()
            for c in range(3):
                first.weight[2 * c, c, 1, 1], first.weight[2 * c + 1, c, 1, 1] = 1, -1
                last.weight[c, 2 * c], last.weight[c, 2 * c + 1] = 1, -1
        self.pool, self.flat = nn.AdaptiveAvgPool2d(1), nn.Flatten()
        self.score = nn.Linear(3, len(COLOURS))
        with torch.no_grad():  # −|x − w|² without |x|², which is the same for every colour
            self.score.weight.copy_(2 * scale * spread * spread * wanted * 3)
            self.score.bias.copy_(-3 * scale * spread * spread * (wanted**2).sum(1))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the logits, N×7."""
        return self.score(self.flat(self.pool(self.features(pixels))))


class Then(nn.Module):
    """Runs a network, and applies a function such as softmax to its output. Exported networks often
    contain such a function."""

    def __init__(self, network: nn.Module, last: Any) -> None:
        super().__init__()
        self.network, self.last = network, last

    def forward(self, pixels: torch.Tensor) -> Any:
        """Return the function's result for the network's output."""
        return self.last(self.network(pixels))


def separable(*normalised: Any) -> nn.Module:
    """Return a `Colours` network with a depthwise convolution between two normalisations. The
    normalisations give each channel a different range of values. Such ranges are hard to
    quantize."""
    network = Colours(*normalised)
    sizes = torch.linspace(0.3, 3, 8)
    ahead, depthwise, behind = (
        nn.BatchNorm2d(8),
        nn.Conv2d(8, 8, 3, 1, 1, groups=8),
        nn.BatchNorm2d(8),
    )
    with torch.no_grad():
        ahead.weight.copy_(sizes)
        depthwise.weight.zero_()
        depthwise.weight[:, 0, 1, 1] = 1
        depthwise.bias.zero_()
        behind.weight.copy_(1 / sizes)
    first, normalise, relu, last = network.features
    network.features = nn.Sequential(
        first, normalise, ahead, relu, depthwise, behind, nn.ReLU(), last
    )
    return network


def lively(network: nn.Module, pixels: torch.Tensor) -> nn.Module:
    """Set the statistics of the network's normalisations, so that it behaves like a trained network
    (see the module's docstring), and return it in inference mode. The statistics are computed from
    `pixels`, N×3×H×W, which are preprocessed images."""
    torch.manual_seed(1)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        if getattr(module, "running_var", None) is not None:
            module.momentum = None  # the statistics become the plain mean over all batches
            nn.init.constant_(module.weight, 0.4)
            nn.init.constant_(module.bias, 1.0)
    network.train()
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        network(pixels)
        network.eval()
        scores = scores_of(network(pixels))
        last = [m for m in network.modules() if isinstance(m, nn.Linear | nn.Conv2d)][-1]
        spread = scores.std(0).mean().clamp_min(1e-6)
        last.weight.mul_(2 / spread)
        if last.bias is not None:
            last.bias.copy_(last.bias * 2 / spread - scores.mean(0) * 2 / spread)
    return network.eval()


def scores_of(output: Any) -> torch.Tensor:
    """Return the logits in a network's output. Networks of transformers and Ultralytics return an
    object that contains the logits."""
    output = output[-1] if isinstance(output, tuple) else output
    return getattr(output, "logits", output)


def export(
    folder: Path,
    photographs: Sequence[Path],
    name: str,
    network: nn.Module,
    transforms: Callable[[Image.Image], torch.Tensor],
    *,
    number: int,
    file: str = "model.onnx",
    beside: Callable[[Path], object] = lambda _: None,
    meaning: Callable[[Any], Sequence[float]] = softmax,
) -> None:
    """Set a network's statistics from the photographs, export the network, and record its answers
    for the photographs.

    PyTorch's newer exporter is used if `number` is odd, and the older exporter if it is even.
    `beside` is a function that writes further files next to the model. `meaning` converts logits to
    probabilities.
    """
    images = [Image.open(photograph).convert("RGB") for photograph in photographs]
    pixels = torch.stack([transforms(image) for image in images])
    lively(network, pixels)
    logits = Then(network, scores_of).eval()
    options = (OLD, NEW)[number % 2]

    def write(place: Path) -> None:
        target = place / file
        target.parent.mkdir(exist_ok=True)
        torch.onnx.export(logits, (pixels[:2],), str(target), input_names=["pixels"], **options)
        beside(place)

    def answer(image: Image.Image) -> Any:
        with torch.no_grad():
            return meaning(logits(transforms(image)[None]).numpy()[0])

    record(folder, name, write, answer, photographs)

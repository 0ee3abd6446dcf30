"""Trains the built-in model. Run it as `make train` or `python -m models.digits.train`.

Training is seeded and uses one thread, so that the same library versions write the same file on the
same kind of processor. It takes about four minutes on one core.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn
from torch.nn import functional

from models.digits import MODEL_PATH
from models.digits.dataset import (
    Amounts,
    Handwriting,
    coverage_maps,
    handwriting,
    photograph,
)
from models.digits.network import CLASSES, CONVS, FEATURES, SIDE, network, to_onnx

_SEED = 0
_BATCH = 128
_PEAK_RATE = 4e-3


def main() -> None:
    """Train the model, measure its accuracy on the test digits, and write the ONNX file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=MODEL_PATH)
    parser.add_argument("--epochs", type=int, default=10)
    arguments = parser.parse_args()
    onnx.save(train(arguments.epochs, Amounts()), arguments.output)
    print(f"wrote {arguments.output}, {arguments.output.stat().st_size} bytes")


def train(epochs: int, amounts: Amounts) -> onnx.ModelProto:
    """Return the trained model. Its metadata contains its accuracy on the test set."""
    torch.manual_seed(_SEED)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    rng = np.random.default_rng(_SEED)

    learnt, held_out = handwriting()
    started = time.monotonic()
    maps, labels = coverage_maps(learnt, amounts, rng)
    print(f"{len(maps)} images drawn in {time.monotonic() - started:.0f} s")

    layers = _fresh_layers()
    _fit(layers, maps, labels, epochs, rng)
    weights = {name: tensor.numpy() for name, tensor in layers.state_dict().items()}
    right = accuracy(to_onnx(weights, {}), held_out)
    print(f"held-out digits: {right:.4f} right")
    return to_onnx(
        weights,
        {
            "trained on": "scikit-learn's digits (UCI optdigits), and digits drawn by Convoy",
            "held-out digits": str(len(held_out.labels)),
            "held-out accuracy": f"{right:.4f}",
        },
    )


def accuracy(model: onnx.ModelProto, digits: Handwriting) -> float:
    """Return the model's accuracy on 8×8 digits that are enlarged to the size of its input."""
    resized = [
        np.asarray(Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.BILINEAR))
        for image in digits.images
    ]
    images = np.stack(resized)[:, None].astype(np.float32) / 255
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (logits,) = session.run(None, {"image": images})
    return float((logits.argmax(axis=1) == digits.labels).mean())


def _fresh_layers() -> nn.ModuleDict:
    layers: dict[str, nn.Module] = {"classify": nn.Linear(FEATURES, CLASSES)}
    for name, layer in CONVS.items():
        layers[name] = nn.Conv2d(
            layer.inputs,
            layer.outputs,
            layer.kernel,
            layer.stride,
            padding=layer.kernel // 2,
            bias=not layer.normalised,
        )
        if layer.normalised:
            layers[f"{name}_bn"] = nn.BatchNorm2d(layer.outputs)
    return nn.ModuleDict(layers)


class _Torch:
    """Implements the operations of `Operations` on PyTorch tensors."""

    def __init__(self, layers: nn.ModuleDict) -> None:
        self._layers = layers

    def conv(self, name: str, x: torch.Tensor) -> torch.Tensor:
        x = self._layers[name](x)
        return self._layers[f"{name}_bn"](x) if CONVS[name].normalised else x

    def relu(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(x)

    def pool(self, x: torch.Tensor) -> torch.Tensor:
        return functional.max_pool2d(x, 2)

    def concat(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.cat([a, b], dim=1)

    def add(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b

    def classify(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._layers["classify"](x.flatten(1))
        return logits


def _fit(
    layers: nn.ModuleDict,
    maps: NDArray[np.float32],
    labels: NDArray[np.int64],
    epochs: int,
    rng: np.random.Generator,
) -> None:
    """Train the layers. Each epoch renders new images from the same coverage maps."""
    steps = len(maps) // _BATCH
    optimiser = torch.optim.AdamW(layers.parameters(), weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, max_lr=_PEAK_RATE, total_steps=epochs * steps
    )
    layers.train()
    for epoch in range(epochs):
        started, total = time.monotonic(), 0.0
        order = rng.permutation(len(maps))
        for chosen in np.split(order[: steps * _BATCH], steps):
            images = torch.from_numpy(photograph(maps[chosen], rng)[:, None])
            logits = network(_Torch(layers), images)
            loss = functional.cross_entropy(
                logits, torch.from_numpy(labels[chosen]), label_smoothing=0.05
            )
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
            schedule.step()
            total += loss.item()
        print(f"epoch {epoch + 1}: loss {total / steps:.4f}, {time.monotonic() - started:.0f} s")
    layers.eval()


if __name__ == "__main__":
    main()

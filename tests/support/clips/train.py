"""Trains the model of clips like models/digits/train.py (python -m tests.support.clips.train)."""

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from models.digits.dataset import handwriting
from tests.support.clips import MODEL_PATH
from tests.support.clips.moving import FILTERS, MOTIONS, clips_of, network

_SEED = 0
_CLIPS, _HELD_OUT = 6000, 1000
_EPOCHS, _BATCH, _PEAK_RATE = 12, 64, 4e-3


def _fresh_layers() -> nn.ModuleDict:
    layers: dict[str, nn.Module] = {}
    for number, (before, after) in enumerate(zip((1, *FILTERS), FILTERS, strict=False), 1):
        stride = (1 if number == 1 else 2, 2, 2)
        layers[f"conv{number}"] = nn.Conv3d(before, after, 3, stride, padding=1)
    layers["linear"] = nn.Linear(FILTERS[-1] * 2 * 4 * 4, len(MOTIONS))
    return nn.ModuleDict(layers)


def _scores(layers: nn.ModuleDict, x: torch.Tensor) -> torch.Tensor:
    for number, _ in enumerate(FILTERS, 1):
        x = functional.relu(layers[f"conv{number}"](x))
    scores: torch.Tensor = layers["linear"](x.flatten(1))
    return scores


def main() -> None:
    """Train on some digits, measure the accuracy on other digits, and write the ONNX file."""
    torch.manual_seed(_SEED)
    torch.set_num_threads(1)
    learnt, held_out = handwriting()
    clips, tested = clips_of(learnt, _CLIPS, 1), clips_of(held_out, _HELD_OUT, 2)
    layers, motions = _fresh_layers(), torch.from_numpy(clips.motions)
    steps = _EPOCHS * (_CLIPS // _BATCH)
    optimizer = torch.optim.AdamW(layers.parameters(), weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _PEAK_RATE, steps)
    inputs = _input(clips.pixels)
    rng = np.random.default_rng(_SEED)
    for epoch in range(_EPOCHS):
        order = rng.permutation(_CLIPS)
        for begin in range(0, _BATCH * (_CLIPS // _BATCH), _BATCH):
            chosen = torch.from_numpy(order[begin : begin + _BATCH])
            loss = functional.cross_entropy(_scores(layers, inputs[chosen]), motions[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        print(f"epoch {epoch + 1}: {loss.item():.4f}", flush=True)
    with torch.no_grad():
        found = _scores(layers, _input(tested.pixels)).argmax(1).numpy()
    right = float((found == tested.motions).mean())
    print(f"held-out clips: {right:.4f} right")
    weights = {name: tensor.numpy() for name, tensor in layers.state_dict().items()}
    about = {
        "trained on": "moving digits of scikit-learn (UCI optdigits)",
        "held-out clips": str(_HELD_OUT),
        "held-out accuracy": f"{right:.4f}",
    }
    onnx.save(network(weights, about), MODEL_PATH)
    print(f"wrote {MODEL_PATH}, {MODEL_PATH.stat().st_size} bytes")


def _input(pixels: NDArray[np.uint8]) -> torch.Tensor:
    return torch.from_numpy(pixels[:, np.newaxis].astype(np.float32) / 255)


if __name__ == "__main__":
    main()

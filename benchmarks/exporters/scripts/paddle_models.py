"""Exports networks of Paddle with paddle2onnx, and writes PaddleClas' file inference.yml next to
each model."""

from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle2onnx
from paddle.vision import models
from PIL import Image
from recorded import asked, attempt, record, softmax

NETWORKS = (
    "mobilenet_v3_small",
    "shufflenet_v2_x0_25",
    "resnet18",
    "squeezenet1_1",
    "mobilenet_v1",
)
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

YML = """\
PreProcess:
  transform_ops:
  - ResizeImage:
      resize_short: 256
      backend: pil
      interpolation: bilinear
  - CropImage:
      size: 224
  - NormalizeImage:
      scale: 0.00392156862745098
      mean: [0.485, 0.456, 0.406]
      std: [0.229, 0.224, 0.225]
      order: ''
  - ToCHWImage:
PostProcess:
  main_indicator: Topk
  Topk:
    topk: 5
    class_id_map_file: labels.txt
"""


def main() -> None:
    """Export each network with ten classes."""
    folder, photographs = asked()
    for name in NETWORKS:

        def work(name: str = name) -> None:
            paddle.seed(0)
            network = getattr(models, name)(num_classes=10)
            images = [Image.open(photograph).convert("RGB") for photograph in photographs]
            liven(network, np.concatenate([pixels(image) for image in images]))
            network.eval()

            def write(place: Path) -> None:
                spec = [paddle.static.InputSpec([None, 3, 224, 224], "float32", "x")]
                paddle.jit.save(network, str(place / "inference"), input_spec=spec)
                paddle2onnx.export(
                    str(place / "inference.json"),
                    str(place / "inference.pdiparams"),
                    str(place / "model.onnx"),
                    opset_version=11,
                )
                for left in place.glob("inference.*"):
                    left.unlink()
                (place / "inference.yml").write_text(YML)
                (place / "labels.txt").write_text("".join(f"{i} thing {i}\n" for i in range(10)))

            def answer(image: Image.Image) -> Any:
                return softmax(network(paddle.to_tensor(pixels(image))).numpy()[0])

            record(folder, f"paddle-{name}", write, answer, photographs)

        attempt(f"paddle-{name}", work)


def pixels(image: Image.Image) -> Any:
    """Return an image's pixels, 1×3×224×224, as PaddleClas computes them from inference.yml.

    PaddleClas rounds the sides of the resized image, and rounds down the offset of the crop.
    """
    factor = 256 / min(image.size)
    width, height = (round(side * factor) for side in image.size)
    left, top = (width - 224) // 2, (height - 224) // 2
    small = image.resize((width, height), Image.Resampling.BILINEAR)
    parts = np.asarray(small.crop((left, top, left + 224, top + 224)), np.float32) / 255
    normalised = (parts - np.float32(MEAN)) / np.float32(DEVIATION)
    return np.ascontiguousarray(normalised.transpose(2, 0, 1)[None])


def liven(network: Any, seen: Any) -> None:
    """Set the statistics of the network's batch normalisations from inputs. Scale the last layer so
    that different images get different answers."""
    network.train()
    for layer in network.sublayers():
        if hasattr(layer, "_momentum"):
            layer._momentum = 0.0
    with paddle.no_grad():
        network(paddle.to_tensor(seen))
        network.eval()
        scores = network(paddle.to_tensor(seen)).numpy()
        last = [p for p in network.parameters() if p.ndim >= 2][-1]
        last.set_value(last * float(2 / max(scores.std(0).mean(), 1e-6)))


if __name__ == "__main__":
    main()

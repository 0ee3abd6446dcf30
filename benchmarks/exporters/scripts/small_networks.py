"""Exports small networks with both of PyTorch's exporters. Each network has a different, common
kind of input or output, such as probabilities instead of logits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from networks import Colours, Then, separable
from PIL import Image
from pytorch_options import NEW, OLD
from recorded import COLOURS, asked, attempt, record, resized, sigmoid, softmax

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
PLAIN = ((0, 0, 0), (1, 1, 1))
BYTES = ((0, 0, 0), (1 / 255, 1 / 255, 1 / 255))

NAMES = {"input_names": ["pixels"], "output_names": ["scores"]}


def tensor(image: Image.Image, normalised: Any, channels: str = "rgb") -> torch.Tensor:
    """Return the pixels of the image's centre, 1×3×224×224, like torchvision's transforms."""
    mean, deviation = (np.float32(each) for each in normalised)
    pixels = (resized(image, 224, 256).astype(np.float32) / 255 - mean) / deviation
    pixels = pixels[..., ::-1] if channels == "bgr" else pixels
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)[None]))


def one_minus(scores: Any) -> list[float]:
    """Return the probabilities of "no" and "yes" for a model whose only output is the logit of
    "yes"."""
    (yes,) = sigmoid(np.ravel(scores))
    return [1 - yes, yes]


def model(
    name: str,
    network: Any,
    normalised: Any,
    meaning: Callable[[Any], Any],
    options: dict[str, Any],
    labels: tuple[str, ...] = tuple(COLOURS),
    names: dict[str, Any] = NAMES,
    channels: str = "rgb",
) -> None:
    """Export one network with a file of labels. Record the answers that PyTorch computes for the
    photographs."""
    folder, photographs = asked()
    example = tensor(Image.open(photographs[0]).convert("RGB"), normalised, channels)
    example = example.repeat(2, 1, 1, 1)
    network = network.eval()

    def write(place: Path) -> None:
        torch.onnx.export(network, (example,), str(place / "model.onnx"), **names, **options)
        (place / "labels.txt").write_text("".join(f"{label}\n" for label in labels))

    def answer(image: Image.Image) -> Any:
        with torch.no_grad():
            found = network(tensor(image, normalised, channels))
        return meaning(np.ravel(np.asarray(found[0] if isinstance(found, tuple) else found)))

    attempt(name, lambda: record(folder, name, write, answer, photographs))


def same(scores: Any) -> Any:
    """Return the scores unchanged, for networks whose outputs are already probabilities."""
    return scores


def main() -> None:
    """Export each network with each exporter."""
    for exporter, options in (("old", OLD), ("new", NEW)):
        network = Colours(*IMAGENET)
        model(f"pytorch-{exporter}-logits", network, IMAGENET, softmax, options)
        for form, last, meaning in (
            ("softmax", lambda x: x.softmax(1), same),
            ("softmax-clipped", lambda x: x.softmax(1).clamp(1e-6, 1 - 1e-6), same),
            ("log-softmax", lambda x: x.log_softmax(1), np.exp),
            ("percent", lambda x: 100 * x.softmax(1), lambda scores: scores / 100),
            ("mean-of-two", lambda x: (x.softmax(1) + (x / 2).softmax(1)) / 2, same),
            ("multi-label", lambda x: (x + 3).sigmoid(), same),
            ("class-axis-kept", lambda x: x.softmax(1)[:, :, None, None], same),
        ):
            model(f"pytorch-{exporter}-{form}", Then(network, last), IMAGENET, meaning, options)
        yes_no = (Colours(*IMAGENET), ("no", "yes"))
        model(
            f"pytorch-{exporter}-one-logit",
            Then(yes_no[0], lambda x: x[:, 3:4] - x[:, 1:2]),
            IMAGENET,
            one_minus,
            options,
            yes_no[1],
        )
        model(
            f"pytorch-{exporter}-one-sigmoid",
            Then(yes_no[0], lambda x: (x[:, 3:4] - x[:, 1:2]).sigmoid()),
            IMAGENET,
            lambda scores: [1 - scores[0], scores[0]],
            options,
            yes_no[1],
        )
        model(
            f"pytorch-{exporter}-features-too",
            Then(network, lambda x: (x, x[:, :3] * 2)),
            IMAGENET,
            softmax,
            options,
            names={"input_names": ["pixels"], "output_names": ["scores", "features"]},
        )
        model(
            f"pytorch-{exporter}-class-too",
            Then(network, lambda x: (x.softmax(1), x.argmax(1))),
            IMAGENET,
            same,
            options,
            names={"input_names": ["pixels"], "output_names": ["scores", "label"]},
        )
    # Normalisations remain separate nodes, so that quantizers are tested with them.
    kept = {**OLD, "training": torch.onnx.TrainingMode.PRESERVE}
    model("pytorch-old-separable", separable(*IMAGENET), IMAGENET, softmax, kept)
    normalise = Then(Colours(*PLAIN), lambda x: x)
    model("pytorch-old-parts-of-1", normalise, PLAIN, softmax, OLD)
    model("pytorch-old-bytes", Colours(*BYTES), BYTES, softmax, OLD)


if __name__ == "__main__":
    main()

"""Exports networks of Keras with tf2onnx, or with PyTorch if PyTorch is Keras' backend.

The preprocessing is part of the network, as Keras' documentation recommends for export. A Rescaling
layer is added unless the network of `keras.applications` already contains one.
"""

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

BACKEND = sys.argv[3]
os.environ["KERAS_BACKEND"] = BACKEND

import keras  # noqa: E402
import numpy as np  # noqa: E402
from PIL import Image  # noqa: E402
from recorded import asked, attempt, record, resized  # noqa: E402

SIZE = 224

RESCALED_INSIDE = ("MobileNetV3Small", "EfficientNetB0", "EfficientNetV2B0")
"""The applications that rescale bytes themselves. All others get a Rescaling to [-1, 1]."""

# ResNet50V2 is included because it pads with zeros before a MaxPool of negative numbers.
APPLICATIONS = (*RESCALED_INSIDE, "MobileNetV2", "NASNetMobile", "ResNet50V2")


def small(kind: str) -> Any:
    """Return a small network whose last activation is `kind`: "softmax", "sigmoid", or "one" (a
    sigmoid with one output)."""
    last = {"softmax": (5, "softmax"), "sigmoid": (5, "sigmoid"), "one": (1, "sigmoid")}[kind]
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((SIZE, SIZE, 3)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Conv2D(16, 3, strides=2, padding="same", activation="relu"),
            keras.layers.SeparableConv2D(24, 3, strides=2, padding="same", activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(last[0], activation=last[1]),
        ]
    )


def lively(network: Any, seen: Any) -> None:
    """Set the statistics of the network's batch normalisations from images, N×H×W×3. Scale the last
    layer so that different images get different answers."""
    for layer in network._flatten_layers(include_self=False):
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum = 0.0
            layer.gamma.assign(keras.ops.full_like(layer.gamma, 0.4))
            layer.beta.assign(keras.ops.ones_like(layer.beta))
    network(seen, training=True)
    last = [layer for layer in network.layers if layer.get_weights()][-1]
    before = keras.Model(network.inputs, last.input)
    kernel = last.get_weights()[0]  # of a Dense, or of a 1×1 Conv2D
    behind = keras.ops.convert_to_numpy(before(seen, training=False))
    scores = (behind @ kernel.reshape(kernel.shape[-2:])).reshape(len(seen), -1)
    spread = 2 / scores.std(0).mean()
    last.kernel.assign(last.kernel * spread)
    last.bias.assign(-scores.mean(0) * spread)


def application(name: str) -> Any:
    """Return a network of `keras.applications` whose input is pixels from 0 to 255."""
    keras.utils.set_random_seed(0)
    make = getattr(keras.applications, name)
    if name in RESCALED_INSIDE:
        return make(weights=None, input_shape=(SIZE, SIZE, 3), classes=5)
    pixels = keras.Input((SIZE, SIZE, 3))
    scaled = keras.layers.Rescaling(1 / 127.5, offset=-1)(pixels)
    return make(weights=None, input_tensor=scaled, classes=5)


MAKERS = {
    "small-softmax": lambda: small("softmax"),
    "small-sigmoid": lambda: small("sigmoid"),
    "small-one-score": lambda: small("one"),
    **{name: partial(application, name) for name in APPLICATIONS},
}


def main() -> None:
    """Export each network."""
    folder, photographs = asked()
    for name, make in MAKERS.items():

        def work(name: str = name, make: Any = make) -> None:
            network = make()
            images = [Image.open(each).convert("RGB") for each in photographs]
            lively(network, np.stack([resized(each, SIZE, 256) for each in images]).astype("f4"))

            def write(place: Path) -> None:
                network.export(str(place / "model.onnx"), format="onnx", verbose=False)

            def answer(image: Image.Image) -> Any:
                pixels = resized(image, SIZE, 256)[None].astype(np.float32)
                scores = np.ravel(keras.ops.convert_to_numpy(network(pixels, training=False)))
                return [1 - scores[0], scores[0]] if len(scores) == 1 else scores

            record(folder, f"keras-{BACKEND}-{name}", write, answer, photographs)

        attempt(f"keras-{BACKEND}-{name}", work)


if __name__ == "__main__":
    main()

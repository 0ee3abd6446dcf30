"""Writes files in the documented formats of exporters that cannot run here.

Custom Vision exports only from its service, ML.NET only from .NET, and AutoGluon needs gigabytes of
packages. Instead of these exporters, PyTorch exports a network. onnx.helper then adds the inputs,
outputs and metadata of each format.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from networks import Colours, Then
from onnx import TensorProto, helper
from PIL import Image
from recorded import COLOURS, asked, attempt, record, resized, softmax
from small_networks import BYTES, IMAGENET

LABELS = list(COLOURS)


def exported(
    place: Path, network: Any, names: tuple[str, ...], example: torch.Tensor, opset: int = 13
) -> Any:
    """Export a network with PyTorch's older exporter, and return the ONNX model. `names` has the
    name of the input, and then the names of the outputs."""
    file = str(place / "model.onnx")
    torch.onnx.export(
        network.eval(),
        (example,),
        file,
        dynamo=False,
        input_names=[names[0]],
        output_names=list(names[1:]),
        dynamic_axes={name: {0: "None"} for name in names},
        opset_version=opset,
    )
    return onnx.load(file)


def with_zipmap(model: Any, scores: str, label: str, loss: str) -> None:
    """Replace a model's output by the two outputs that Custom Vision and scikit-learn export: the
    likeliest label, and a map from labels to scores."""
    graph = model.graph
    texts = [text.encode() for text in LABELS]
    graph.node.append(helper.make_node("ArgMax", [scores], ["best"], axis=1, keepdims=0))
    graph.initializer.append(helper.make_tensor("texts", TensorProto.STRING, [len(texts)], texts))
    graph.node.append(helper.make_node("Gather", ["texts", "best"], [label]))
    graph.node.append(
        helper.make_node(
            "ZipMap", [scores], [loss], domain="ai.onnx.ml", classlabels_strings=LABELS
        )
    )
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info(label, TensorProto.STRING, ["None"]))
    element = helper.make_map_type_proto(
        TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    )
    sequence = helper.make_sequence_type_proto(element)
    graph.output.append(helper.make_value_info(loss, sequence))
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))


def said(model: Any, **properties: str) -> None:
    """Set the model's `metadata_props` to `properties`. Two underscores in a property's name are
    written as a dot."""
    helper.set_model_props(model, {k.replace("__", "."): v for k, v in properties.items()})


def custom_vision(place: Path, pixel_format: str, pixel_range: str, example: torch.Tensor) -> None:
    """Write a model in Custom Vision's format: the input `data`, the outputs `classLabel` and
    `loss`, and metadata about the pixels."""
    deviation = BYTES if "255" in pixel_range else ((0, 0, 0), (1, 1, 1))
    network = Colours(*deviation, channels="bgr" if "Bgr" in pixel_format else "rgb")
    model = exported(
        place, Then(network, lambda x: x.softmax(1)), ("data", "model_output"), example
    )
    with_zipmap(model, "model_output", "classLabel", "loss")
    said(
        model,
        Image__BitmapPixelFormat=pixel_format,
        Image__ColorSpaceGamma="SRGB",
        Image__NominalPixelRange=pixel_range,
    )
    onnx.save(model, place / "model.onnx")
    (place / "labels.txt").write_text("\n".join(LABELS))


def ml_net(place: Path, example: torch.Tensor) -> None:
    """Write a model in ML.NET's format. Its outputs are the scores and the predicted label."""
    network = Then(Colours(*IMAGENET), lambda x: x.softmax(1))
    model = exported(place, network, ("ImageSource.input", "Score.output"), example)
    best = helper.make_node("ArgMax", ["Score.output"], ["PredictedLabel.output"], axis=1)
    model.graph.node.append(best)
    label = helper.make_tensor_value_info("PredictedLabel.output", TensorProto.INT64, ["None", 1])
    model.graph.output.insert(0, label)
    onnx.save(model, place / "model.onnx")
    (place / "labels.txt").write_text("\n".join(LABELS))


def autogluon(place: Path, example: torch.Tensor) -> None:
    """Write a model in AutoGluon's format. Its outputs are the logits, and the features from which
    the logits are computed."""
    network = Then(Colours(*IMAGENET), lambda x: (x, x.repeat(1, 4)))
    exported(place, network, ("timm_image_image", "logits", "column_features"), example, 16)
    (place / "labels.txt").write_text("\n".join(LABELS))


def answered(seen: Any, normalised: Any) -> Any:
    """Return the probabilities that the `Colours` network computes for an image, uint8
    224×224×3."""
    mean, deviation = map(np.float32, normalised)
    parts = seen.astype(np.float32) / 255
    pixels = np.ascontiguousarray(((parts - mean) / deviation).transpose(2, 0, 1)[None])
    with torch.no_grad():
        return softmax(Colours(*normalised).eval()(torch.from_numpy(pixels)).numpy()[0])


def main() -> None:
    """Write one model in each format."""
    folder, photographs = asked()
    example = torch.rand(1, 3, 224, 224)
    forms: dict[str, Callable[[Path], None]] = {
        "custom-vision-bgr8": lambda at: custom_vision(at, "Bgr8", "NominalRange_0_255", example),
        "custom-vision-rgb8": lambda at: custom_vision(at, "Rgb8", "NominalRange_0_255", example),
        "custom-vision-0-1": lambda at: custom_vision(at, "Rgb8", "Normalized_0_1", example),
        "ml-net": lambda at: ml_net(at, example),
        "autogluon": lambda at: autogluon(at, example),
    }
    for name, write in forms.items():

        def answer(image: Image.Image, name: str = name) -> Any:
            if name.startswith("custom-vision"):
                normalised = ((0, 0, 0), (1, 1, 1)) if name.endswith("0-1") else BYTES
                # The program that the service exports next to the model resizes in this way.
                return answered(np.asarray(image.resize((224, 224))), normalised)
            return answered(resized(image, 224, 256), IMAGENET)

        attempt(name, lambda name=name, w=write, a=answer: record(folder, name, w, a, photographs))


if __name__ == "__main__":
    main()

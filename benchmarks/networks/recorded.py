"""Loads timm's networks with attention as PyTorch exports them, at full size but with random
weights.

    python -m benchmarks.networks.recorded [NETWORK ...]    # exports again, with torch and timm

The networks are only timed, and a network's time does not depend on its weights. So a file in
recorded/ has only the shape of each large weight. Loading creates a weight of this shape with
seeded numbers. The files come from timm 1.0.31 and the older exporter of PyTorch 2.15, for batch
size 1.
"""

import argparse
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

FOLDER = Path(__file__).parent / "recorded"


@dataclass(frozen=True, slots=True)
class Recorded:
    """Holds a network's name in timm, and the side of its images in pixels."""

    name: str
    side: int


RECORDED: Mapping[str, Recorded] = {
    "MobileViT-XXS": Recorded("mobilevit_xxs", 256),
    "MobileViTv2-0.5": Recorded("mobilevitv2_050", 256),
    "EdgeNeXt-XXS": Recorded("edgenext_xx_small", 256),
    "EfficientFormer-L1": Recorded("efficientformer_l1", 224),
    "LeViT-128S": Recorded("levit_128s", 224),
    "CoAtNet-nano": Recorded("coatnet_nano_rw_224", 224),
    "DINOv2-S/14": Recorded("vit_small_patch14_dinov2", 224),
    "SigLIP-B/16": Recorded("vit_base_patch16_siglip_224", 224),
}

_KEPT = 64
"""Weights with up to this many numbers are kept, such as constants in the network's
computations."""


def recorded(network: str, seed: int = 0) -> onnx.ModelProto:
    """Load the network with this name in RECORDED. Random weights, which `seed` determines, replace
    its large weights."""
    model = onnx.load(FOLDER / f"{RECORDED[network].name}.onnx")
    rng = np.random.default_rng(seed)
    readers = {
        name: (node.op_type, position)
        for node in model.graph.node
        for position, name in enumerate(node.input)
    }
    for weight in model.graph.initializer:
        if _is_large(weight):
            numbers = _numbers(rng, *readers[weight.name], tuple(weight.dims))
            weight.raw_data = numbers.astype("<f4").tobytes()
    return model


def _is_large(weight: TensorProto) -> bool:
    return weight.data_type == TensorProto.FLOAT and prod(weight.dims) > _KEPT


def _numbers(
    rng: np.random.Generator, operator: str, position: int, shape: tuple[int, ...]
) -> NDArray[np.float64]:
    """Return random weights for an operand of an operator. Their variance is so chosen that
    activations neither vanish nor explode."""
    if position == 1 and operator in ("Conv", "Gemm", "MatMul"):
        terms = shape[-2] if operator == "MatMul" else prod(shape[1:])
        return rng.normal(0, terms**-0.5, shape)
    if operator == "Mul" or (operator, position) in _POSITIVE:
        return rng.uniform(0.5, 1.5, shape)
    return rng.normal(0, 0.1, shape)


_POSITIVE = (
    ("BatchNormalization", 1),
    ("BatchNormalization", 4),
    ("LayerNormalization", 1),
    ("InstanceNormalization", 1),
)
"""The inputs of normalisations that are scales or variances, and so must be positive."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Export networks from timm, and write them to recorded/ without their large weights."""
    import timm  # noqa: PLC0415  hundreds of megabytes, which only this needs
    import torch  # noqa: PLC0415

    parser = argparse.ArgumentParser(prog="python -m benchmarks.networks.recorded")
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=", ".join(RECORDED))
    FOLDER.mkdir(exist_ok=True)
    for network in parser.parse_args(arguments).networks or RECORDED:
        name, side = RECORDED[network].name, RECORDED[network].side
        of_side = {"img_size": side} if name.startswith("vit") else {}
        module, written = timm.create_model(name, **of_side).eval(), io.BytesIO()
        image = torch.zeros(1, 3, side, side)
        torch.onnx.export(module, (image,), written, dynamo=False, opset_version=17)
        model = onnx.load_from_string(written.getvalue())
        for weight in filter(_is_large, model.graph.initializer):
            weight.ClearField("raw_data")
            weight.ClearField("float_data")
        for node in model.graph.node:
            node.ClearField("doc_string")
        onnx.save(model, FOLDER / f"{name}.onnx")


if __name__ == "__main__":
    main()

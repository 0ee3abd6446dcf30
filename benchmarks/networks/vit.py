"""Builds ViT-S/16, a classifier of patches by attention, as an ONNX model with seeded weights.

    image ─ Conv 16×16, strides 16 ─ 196 tokens of 384, a class token ahead, positions added
          ─ 12 × [x + proj(attention(qkv(norm(x)))), x + fc2(gelu(fc1(norm(x))))]
          ─ norm ─ the class token ─ Gemm ─ softmax

Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", table 1, in the size of Touvron et al.
2021, "Training data-efficient image transformers", table 1. The nodes are those that timm's ViT has
after PyTorch's export for batch 1.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 20
CHANNELS = 3


@dataclass(frozen=True, slots=True)
class Vit:
    """Sets the sizes of the network; the defaults are those of ViT-S/16."""

    side: int = 224
    patch: int = 16
    width: int = 384
    depth: int = 12
    heads: int = 6
    hidden: int = 1536
    classes: int = 1000


SMALL = Vit()


def vit(network: Vit = SMALL, seed: int = 0) -> onnx.ModelProto:
    """Build a network from `image`, 1×3×H×W, to `prob`, 1×classes, with weights fixed by `seed`."""
    to = _Nodes(np.random.default_rng(seed))
    width, patch, heads = network.width, network.patch, network.heads
    patches = (network.side // patch) ** 2
    filters = to.noise("patch.weight", (width, CHANNELS, patch, patch), CHANNELS * patch**2)
    shift = to.noise("patch.bias", (width,), 100)
    x = to.add("Conv", "patch", "image", filters, shift, strides=[patch, patch])
    x = to.add("Reshape", "flat", x, to.integers("flat.shape", 1, width, patches))
    x = to.add("Transpose", "patches", x, perm=[0, 2, 1])
    x = to.add("Concat", "tokens", to.noise("class", (1, 1, width), 1), x, axis=1)
    x = to.add("Add", "embedded", x, to.noise("positions", (1, patches + 1, width), 4))
    for block in range(network.depth):
        x = _attention(to, f"block{block}.attention", x, (patches + 1, heads, width // heads))
        x = _mlp(to, f"block{block}.mlp", x, (width, network.hidden))
    x = to.add("Gather", "first", to.norm("norm", x, width), to.integers("zero"), axis=1)
    x = to.layer("head", x, width, network.classes)
    x = to.add("Softmax", "prob", x, axis=1)
    shape = [1, CHANNELS, network.side, network.side]
    graph = helper.make_graph(
        to.nodes,
        "vit",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, [1, network.classes])],
        to.weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)


def _attention(to: "_Nodes", name: str, x: str, shape: tuple[int, int, int]) -> str:
    tokens, heads, depth = shape
    width = heads * depth
    y = to.layer(f"{name}.qkv", to.norm(f"{name}.norm", x, width), width, 3 * width)
    apart = to.integers(f"{name}.apart.shape", 1, tokens, 3, heads, depth)
    y = to.add("Reshape", f"{name}.apart", y, apart)
    y = to.add("Transpose", f"{name}.turned", y, perm=[2, 0, 3, 1, 4])
    q, k, v = (
        to.add("Gather", f"{name}.{part}", y, to.integers(f"{name}.{part}.index", at=index), axis=0)
        for index, part in enumerate("qkv")
    )
    q = to.add("Mul", f"{name}.scaled", q, to.constant(f"{name}.scale", np.array(depth**-0.5)))
    k = to.add("Transpose", f"{name}.k.turned", k, perm=[0, 1, 3, 2])
    y = to.add("Softmax", f"{name}.shares", to.add("MatMul", f"{name}.scores", q, k), axis=-1)
    y = to.add("MatMul", f"{name}.seen", y, v)
    y = to.add("Transpose", f"{name}.back", y, perm=[0, 2, 1, 3])
    joined = to.integers(f"{name}.joined.shape", 1, tokens, width)
    y = to.add("Reshape", f"{name}.joined", y, joined)
    return to.add("Add", f"{name}.sum", x, to.layer(f"{name}.proj", y, width, width))


def _mlp(to: "_Nodes", name: str, x: str, widths: tuple[int, int]) -> str:
    width, hidden = widths
    y = to.layer(f"{name}.fc1", to.norm(f"{name}.norm", x, width), width, hidden)
    y = to.layer(f"{name}.fc2", to.add("Gelu", f"{name}.gelu", y), hidden, width)
    return to.add("Add", f"{name}.sum", x, y)


@dataclass
class _Nodes:
    """Collects nodes in order, each named after its output, and their constants."""

    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def add(self, operator: str, name: str, *operands: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(operator, operands, [name], name, **attributes))
        return name

    def constant(self, name: str, array: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(array.astype(np.float32), name))
        return name

    def noise(self, name: str, shape: tuple[int, ...], terms: int) -> str:
        """Add a weight whose variance is 1 / terms."""
        return self.constant(name, self.rng.normal(0, terms**-0.5, shape))

    def integers(self, name: str, *numbers: int, at: int = 0) -> str:
        """Add a shape, or without numbers an index."""
        array = np.array(numbers or at, np.int64)
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def norm(self, name: str, x: str, width: int) -> str:
        scale = self.constant(f"{name}.scale", self.rng.uniform(0.5, 1.5, width))
        shift = self.noise(f"{name}.shift", (width,), 100)
        return self.add("LayerNormalization", name, x, scale, shift, axis=-1, epsilon=1e-6)

    def layer(self, name: str, x: str, inputs: int, outputs: int) -> str:
        product = self.add(
            "MatMul", f"{name}.product", x, self.noise(f"{name}.weight", (inputs, outputs), inputs)
        )
        return self.add("Add", name, self.noise(f"{name}.bias", (outputs,), 100), product)

"""Builds ViT-S/16, which classifies by attention between patches, as an ONNX model with seeded
weights.

    image ─ Conv 16×16, strides 16 ─ 196 tokens of 384, a class token ahead, positions added
          ─ 12 × [x + proj(attention(qkv(norm(x)))), x + fc2(gelu(fc1(norm(x))))]
          ─ norm ─ the class token ─ Gemm ─ softmax

Sources: Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", table 1, with the sizes of
Touvron et al. 2021, "Training data-efficient image transformers", table 1. The graph has the same
nodes as timm's ViT exported by PyTorch for batch size 1.
"""

from dataclasses import dataclass

import numpy as np
import onnx

from benchmarks.networks.nodes import Nodes


@dataclass(frozen=True, slots=True)
class Vit:
    """Sets the sizes of the network. The defaults are the sizes of ViT-S/16."""

    side: int = 224
    patch: int = 16
    width: int = 384
    depth: int = 12
    heads: int = 6
    hidden: int = 1536
    classes: int = 1000


SMALL = Vit()
DEIT_TINY = Vit(width=192, heads=3, hidden=768)


def vit(network: Vit = SMALL, seed: int = 0) -> onnx.ModelProto:
    """Return an ONNX model of ViT with the input `image`, 1×3×H×W, and the output `prob`,
    1×classes. `seed` determines the weights."""
    to = Nodes(np.random.default_rng(seed))
    width, heads = network.width, network.heads
    tokens = (network.side // network.patch) ** 2 + 1
    x = to.reshape("flat", to.patches("image", width, network.patch), 1, width, tokens - 1)
    x = to.add("Transpose", "patches", x, perm=[0, 2, 1])
    x = to.add("Concat", "tokens", to.noise("class", (1, 1, width), 1), x, axis=1)
    x = to.add("Add", "embedded", x, to.noise("positions", (1, tokens, width), 4))
    for block in range(network.depth):
        name = f"block{block}.attention"
        y = to.norm(f"{name}.norm", x, width)
        y = to.attention(name, y, (1, tokens, heads, width // heads))
        x = to.add("Add", f"{name}.sum", x, y)
        x = to.mlp(f"block{block}.mlp", x, width, network.hidden)
    x = to.add("Gather", "first", to.norm("norm", x, width), to.integers("zero"), axis=1)
    x = to.layer("head", x, width, network.classes)
    return to.network("vit", network.side, x, network.classes)

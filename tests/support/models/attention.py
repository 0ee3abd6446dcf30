"""Creates a small network with attention, as exporters write it."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support.models.onnx_chains import node

SIZE, WIDTH, HEADS, TOKENS, CLASSES = 8, 16, 2, 4, 5


def attention(
    batch: int | str = 1,
    element: int = TensorProto.FLOAT,
    head: str = "Gemm",
    *,
    unknown: bool = False,
    side: int = SIZE,
) -> onnx.ModelProto:
    """Return a ViT with one layer, as timm's ViT is exported. One product computes q, k and v, and
    the scores are computed from the mean of the tokens. Each 4 × 4 pixels of an image are a token.

    With `unknown`, the model contains an operator that typed nodes cannot express.
    """
    kind = helper.tensor_dtype_to_np_dtype(element)
    last = [node("Gemm", "mean h", "y" if head == "Gemm" else "logits")]
    if head == "Softmax":
        last.append(node("Softmax", "logits"))
    nodes = [
        node("Conv", "x p", "patches", strides=[4, 4]),
        node("Reshape", "patches rows", "flat"),
        node("Transpose", "flat", "tokens", perm=[0, 2, 1]),
        node("MatMul", "tokens w", "qkv"),
        node("Reshape", "qkv heads", "split"),
        node("Transpose", "split", "turned", perm=[2, 0, 3, 1, 4]),
        helper.make_node("Split", ["turned"], ["q5", "k5", "v5"], axis=0, num_outputs=3),
        *(node("Squeeze", f"{name}5 first", name) for name in "qkv"),
        node("Transpose", "k", "kt", perm=[0, 1, 3, 2]),
        node("MatMul", "q kt", "weights"),
        node("Mul", "weights scale", "scores"),
        node("Softmax", "scores", "attention", axis=-1),
        node("MatMul", "attention v", "seen"),
        node("Tile", "seen once", "passed") if unknown else node("Identity", "seen", "passed"),
        node("Transpose", "passed", "back", perm=[0, 2, 1, 3]),
        node("Reshape", "back joined", "all"),
        node("ReduceMean", "all second", "mean", keepdims=0),
        *last,
    ]
    size, tokens = 1 if batch == 1 else -1, (side // 4) ** 2
    rng = np.random.default_rng(0)
    numbers = {
        "p": rng.normal(0, 1 / 7, (WIDTH, 3, 4, 4)),
        "w": rng.normal(0, 1 / 4, (WIDTH, 3 * WIDTH)),
        "h": rng.normal(0, 1 / 4, (WIDTH, CLASSES)),
        "scale": np.array((WIDTH / HEADS) ** -0.5),
    }
    weights = {name: array.astype(kind) for name, array in numbers.items()} | {
        "rows": np.array([0, WIDTH, tokens]),
        "heads": np.array([size, tokens, 3, HEADS, WIDTH // HEADS]),
        "joined": np.array([size, tokens, WIDTH]),
        "first": np.array([0]),
        "once": np.array([1, 1, 1, 1]),
        "second": np.array([1]),
    }
    graph = helper.make_graph(
        nodes,
        "vit",
        [helper.make_tensor_value_info("x", element, (batch, 3, side, side))],
        [helper.make_tensor_value_info("y", element, (batch, CLASSES))],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)

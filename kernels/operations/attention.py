"""Launches kernels/src/attention.cu, which computes attention over few keys. A thread block holds
the scores of its queries for all keys."""

from kernels.device.device import TemplateArgument
from kernels.device.launch import Launch, instantiate, launch, struct
from kernels.layout.strided import StridedTensor, walk_matrices
from kernels.operations.reads import BlockReads
from kernels.problems.precision import FLOAT, Precision, one_type

MOST_KEYS = 256
"""The most keys whose scores a block holds."""

MOST_DEPTH = 128
"""The most channels of a query."""

_QUERIES = 16
"""Queries of a block."""

_KEYS = 64
"""Keys of a tile or a chunk."""

_ROW = 128
"""Bytes of a key in a chunk."""

_STAGES = 3
"""Chunks in shared memory at once."""

_DEPTH = 32
"""Channels of a tile of k in strict float32."""

_FEW, _WIDTH = 32, 64
"""Keys and channels of a tile of v in strict float32."""


def attention_launch(
    q: StridedTensor,
    k: StridedTensor,
    v: StridedTensor,
    y: StridedTensor,
    bias: StridedTensor | None = None,
    scale: float = 1.0,
    *,
    precision: Precision,
) -> Launch:
    """Return a launch of y = softmax(scale · q · kᵀ + bias) · v. Its operands are q, k, v, y, and
    bias if given.

    q is ...×T×C, k is ...×S×C, v is ...×S×E and y is ...×T×E, all in the type that `precision`
    stores. bias holds floats, and is broadcast to ...×T×S. Tensor cores multiply, except in strict
    float32. Raises ValueError if sizes do not match, if they exceed the kernel's limits, or if an
    index exceeds 32 bits.
    """
    *heads, queries, width = y.shape
    keys, depth = k.shape[-2:]
    if keys > MOST_KEYS or depth > MOST_DEPTH:
        raise ValueError(
            f"attention supports at most {MOST_KEYS} keys with at most {MOST_DEPTH} channels,"
            f" got {keys} keys of {depth} channels"
        )
    one_type(precision.stored, q.stored, k.stored, v.stored, y.stored)
    added = StridedTensor((1,), (0,)) if bias is None else bias
    one_type(FLOAT, added.stored)
    tensors = (
        y,
        q.broadcast((*heads, queries, depth)),
        k.broadcast((*heads, keys, depth)),
        v.broadcast((*heads, keys, width)),
        added.broadcast((*heads, queries, keys)),
    )
    each = walk_matrices(*tensors)
    strides = struct(
        "attention.cu",
        "AttentionStrides",
        row=[tensor.strides[-2] for tensor in tensors],
        column=[tensor.strides[-1] for tensor in tensors],
    )
    variant: dict[str, TemplateArgument] = {"bias": bias is not None, "rank": each.rank}
    copied: dict[str, int] = {}
    name = "attention"
    if precision is not Precision.FP32:
        name = "attention_tensor"
        variant = {"precision": f"Precision::{precision.name}", **variant}
        copied = {"vectors": int(all(tensor.has_vector_rows for tensor in tensors[1:4]))}
    return launch(
        instantiate("attention.cu", name, precision.architectures, **variant),
        (each.steps, -(-queries // _QUERIES), 1),
        (128, 1, 1),
        q="q",
        k="k",
        v="v",
        bias=0 if bias is None else "bias",
        y="y",
        heads=each.struct(),
        strides=strides,
        queries=queries,
        keys=keys,
        depth=depth,
        width=width,
        scale=scale,
        **copied,
    )


def attention_reads(
    k: StridedTensor, v: StridedTensor, precision: Precision, *, bias: bool
) -> BlockReads:
    """Return how many bytes a block of `attention_launch` reads, and how often it waits for them.
    A block reads its own queries, and all keys and values."""
    (keys, depth), width = k.shape[-2:], v.shape[-1]
    nbytes = precision.stored.itemsize * (_QUERIES + keys) * (depth + width)
    nbytes += FLOAT.itemsize * _QUERIES * keys * bias
    if precision is Precision.FP32:
        tiles = -(-keys // _KEYS) * -(-depth // _DEPTH) + -(-keys // _FEW) * -(-width // _WIDTH)
        return BlockReads(nbytes, tiles)
    channels = _ROW // precision.stored.itemsize
    chunks = -(-keys // _KEYS) * (-(-depth // channels) + -(-width // channels))
    return BlockReads(nbytes, chunks / (_STAGES - 1))

"""Draws random graphs of small nodes with hypothesis. The patterns that rules rewrite are frequent
in them."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from hypothesis import strategies as st

from kernels.problems.activation import RELU, Activation, ActivationKind
from kernels.problems.binary_operation import BinaryOp
from kernels.problems.pool import PoolKind
from kernels.problems.reduction import ReduceKind
from models.graph import Expand, Graph, Normalise, Reduce, Resample, Softmax
from tests.support.models.graphs import GraphBuilder

T = TypeVar("T")
RELU6 = Activation(ActivationKind.CLIP, 0.0, 6.0)
SIGMOID = Activation(ActivationKind.SIGMOID)
LEAKY_RELU = Activation(ActivationKind.LEAKY_RELU, 0.1)
HARD_SIGMOID = Activation(ActivationKind.HARD_SIGMOID, 1 / 6, 1 / 2)
ACTIVATIONS = (RELU, RELU6, SIGMOID, LEAKY_RELU, HARD_SIGMOID)


class Draw:
    """Draws one graph. Its first values have the shape of an image, all with the same height and
    width. A head follows."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.b = GraphBuilder(data.draw(st.integers(0, 99), "seed"), x=(8, 3, 3))
        self.images = ["x"]
        self.concats: list[tuple[str, ...]] = [("x",)]

    def one_of(self, entries: Sequence[T]) -> T:
        return self.data.draw(st.sampled_from(entries))

    def image(self) -> str:
        """Draw one of the values so far. The last values are drawn more often, so that chains
        arise."""
        return self.one_of((*self.images, *self.images[-2:]))

    def graph(self) -> Graph:
        """Draw a few steps, then a usual head of a classifier, and sometimes more outputs."""
        for index in range(self.one_of(range(1, 12))):
            y, x = f"v{index}", self.image()
            self.one_of(STEPS)(self, y, x)
            if self.b.shapes[y][0] <= 32:  # Concats of Concats would soon be large
                self.images.append(y)
        b, x = self.b, self.images[-1]
        outputs = []
        match self.one_of(("none", "flatten", "global", "softmax")):
            case "flatten":
                vector = b.reshape("head.f", x, (b.shapes[x][0] * 9,))
                outputs.append(b.gemm("head", b.activate("head.r", vector, RELU)))
            case "global":
                pooled = b.pool("head.p", x, PoolKind.AVERAGE, 3)
                vector = b.reshape("head.f", pooled, b.shapes[x][:1])
                outputs.append(b.scale_shift("head", b.gemm("head.g", vector)))
            case "softmax":
                outputs.append(b.add(Softmax, "head", b.shapes[x], x=x, axis=0))
        written = self.images[1:] or [b.identity("copy", "x")]
        more = st.lists(st.sampled_from(written), max_size=2, unique=True)
        outputs += self.data.draw(more)
        return b.build(*(outputs or written[-1:]))


def conv(d: Draw, y: str, x: str) -> None:
    groups = d.one_of((1, 2)) if d.b.shapes[x][0] % 2 == 0 else 1
    d.b.conv(y, x, d.one_of((4, 8)), d.one_of((1, 3)), groups=groups)


def scale_shift(d: Draw, y: str, x: str) -> None:
    d.b.scale_shift(y, x)


def activate(d: Draw, y: str, x: str) -> None:
    d.b.activate(y, x, d.one_of(ACTIVATIONS))


def add(d: Draw, y: str, x: str) -> None:
    same = [name for name in d.images if d.b.shapes[name] == d.b.shapes[x]]
    d.b.binary(y, BinaryOp.ADD, x, d.one_of(same))


def arithmetic(d: Draw, y: str, x: str) -> None:
    op = d.one_of((BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL))
    number = d.one_of((0.5, 3.0, -1.0))
    if d.one_of((True, False)):
        d.b.binary(y, op, x, number)
    else:
        d.b.binary(y, op, number, x)


def add_constants(d: Draw, y: str, x: str) -> None:
    shape = d.b.shapes[x]
    d.b.binary(y, BinaryOp.ADD, x, d.b.noise(f"{y}.w", d.one_of(((shape[0], 1, 1), shape, (3,)))))


def concat(d: Draw, y: str, x: str) -> None:
    d.concats.append((x, *(d.image() for _ in range(d.one_of((1, 2))))))
    d.b.concat(y, *d.concats[-1])


def list_again(d: Draw, y: str, x: str) -> None:
    d.b.concat(y, *d.one_of(d.concats), x)


def identity(d: Draw, y: str, x: str) -> None:
    d.b.identity(y, x)


def split(d: Draw, y: str, x: str) -> None:
    channels = d.b.shapes[x][0]
    d.b.slice(y, x, channels // 2, channels)


def scale_channels_apart(d: Draw, y: str, x: str) -> None:
    first = d.b.slice(f"{y}.l", x, 0, 1)
    parts = [d.b.binary(f"{y}.d", BinaryOp.MUL, first, 0.5)]
    if d.b.shapes[x][0] > 1:
        parts.append(d.b.slice(f"{y}.h", x, 1, d.b.shapes[x][0]))
    d.b.concat(y, *parts)


def pad(d: Draw, y: str, x: str) -> None:
    padded = d.b.pad(f"{y}.pad", x, (0, 1, 1), (0, 1, 1))
    kind = d.one_of((*PoolKind, None))
    if kind is None:
        d.b.conv(y, padded, pad=0)
    else:
        d.b.pool(y, padded, kind, 3)


def pool(d: Draw, y: str, x: str) -> None:
    d.b.pool(y, x, d.one_of(tuple(PoolKind)), 3, pad=1)


def shuffle(d: Draw, y: str, x: str) -> None:
    shape = d.b.shapes[x]
    groups = 2 if shape[0] % 2 == 0 else 1
    groups_apart = d.b.reshape(f"{y}.r", x, (groups, shape[0] // groups, 3, 3))
    d.b.reshape(y, d.b.transpose(f"{y}.t", groups_apart, 1, 0, 2, 3), shape)


def silu(d: Draw, y: str, x: str) -> None:
    d.b.binary(y, BinaryOp.MUL, d.b.activate(f"{y}.s", x, SIGMOID), x)


def hard_swish(d: Draw, y: str, x: str) -> None:
    clip = d.b.activate(f"{y}.c", d.b.binary(f"{y}.p", BinaryOp.ADD, x, 3.0), RELU6)
    d.b.binary(y, BinaryOp.DIV, d.b.binary(f"{y}.m", BinaryOp.MUL, x, clip), 6.0)


def normalise(d: Draw, y: str, x: str) -> None:
    shape = d.b.shapes[x]
    axes, groups = d.one_of((((0,), 1), ((1, 2), 1), ((0, 1, 2), 2 if shape[0] % 2 == 0 else 1)))
    scale, shift = (d.b.noise(f"{y}.{role}", (shape[0], 1, 1)) for role in ("g", "b"))
    d.b.add(
        Normalise, y, shape, x=x, scale=scale, shift=shift, axes=axes, epsilon=0.1, groups=groups
    )


def mlp_channels_last(d: Draw, y: str, x: str) -> None:
    last = d.b.transpose(f"{y}.t", x, 1, 2, 0)
    wide = d.b.activate(f"{y}.r", d.b.gemm(f"{y}.1", last, 8), RELU)
    d.b.transpose(y, d.b.gemm(f"{y}.2", wide, d.b.shapes[x][0]), 2, 0, 1)


def sum_of_parts(d: Draw, y: str, x: str) -> None:
    c, h, w = d.b.shapes[x]
    parts = d.b.reshape(f"{y}.p", x, (2, c // 2, h, w) if c % 2 == 0 else (1, c, h, w))
    _, c, h, w = d.b.shapes[parts]
    total = d.b.add(Reduce, f"{y}.s", (1, c, h, w), x=parts, kind=ReduceKind.SUM, axes=(0,))
    d.b.reshape(y, total, (c, h, w))


def reduce(d: Draw, y: str, x: str) -> None:
    c, h, w = d.b.shapes[x]
    first, then = d.one_of(((1, 2), (2, 1), (0, 2)))
    kind = d.one_of(tuple(ReduceKind))
    shape = [c, h, w]
    shape[first] = 1
    once = d.b.add(Reduce, f"{y}.1", tuple(shape), x=x, kind=kind, axes=(first,))
    shape[then] = 1
    twice = d.b.add(Reduce, f"{y}.2", tuple(shape), x=once, kind=kind, axes=(then,))
    d.b.add(Expand, y, (c, h, w), x=twice)


def reflect(d: Draw, y: str, x: str) -> None:
    table = [[[at, 0.5], [at + 1, 0.5]] for at in (1, 0, 1)]
    names = tuple(d.b.weight(f"{y}.{axis}", table) for axis in "hw")
    d.b.add(Resample, y, d.b.shapes[x], x=x, taps=names)


def roll(d: Draw, y: str, x: str) -> None:
    d.b.roll(y, x, d.one_of((1, 2)), *d.one_of(((1,), (2,), (1, 2))))


def residual_of_rolled(d: Draw, y: str, x: str) -> None:
    c, *_ = d.b.shapes[x]
    by = d.one_of((1, 2))
    scale, shift = (d.b.noise(f"{y}.{role}", (c, 1, 1)) for role in ("g", "b"))
    fields = {"x": x, "axes": (0,), "epsilon": 0.5, "scale": scale, "shift": shift}
    normal = d.b.add(Normalise, f"{y}.n", d.b.shapes[x], **fields)
    there = d.b.conv(f"{y}.c", d.b.roll(f"{y}.there", normal, by, 1, 2), c, d.one_of((1, 3)))
    d.b.binary(y, BinaryOp.ADD, x, d.b.roll(f"{y}.back", there, 3 - by, 1, 2))


STEPS: tuple[Callable[[Draw, str, str], None], ...] = (
    # Nodes that many rules match are drawn more often.
    *(conv, conv, scale_shift, scale_shift, activate, activate, add, add, concat, concat),
    *(arithmetic, add_constants, list_again, identity, split, scale_channels_apart),
    *(pad, pool, shuffle, silu, hard_swish),
    *(normalise, mlp_channels_last, sum_of_parts, reduce, reflect, roll, residual_of_rolled),
)

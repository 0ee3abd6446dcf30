"""Holds the state of a graph's conversion to launches: the buffer of each value, the last node that
reads it, and the launches so far."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from kernels.convolution.algorithms import ConvChoice
from kernels.image.decode import decode_launches
from kernels.image.decoded import MIDDLE_BYTES
from kernels.image.jpeg import SCRATCH_BYTES
from kernels.image.place import Kind
from kernels.image.resize import fetch_launch, first_axis_launch, second_axis_launch
from kernels.layout.pixels import Pixels
from kernels.layout.strided import VECTOR, StridedTensor
from kernels.operations.preprocess import Places, to_bytes_launch, to_floats_launch
from kernels.operations.top_k import ResultLayout, ScoreKind, top_k_launch
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import FLOAT, Storage
from models.graph import (
    Attention,
    Graph,
    Identity,
    Node,
    Product,
    Quantize,
    Reshape,
    Slice,
    Transpose,
)
from models.lowering import buffer_view
from models.lowering.buffer_view import BufferView
from models.lowering.tape import Operand, Tape, WeightOperand, at
from models.preprocessing import Layout, Preprocessing, normalisation
from models.schedule.time import Cost

Choose = Callable[[ConvProblem], ConvChoice]

INPUT = "convoy/images"
"""The buffer with the images of a batch: uint8 pixels, N×H×W×C, or the layout of
kernels/image/place.py for other kinds of images."""

OUTPUT = "convoy/results"
"""The buffer of the results (kernels/operations/top_k.py)."""


class Context:
    """Holds the state of the conversion of one graph to launches for n images. Nodes are converted
    in order."""

    def __init__(self, graph: Graph, n: int, choose: Choose) -> None:
        self.graph, self.n, self.choose = graph, n, choose
        self.tape = Tape()
        self.index = -1  # the index of the node that is being lowered
        self.views: dict[str, BufferView] = {}
        self.values_in: dict[str, list[str]] = {}  # by root: the values in that buffer
        self.last_read = _last_reads(graph)
        self.flags: dict[str, Operand] = {}  # the flags of the images, if a device decodes files
        self._readers = _readers(graph)
        self.of_tokens = _values_of_tokens(graph, self._readers)

    # --- locations of values
    # -------------------------------------------------------------------------

    def settle(self, value: str, view: BufferView) -> BufferView:
        """Record `view` as the storage of `value`, and return `view`."""
        self.views[value] = view
        self.values_in.setdefault(view.root, []).append(value)
        return view

    def fresh(self, root: str, shape: tuple[int, ...], stored: Storage) -> BufferView:
        """Add a buffer for a value of this shape, and return its view."""
        made = buffer_view.new_buffer(root, self.n, shape, stored)
        self.tape.buffer(root, made.nbytes)
        return made.view

    def output(
        self, value: str, over: str | None = None, reads: Sequence[BufferView] = ()
    ) -> BufferView:
        """Choose the storage to which `value` is written, and return its view.

        If the value is stored as a part of a larger value, the result is a part of the larger
        value's view. Otherwise, the result is the view of the value `over` if this value may be
        overwritten. In all other cases, the result is a new buffer.

        Each thread may read an element of `reads` just before it writes the same element of the
        output. Therefore, if `over` and a view in `reads` share a buffer, they must be the same
        view.
        """
        inside = self.graph.values[value].inside
        if inside is not None:
            parent = self.views.get(inside.parent) or self.output(inside.parent)
            end = inside.offset + self.graph.shape(value)[0]
            return self.settle(value, buffer_view.cut(parent, 1, inside.offset, end))
        if over is not None and self.may_overwrite(over, value, reads):
            return self.settle(value, self.views[over])
        stored = self.graph.values[value].stored
        return self.settle(value, self.fresh(value, self.graph.shape(value), stored))

    def output_by_tokens(self, value: str) -> BufferView:
        """Choose the storage of the result of an attention or matrix product, and return its view.

        The heads of a token are adjacent in memory. The heads are the last axis before the two axes
        of the matrices. In this order, the next layer finds all channels of a token, and all tokens
        of a window, in contiguous memory.
        """
        settled = self.graph.values[value]
        if settled.inside is not None or len(settled.shape) < 3:
            return self.output(value)
        *windows, heads, rows, columns = settled.shape
        shape, stored = (self.n, *windows, rows, heads, columns), settled.stored
        self.tape.buffer(value, stored.itemsize * prod(shape))
        lies = StridedTensor.contiguous(shape, stored)
        *outer, row, head, column = range(len(shape))
        return self.settle(
            value, BufferView(value, 0, lies.transposed((*outer, head, row, column)), None)
        )

    def output_as_read(self, node: Reshape) -> BufferView:
        """Choose the storage to which a Reshape copies its input, and return its view.

        If a Transpose is the only node that reads the copy, the copy is stored such that the
        transposed tensor consists of pixels.
        """
        settled, readers = self.graph.values[node.output], self._readers.get(node.output, [])
        turn = readers[0] if len(readers) == 1 and node.output not in self.graph.outputs else None
        if not isinstance(turn, Transpose) or self.is_near_tokens(turn) or settled.inside:
            return self.output(node.output)
        shape = self.graph.shape(turn.output)
        if len(shape) not in buffer_view.PIXEL_RANKS:
            return self.output(node.output)
        pixels = self.fresh(node.output, shape, settled.stored)
        back = [turn.axes.index(axis) for axis in range(len(shape))]
        return self.settle(node.output, buffer_view.transposed(pixels, back))

    def is_near_tokens(self, node: Node) -> bool:
        """Return whether only nodes that move elements lie between this node and an Attention or
        Product.

        Such a node needs no copy, because an Attention or Product accepts any strides.
        """
        return node.output in self.of_tokens

    def may_overwrite(self, over: str, value: str, reads: Sequence[BufferView]) -> bool:
        """Return whether `value` can be written to the buffer of the value `over`. Both must have
        the same layout, and no later node may read `over`."""
        view = self.views.get(over)
        if view is None or self.graph.shape(over) != self.graph.shape(value):
            return False
        shape, stored = self.graph.shape(value), self.graph.values[value].stored
        wanted = buffer_view.new_buffer(view.root, self.n, shape, stored).view
        return (
            view == wanted
            and all(read.root != view.root or read == view for read in reads)
            and all(self.last_read[value] <= self.index for value in self.values_in[view.root])
        )

    def alias(self, value: str, view: BufferView) -> None:
        """Store `value` as a view of existing elements, without a copy if possible.

        The elements are copied if the value must be stored elsewhere or with another type.
        """
        settled = self.graph.values[value]
        if settled.inside is None and settled.stored == view.strided.stored:
            self.settle(value, view)
        else:
            self.copy(view, self.output(value))

    def copy(self, x: BufferView, y: BufferView) -> None:
        """Add a launch that copies x to y element by element."""
        self.tape.copy(x.strided, at(x), y.strided, at(y))

    def pixels(self, value: str) -> tuple[BufferView, Pixels]:
        """Return the view and the pixel layout of a value. A value that is not stored as pixels is
        first copied to pixels."""
        view = self.views[value]
        if view.pixels is None:
            lies = view
            root = f"{value}/{len(self.tape.steps)}"
            view = self.fresh(root, self.graph.shape(value), lies.strided.stored)
            self.copy(lies, view)
        return view, pixels_of(view)

    def tensor(self, name: str, stored: Storage) -> tuple[StridedTensor, Operand]:
        """Return the layout and address of an operand. A weight is converted to the type
        `stored`."""
        if name in self.graph.weights:
            return StridedTensor.contiguous(self.graph.shape(name), stored), self.weight(
                name, stored
            )
        return self.views[name].strided, at(self.views[name])

    def weight(self, name: str, stored: Storage = FLOAT) -> WeightOperand:
        """Return the operand for a weight of the graph, converted to the type `stored`."""
        weight = self.graph.weights[name]
        form = "" if stored == FLOAT else str(stored)
        made = self.tape.weight(name, lambda: weight.astype(stored, copy=False), form)
        return replace(made, stored=stored)

    def vectors(self, name: str) -> WeightOperand:
        """Return the operand for a weight with one axis, padded with zeros to a multiple of the
        vector size."""
        weight = self.graph.weights[name]
        filled = np.pad(weight, (0, -weight.size % VECTOR))
        return replace(self.tape.weight(name, lambda: filled, "in vectors"), stored=FLOAT)

    def dense(self, value: str) -> BufferView:
        """Return a view of the value in which the elements of each image are contiguous. Copy the
        value if it is not stored in this way."""
        lies, classes = self.views[value], (prod(self.graph.shape(value)),)
        view = buffer_view.with_single_axes(lies, classes)
        if view is None or view.strided.strides[1] != 1:
            node, cost = self.tape.node, self.tape.cost
            self.tape.begin(f"{value}/scores", Cost())
            view = self.fresh(f"{value}/scores", classes, lies.strided.stored)
            self.reshape_copy(lies.strided, at(lies), view)
            self.tape.begin(node, cost)
        return view

    def rank(self, value: str, kind: ScoreKind) -> None:
        """Add the launch that ranks every image's scores and writes the results. `kind` is the kind
        of the scores, such as logits."""
        x = self.dense(value)
        results = ResultLayout(*x.strided.shape)
        elements = self.n * results.classes
        flops = 0 if kind is ScoreKind.PROBABILITIES else 4 * elements  # like a Softmax
        read = x.strided.stored.itemsize * elements
        self.tape.begin(OUTPUT, Cost(flops, read + results.nbytes))
        results_at = self.tape.buffer(OUTPUT, results.nbytes)
        launch = top_k_launch(x.strided, kind, has_flags=bool(self.flags))
        self.tape.emit(launch, x=at(x), **self.flags, y=results_at)

    def preprocess(self, p: Preprocessing, kind: Kind = Kind.PIXELS) -> None:
        """Add the launches that compute the network's input from the images of a batch.

        The launches accept images of the kind `kind`, and of all earlier kinds in `Kind`. For
        pixels, x = pixel · multiplier + offset. A tensor stays unchanged. If a Quantize is the only
        node that reads x, the launches write the quantized values directly.
        """
        (value,) = self.graph.inputs
        places, images = self._images(p, kind)
        if (quantize := self._quantize_of_pixels(p)) is not None:
            self._quantize_pixels(p, places, images, quantize)
            return
        stored = self.graph.values[value].stored
        *spatial, channels = p.image_shape
        area = prod(spatial)
        if p.layout is Layout.NHWC:
            # The network itself reads H×W×C, so the graph's first axis is not the channels.
            shape = self.graph.shape(value)
            view = BufferView(value, 0, StridedTensor.contiguous((self.n, *shape), stored), None)
            self.tape.buffer(value, stored.itemsize * self.n * prod(shape))
            written = Pixels(channels, channels, stored=stored)
        else:
            view = self.fresh(value, self.graph.shape(value), stored)
            # A pixel's padding is set to 0, because the first convolution may read whole vectors.
            written = Pixels(pixels_of(view).pitch, pixels_of(view).pitch, stored=stored)
        self.settle(value, view)
        read = self.n * area * channels
        moved = read + stored.itemsize * self.n * area * written.channels
        self.tape.begin(INPUT, Cost(2 * read, moved))
        self.tape.emit(
            to_floats_launch(channels, self.n, area, written, places),
            **images,
            **self._normalisation(p, written.channels),
            y=at(view),
        )

    def _quantize_of_pixels(self, p: Preprocessing) -> Quantize | None:
        """Return the Quantize that is the only reader of the network's input. Return None if there
        are other readers, or if the input is not an image with at most VECTOR channels."""
        (value,) = self.graph.inputs
        if value in self.graph.outputs:
            return None
        readers = [node for node in self.graph.nodes if value in node.operands()]
        *spatial, channels = p.image_shape
        is_image = p.layout is Layout.NCHW and len(spatial) == 2 and channels <= VECTOR
        if not is_image or len(readers) != 1 or not isinstance(readers[0], Quantize):
            return None
        return readers[0]

    def _images(self, p: Preprocessing, kind: Kind) -> tuple[Places | None, dict[str, Operand]]:
        """Add the launches that fetch, decode and resize the images, if their kind needs any.

        Return the layout of the images in the batch, which is None for contiguous pixels. Also
        return the kernel operands that hold the images' addresses.
        """
        place_bytes, nbytes = p.place_bytes(kind), self.n * prod(p.image_shape)
        images = self.tape.buffer(INPUT, self.n * place_bytes)
        if kind is Kind.PIXELS:
            return None, {"images": images}
        places = Places(place_bytes, p.layout is Layout.NHWC, has_made=kind >= Kind.DECODED)
        entries = self.tape.buffer("convoy/entries", self.n * place_bytes)
        # The cost of photographs that were decoded to twice the network's width and height.
        self.tape.begin(INPUT, Cost(0, 4 * nbytes))
        self.tape.emit(fetch_launch(self.n, place_bytes), images=images, entries=entries)
        if not places.has_made:
            return places, {"entries": entries}
        if kind is Kind.JPEG:
            self._decode_files(place_bytes, entries)
        height, width, channels = p.image_shape
        middle = self.tape.buffer("convoy/middle", self.n * MIDDLE_BYTES)
        made = self.tape.buffer("convoy/pixels", nbytes)
        first = first_axis_launch(self.n, place_bytes)
        self.tape.emit(first, entries=entries, middle=middle)
        second = second_axis_launch(self.n, (height, width, channels), place_bytes)
        self.tape.emit(second, entries=entries, middle=middle, y=made)
        return places, {"entries": entries, "made": made}

    def _decode_files(self, place_bytes: int, entries: Operand) -> None:
        """Add the launches that decode the JPEG files in the batch."""
        scratch = self.tape.buffer("convoy/scratch", self.n * SCRATCH_BYTES)
        self.flags = {"flags": self.tape.buffer("convoy/flags", 4 * self.n)}
        operands = {"entries": entries, "scratch": scratch, **self.flags}
        for launch in decode_launches(self.n, place_bytes):
            wanted = {name: operands[name] for name in launch.operands}
            self.tape.emit(launch, **wanted)

    def _normalisation(self, p: Preprocessing, channels: int) -> dict[str, Operand]:
        """Return the operands that normalise pixels, padded with zeros to `channels` channels."""
        multiplier, offset = (np.pad(v, (0, channels - len(v))) for v in normalisation(p))
        return {
            "multiplier": self.tape.weight("convoy/multiplier", lambda: multiplier),
            "offset": self.tape.weight("convoy/offset", lambda: offset),
        }

    def _quantize_pixels(
        self,
        p: Preprocessing,
        places: Places | None,
        images: dict[str, Operand],
        node: Quantize,
    ) -> None:
        height, width, channels = p.image_shape
        y, read = self.output(node.output), self.n * prod(p.image_shape)
        written = VECTOR * self.n * height * width
        self.tape.begin(INPUT, Cost(5 * read, read + written))
        size = height, width
        self.tape.emit(
            to_bytes_launch(channels, self.n, size, pixels_of(y), node.block, places),
            **images,
            **self._normalisation(p, channels),
            y=at(y),
        )

    def reshape_copy(self, x: StridedTensor, x_at: Operand, y: BufferView) -> None:
        """Add a launch that copies the elements of x, in row-major order, to `y`, which has another
        shape."""
        axes = buffer_view.common_refinement(x.shape[1:], y.strided.shape[1:])
        if axes is not None:
            into = buffer_view.refined(y.strided, axes)
            self.tape.copy(buffer_view.refined(x, axes), x_at, into, at(y))
            return
        # The shapes share no axes. The elements pass through a row-major copy, which any shape can
        # view.
        root = f"reshape/{len(self.tape.steps)}"
        middle = self.tape.buffer(root, x.stored.itemsize * prod(x.shape))
        self.tape.copy(x, x_at, StridedTensor.contiguous(x.shape, x.stored), middle)
        rows = StridedTensor.contiguous(y.strided.shape, x.stored)
        self.tape.copy(rows, middle, y.strided, at(y))


def pixels_of(view: BufferView) -> Pixels:
    """Return the pixel layout of a view. Raises ValueError if it is not stored as pixels."""
    if view.pixels is None:
        raise ValueError(f"{view.root} is not stored as pixels")
    return view.pixels


_MOVES = Identity | Reshape | Slice | Transpose


def _readers(graph: Graph) -> Mapping[str, Sequence[Node]]:
    """Return, for each value and weight, the nodes that read it."""
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in node.operands():
            readers.setdefault(name, []).append(node)
    return readers


def _values_of_tokens(graph: Graph, readers: Mapping[str, Sequence[Node]]) -> frozenset[str]:
    """Return the values near an Attention or a Product. Only nodes that move elements (Identity,
    Reshape, Slice and Transpose) lie between such a value and the Attention or Product.

    These nodes need no launch if their results can be views, because an Attention or Product
    accepts any strides.
    """
    read, written = set[str](), set[str]()
    for node in graph.nodes:
        if isinstance(node, Attention | Product) or (
            isinstance(node, _MOVES) and node.x in written
        ):
            written.add(node.output)
    for node in graph.nodes:
        after = readers.get(node.output, ())
        free = isinstance(node, _MOVES) and node.output not in graph.outputs
        if free and after and all(isinstance(each, Attention | Product | _MOVES) for each in after):
            read.add(node.output)
    return frozenset(read | written)


def _last_reads(graph: Graph) -> dict[str, int]:
    """Return, for each value, the index of the last node that reads it. The outputs of the graph
    are read after the last node."""
    last = dict.fromkeys(graph.values, -1)
    for index, node in enumerate(graph.nodes):
        for name in node.operands():
            if name in last:
                last[name] = index
    for name in graph.outputs:
        last[name] = len(graph.nodes)
    # A read of a value also reads the values inside it.
    for value in graph.values.values():
        parent = value.inside.parent if value.inside else None
        while parent is not None:
            last[value.name] = max(last[value.name], last[parent])
            inside = graph.values[parent].inside
            parent = inside.parent if inside else None
    return last

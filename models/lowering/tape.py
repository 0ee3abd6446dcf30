"""Records the result of a graph's conversion: kernel launches on named buffers, and the weights
that they read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from kernels.device.launch import Launch
from kernels.layout.strided import StridedTensor
from kernels.operations.elementwise import map_launch
from kernels.problems.precision import BYTE, FLOAT, HALF, Storage
from models.lowering.buffer_view import BufferView
from models.schedule.branches import Part
from models.schedule.time import NO_COST, Cost, PlannedConv

MakeWeight = Callable[[], NDArray[Any]]


@dataclass(frozen=True, slots=True)
class BufferOperand:
    """Points a launch to the byte at `offset` in buffer `root`. `stored` is the type of elements,
    if known.

    If `pitch` is not 0, the launch accesses at most `width` bytes of every `pitch` bytes.
    """

    root: str
    offset: int = 0
    stored: Storage | None = None
    width: int = 0
    pitch: int = 0

    @property
    def part(self) -> Part:
        """Return the part of the buffer that the launch accesses."""
        begin = self.offset % self.pitch if self.pitch else 0
        if not self.pitch or begin + self.width > self.pitch:
            return Part(self.root)
        return Part(self.root, begin, begin + self.width, self.pitch)


@dataclass(frozen=True, slots=True)
class WeightOperand:
    """Points a launch to the first byte of a weight. `stored` is the type of its elements, if
    known."""

    weight: str
    stored: Storage | None = None


Operand = BufferOperand | WeightOperand

_TYPES = {FLOAT.element, HALF.element, BYTE.element}


def at(view: BufferView) -> BufferOperand:
    """Return the operand that points to a view's first element."""
    stored = view.strided.stored
    offset, pixels = stored.itemsize * view.offset, view.pixels
    if pixels is None:
        return BufferOperand(view.root, offset, stored)
    width, pitch = (stored.itemsize * elements for elements in (pixels.channels, pixels.pitch))
    return BufferOperand(view.root, offset, stored, width, pitch)


@dataclass(frozen=True, slots=True)
class TapeStep:
    """Describes a kernel launch for the node `name`. Its buffers have names, but no addresses
    yet."""

    name: str
    launch: Launch
    operands: Mapping[str, Operand]
    cost: Cost
    chosen: PlannedConv | None  # None if the launch computes no convolution


@dataclass
class Tape:
    """Collects kernel launches in order, the sizes of their buffers, and functions that create
    their weights."""

    steps: list[TapeStep] = field(default_factory=list)
    buffers: dict[str, int] = field(default_factory=dict)  # the bytes of each root
    counters: list[str] = field(default_factory=list)  # roots; 0 before and after each step
    weights: dict[str, MakeWeight] = field(default_factory=dict)
    # Values that are still intact after the last step.
    kept: dict[str, BufferView] = field(default_factory=dict)
    node: str = ""  # the node whose steps are emitted
    cost: Cost = NO_COST  # that node's cost, which its first step carries
    chosen: PlannedConv | None = None  # that node's convolution and algorithm

    def begin(self, node: str, cost: Cost) -> None:
        """Set the node to which all following launches belong, until the next call."""
        self.node, self.cost, self.chosen = node, cost, None

    def emit(self, launch: Launch, **operands: Operand) -> None:
        """Add a launch with its operands. Operands that the launch does not use are ignored.

        Raises KeyError if an operand of the launch is missing. Raises TypeError if an operand has
        another type than the kernel expects, or if the kernel declares an operand `__restrict__`
        that is not a weight.
        """
        if missing := set(launch.operands) - operands.keys():
            raise KeyError(
                f"{launch.instantiation} for {self.node} lacks the operands {sorted(missing)}"
            )
        named = {name: operands[name] for name in launch.operands}
        self._check_types(launch, named)
        self._check_restricted(launch, named)
        self.steps.append(TapeStep(self.node, launch, named, self.cost, self.chosen))
        self.cost = NO_COST

    def _check_types(self, launch: Launch, operands: Mapping[str, Operand]) -> None:
        # The type Element of conv_tensor is not in _TYPES; check_operands compares it with the
        # stored type.
        declared = {name: type_ for name, type_ in launch.elements.items() if type_ in _TYPES}
        for name, type_ in declared.items():
            stored = operands[name].stored
            if stored is not None and stored.element != type_:
                raise TypeError(
                    f"{launch.instantiation} for {self.node} takes {name} as {type_}, "
                    f"but it is stored as {stored}"
                )

    def _check_restricted(self, launch: Launch, operands: Mapping[str, Operand]) -> None:
        for name in sorted(launch.restricted):
            if not isinstance(operands[name], WeightOperand):
                raise TypeError(
                    f"{launch.instantiation} for {self.node} declares {name} with __restrict__, "
                    "which is allowed only for weights (kernels/src/dependent.cuh); remove it"
                )

    def buffer(self, root: str, nbytes: int) -> BufferOperand:
        """Add a buffer, and return it as an operand."""
        self.buffers[root] = nbytes
        return BufferOperand(root)

    def scratch(self, workspace: Mapping[str, int], counter_bytes: int) -> dict[str, Operand]:
        """Add the workspace buffers of a node, and return them as operands by name.

        `workspace` has the number of bytes of each operand. `counter_bytes` is the size of the
        counters that thread blocks share. All launches of the node use these buffers.
        """
        index = len(self.steps)
        operands: dict[str, Operand] = {
            name: self.buffer(f"{name}/{index}", nbytes) for name, nbytes in workspace.items()
        }
        if counter_bytes:
            operands["counters"] = self.buffer(f"counters/{index}", counter_bytes)
            self.counters.append(f"counters/{index}")
        return operands

    def weight(self, name: str, make: MakeWeight, form: str = "") -> WeightOperand:
        """Add a weight, unless it was added before, and return its operand.

        `name` is the weight's name in the graph. `form` names the layout that the kernel needs.
        Each layout is a separate weight.
        """
        key = f"{name}@{form}" if form else name
        self.weights.setdefault(key, make)
        return WeightOperand(key)

    def copy(self, x: StridedTensor, x_at: Operand, y: StridedTensor, y_at: Operand) -> None:
        """Add a launch that copies x to y element by element. Both may have any strides."""
        self.emit(map_launch(x, y), x=x_at, y=y_at)

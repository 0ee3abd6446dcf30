"""Plans every kernel launch of a network for one batch size, and the memory of every operand.

`build_plan` is a pure function: the same graph, N and choices give the same plan, without a device.

    rewritten graph ─ lowering ─ steps on named buffers ─ branches ─ arena ─ Plan
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, unique
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from kernels.device.device import Argument
from kernels.device.launch import Launch
from kernels.image.place import Kind
from models.arena import ALIGNMENT, Lifetime, lay_out
from models.graph import Graph
from models.lowering import (
    INPUT,
    OUTPUT,
    BufferOperand,
    BufferView,
    Choose,
    MakeWeight,
    Operand,
    Tape,
    TapeStep,
    WeightOperand,
    lower,
)
from models.preprocessing import Preprocessing
from models.schedule.branches import Access, After, all_before, dependencies, in_order, windows
from models.schedule.time import Cost, PlannedConv

Pays = Callable[[Sequence[TapeStep], After], bool]
"""Returns whether to run the steps in this parallel order instead of one after another."""


@unique
class Region(Enum):
    """Lists the parts of device memory that a plan uses. Each part is named after its contents."""

    INPUT = "input"  # the images of the plan's kind (INPUT in models/lowering/context.py)
    OUTPUT = "output"  # results (kernels/operations/top_k.py), read by the host
    ARENA = "arena"  # everything in between
    COUNTERS = "counters"  # all zero before and after every step
    WEIGHTS = "weights"  # shared by the plans of all N


@dataclass(frozen=True, slots=True)
class Location:
    """Gives the address of an operand as `offset` bytes from the start of a region or a named
    weight."""

    region: Region
    offset: int
    weight: str | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """Describes one launch, which computes the node `name` or a part of it."""

    name: str
    launch: Launch
    operands: Mapping[str, Location]
    cost: Cost
    chosen: PlannedConv | None  # None if the launch computes no convolution

    def arguments(self, address: Callable[[Location], int]) -> tuple[Argument, ...]:
        """Return the kernel's arguments. `address` returns the address of a location."""
        return self.launch.bind({name: address(at) for name, at in self.operands.items()})


@dataclass(frozen=True, slots=True)
class KeptValue:
    """Locates a value inside the network that the host may read after the last step. It begins
    `offset` bytes after the start of the arena."""

    offset: int
    nbytes: int  # the size of the buffer that contains the value
    view: BufferView

    def array(self, buffer: NDArray[np.uint8]) -> NDArray[Any]:
        """Return the value of n images as a view of `buffer`, in its stored type."""
        strided = self.view.strided
        elements = buffer.view(strided.stored.dtype)[self.view.offset :]
        strides = [stride * strided.stored.itemsize for stride in strided.strides]
        return as_strided(elements, strided.shape, strides, writeable=False)


@dataclass(frozen=True)
class Plan:
    """Holds a network's launches for n images. Weights are created when they are first needed, and
    plans share them.

    Only the first step reads INPUT, and only the last step writes OUTPUT. Therefore INPUT and
    OUTPUT can be host memory.
    """

    n: int
    kind: Kind  # the kind of batch
    steps: tuple[Step, ...]
    after: After  # per step: the steps that must have ended, as a transitive reduction
    weights: Mapping[str, MakeWeight]
    kept: Mapping[str, KeptValue]  # the graph's outputs except the scores
    buffers: tuple[Lifetime, ...]  # in the arena; for reports and tests (windows of `after`)
    offsets: Mapping[str, int]
    arena_bytes: int
    input_bytes: int
    output_bytes: int
    counter_bytes: int


def build_plan(
    graph: Graph,
    preprocessing: Preprocessing,
    n: int,
    choose: Choose,
    *,
    kind: Kind = Kind.PIXELS,
    pays: Pays = lambda *_: False,
) -> Plan:
    """Return the plan of a rewritten classifier for n images.

    `choose` selects the algorithm of each Conv. Images may be of `kind` or of an earlier member of
    `Kind`. `pays` decides whether branches of the network run in parallel. Raises ValueError if a
    tensor is too large for a kernel's indices.
    """
    tape = lower(graph, preprocessing, n, choose, kind)
    after = dependencies([_access(step) for step in tape.steps])
    if not pays(tape.steps, after):
        after = in_order(len(tape.steps))
    special = {INPUT: Region.INPUT, OUTPUT: Region.OUTPUT}
    special |= dict.fromkeys(tape.counters, Region.COUNTERS)
    alive = _lifetimes(tape, after)
    buffers = tuple(life for life in alive if life.name not in special)
    arena, counters = lay_out(buffers), lay_out([x for x in alive if x.name in tape.counters])
    offsets = {INPUT: 0, OUTPUT: 0, **arena.offsets, **counters.offsets}

    def locate(operand: Operand) -> Location:
        if isinstance(operand, WeightOperand):
            return Location(Region.WEIGHTS, 0, operand.weight)
        region = special.get(operand.root, Region.ARENA)
        return Location(region, offsets[operand.root] + operand.offset)

    steps = tuple(
        Step(
            step.name,
            step.launch,
            {name: locate(operand) for name, operand in step.operands.items()},
            step.cost,
            step.chosen,
        )
        for step in tape.steps
    )
    return Plan(
        n=n,
        kind=kind,
        steps=steps,
        after=after,
        weights=dict(tape.weights),
        kept={
            name: KeptValue(offsets[view.root], tape.buffers[view.root], view)
            for name, view in tape.kept.items()
        },
        buffers=buffers,
        offsets=arena.offsets,
        arena_bytes=max(arena.nbytes, ALIGNMENT),
        input_bytes=tape.buffers[INPUT],
        output_bytes=tape.buffers[OUTPUT],
        counter_bytes=counters.nbytes,
    )


def _lifetimes(tape: Tape, after: After) -> list[Lifetime]:
    """Return the lifetime of each buffer, from the first step that uses it to the last.

    If steps run in parallel, a lifetime also records which steps always end before it begins. The
    buffers of values that the host reads stay in use after the last step.
    """
    kept, end_of_all = {view.root for view in tape.kept.values()}, len(tape.steps)
    ancestors = all_before(after)
    in_turn = after == in_order(len(after))
    lives: dict[str, tuple[int, int, int, int]] = {}
    for index, (step, (begin, end)) in enumerate(zip(tape.steps, windows(ancestors), strict=True)):
        for operand in step.operands.values():
            if isinstance(operand, BufferOperand):
                new = (begin, end, 1 << index, ancestors[index])
                first, last, users, before = lives.get(operand.root, new)
                lives[operand.root] = (
                    min(first, begin),
                    max(last, end),
                    users | 1 << index,
                    before & ancestors[index],
                )
    for root in kept:
        first, _, users, before = lives[root]
        lives[root] = first, end_of_all, users | 1 << end_of_all, before
    return [
        Lifetime(root, tape.buffers[root], *(life[:2] if in_turn else life))
        for root, life in lives.items()
    ]


def _access(step: TapeStep) -> Access:
    parts = {
        name: operand.part
        for name, operand in step.operands.items()
        if isinstance(operand, BufferOperand)
    }
    writes = frozenset(part for name, part in parts.items() if name in step.launch.writes)
    return Access(frozenset(parts.values()) - writes, writes)

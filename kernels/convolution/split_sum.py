"""Implements convolutions in one launch, in which several blocks may compute parts of the same sum.

    a tile of the output ─ split ─┬─> parts, in "workspace" ─ the last block, by "counters" ─> y
                                  └─> parts, in a cluster's shared memory ─ its blocks ─> y

kernels/src/split.cuh adds the parts in a workspace, and cluster_sum.cuh adds the parts of a
cluster. A subclass of `SplitSum` defines the tiles, and inherits the configurations, the workspace
and the launch.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Generic, TypeVar

from kernels.device.device import Dim3, Instantiation
from kernels.device.launch import Launch, Value, launch, window_struct
from kernels.layout.operands import ConvTensors, check_operands, vectors_in
from kernels.layout.strided import VECTOR
from kernels.operations.epilogue import epilogue_arguments
from kernels.problems.activation import Activation
from kernels.problems.conv import ConvProblem
from kernels.winograd.matrices import Points

MAX_WORKSPACE_BYTES = 16 << 20
"""The largest number of bytes for the partial sums of one convolution. Lavin & Gray have the same
limit (section 6)."""

MAX_SPLIT = 16
MIN_CHUNKS = 2
"""The fewest chunks of the inner dimension that a block has if sums are split."""

Tile = TypeVar("Tile")


MAX_CLUSTER = 8
"""The number of blocks that a cluster may have on every GPU with clusters (CUDA C++ Programming
Guide, "Thread Block Clusters")."""


def _named(tile: object, split: int) -> str:
    return str(tile) if split == 1 else f"{tile}/{split}"


@dataclass(frozen=True, slots=True)
class TileConfig(Generic[Tile]):
    """Sets the sizes of an output tile, and the number of blocks (`split`) that compute parts of
    its sums.

    If `cluster`, these blocks form a thread block cluster, which adds the parts in its shared
    memory. If `together` is 2 or 4, the blocks of 2 or 4 tiles form a cluster. Data that several of
    these tiles need is then copied only once.
    """

    tile: Tile
    split: int = 1
    cluster: bool = False
    together: int = 1

    def __str__(self) -> str:
        shared = f" {self.together} together" if self.together > 1 else ""
        return _named(self.tile, self.split) + (" in a cluster" if self.cluster else "") + shared


@dataclass(frozen=True, slots=True)
class WinogradConfig(Generic[Tile]):
    """Sets the interpolation points of F(m, r), the sizes of an output tile, and the number of
    blocks (`split`) that compute parts of its sums."""

    points: Points
    tile: Tile
    split: int = 1

    def __str__(self) -> str:
        return f"{self.points.name.lower()} points, {_named(self.tile, self.split)}"


C = TypeVar("C", bound=TileConfig[Any] | WinogradConfig[Any])


class SplitSum(Generic[C]):
    """The base class of algorithms that compute a convolution in one launch. The kernel must take a
    struct `Sizes` that begins with the fields of split.cuh's `ConvSizes`."""

    __slots__ = ()

    def unsplit(self, problem: ConvProblem) -> Iterable[C]:
        """Return the configurations in which no sum is split between blocks."""
        raise NotImplementedError

    def most_parts(self, problem: ConvProblem, config: C) -> int:
        """Return the largest number of blocks between which the sums of a tile can be split, or 1
        if the sums cannot be split."""
        raise NotImplementedError

    def tiles(self, problem: ConvProblem, config: C) -> int:
        """Return the number of tiles that cover the output of all images and groups."""
        raise NotImplementedError

    def part_floats(self, config: C) -> int:
        """Return how many floats of workspace a block needs for its partial sums."""
        raise NotImplementedError

    def instantiation(
        self, problem: ConvProblem, config: C, activation: Activation | None = None
    ) -> Instantiation:
        """Return the kernel that a configuration runs."""
        raise NotImplementedError

    def clustered(self, config: C) -> bool:  # noqa: ARG002  (most are not)
        """Return whether the blocks that compute parts of the same sums form a thread block
        cluster."""
        return False

    def threads(self, config: C) -> int:
        """Return the number of threads of a block."""
        raise NotImplementedError

    def dynamic_bytes(self, problem: ConvProblem, config: C) -> int:
        """Return the bytes of dynamic shared memory that a block uses."""
        raise NotImplementedError

    def cluster(self, config: C) -> Dim3:
        """Return the number of blocks of a cluster along each axis of the grid."""
        return (1, config.split if self.clustered(config) else 1, 1)

    def factors(
        self,
        problem: ConvProblem,  # noqa: ARG002  (most take pointers)
        config: C,  # noqa: ARG002
        tensors: ConvTensors,  # noqa: ARG002
    ) -> Mapping[str, Value]:
        """Return the kernel's first arguments, through which the kernel reads x and the weights."""
        return {"x": "x", "weight": "weight"}

    def sizes(self, problem: ConvProblem, config: C, tensors: ConvTensors) -> bytes:
        """Return the bytes of the kernel's struct `Sizes`. Raises ValueError if an index exceeds 32
        bits."""
        raise NotImplementedError

    def further_arguments(self, problem: ConvProblem) -> Mapping[str, Value]:  # noqa: ARG002  (most have none)
        """Return the arguments that only this kernel has. They come after the window and before the
        epilogue's arguments."""
        return {}

    def configs(self, problem: ConvProblem) -> tuple[C, ...]:
        """Return every combination of a tile size and a possible number of parts per sum. Each part
        must have work, and the workspace must have at most MAX_WORKSPACE_BYTES."""
        return tuple(
            config
            for one in self.unsplit(problem)
            for split in range(1, min(MAX_SPLIT, self.most_parts(problem, one)) + 1)
            for config in [replace(one, split=split)]
            if sum(self.workspace(problem, config).values()) <= MAX_WORKSPACE_BYTES
        )

    def workspace(self, problem: ConvProblem, config: C) -> Mapping[str, int]:
        """Return the size in bytes of the workspace for the partial sums of all blocks. The result
        is empty if the launch needs no workspace."""
        if not self._by_workspace(config):
            return {}
        blocks = self.tiles(problem, config) * config.split
        return {"workspace": 4 * blocks * self.part_floats(config)}

    def counter_bytes(self, problem: ConvProblem, config: C) -> int:
        """Return the size in bytes of all counters, one per tile, or 0 if the launch needs no
        workspace."""
        return 4 * self.tiles(problem, config) if self._by_workspace(config) else 0

    def _by_workspace(self, config: C) -> bool:
        return config.split > 1 and not self.clustered(config)

    def launches(self, problem: ConvProblem, config: C, tensors: ConvTensors) -> tuple[Launch]:
        """Return the algorithm's single launch. Its operands are x, weight and y, and bias and
        residual if given.

        If the sums are split and not added in a cluster, workspace and counters are operands, too.
        If the problem has a prologue, scale and shift are operands, padded with zeros to a multiple
        of 4 channels. Raises ValueError if a tensor does not match the problem, or if an index
        exceeds 32 bits.
        """
        check_operands(problem, tensors)
        by_workspace = self._by_workspace(config)
        return (
            launch(
                self.instantiation(problem, config, tensors.activation),
                (self.tiles(problem, config) // problem.groups, config.split, problem.groups),
                (self.threads(config), 1, 1),
                self.dynamic_bytes(problem, config),
                self.cluster(config),
                **self.factors(problem, config, tensors),
                **tensors.given,
                y="y",
                workspace="workspace" if by_workspace else 0,
                counters="counters" if by_workspace else 0,
                sizes=self.sizes(problem, config, tensors),
                window=window_struct(problem.window),
                **self.further_arguments(problem),
                **epilogue_arguments(tensors.activation),
            ),
        )


def conv_sizes(
    problem: ConvProblem,
    tile_filters: int,
    tensors: ConvTensors,
    unit: int = VECTOR,
    written: int = VECTOR,
) -> dict[str, int]:
    """Return the fields of `ConvSizes` (split.cuh). The kernel copies `unit` channels at once and
    writes `written` channels at once.

    If the problem has a projection, the residual is the projection's input, and is copied like x.
    """
    x, y, residual, *_ = tensors
    c, k = problem.c // problem.groups, problem.k // problem.groups
    added, projected = (None, residual) if problem.projection else (residual, None)
    one_group = problem.groups == 1
    return {
        "channels": c,
        "filters": k,
        "x_pitch": x.pitch,
        "residual_pitch": 0 if residual is None else residual.pitch,
        "y_pitch": y.pitch,
        "x_vectors": vectors_in(x, projected or x, width=unit) and (one_group or c % unit == 0),
        "y_vectors": vectors_in(y, added or y, width=written) and (one_group or k % written == 0),
        "filter_tiles": ceil(k / tile_filters),
    }

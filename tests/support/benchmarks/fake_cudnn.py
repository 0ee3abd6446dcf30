"""Replaces cuDNN by a fake. The fake computes with PyTorch on the CPU, and reads and writes at the
given addresses.

It provides the part of nvidia-cudnn-frontend that benchmarks/kernels/baselines_cudnn.py uses, and
refuses the same wrong calls.
"""

import ctypes
from dataclasses import dataclass, field
from enum import Enum
from math import prod
from types import SimpleNamespace
from typing import Any


class KnobType(Enum):
    NOT_SET = 0
    TILE_SIZE = 1
    SPLIT_K = 2


class NotSupportedError(Exception):
    """Says that cuDNN does not support a graph. Like the real class, this class does not derive
    from RuntimeError."""


@dataclass(eq=False)
class FakeTensor:
    dim: list[int]
    stride: list[int]

    def set_output(self, value: bool) -> "FakeTensor":
        assert value
        return self

    def set_dim(self, dim: list[int]) -> "FakeTensor":
        assert dim == self.dim
        return self

    def set_stride(self, stride: list[int]) -> "FakeTensor":
        self.stride = stride
        return self

    def at(self, address: int, torch: Any) -> Any:
        """Return the tensor whose elements begin at `address`."""
        elements = 1 + sum((n - 1) * s for n, s in zip(self.dim, self.stride, strict=True))
        memory = (ctypes.c_float * elements).from_address(address)
        return torch.frombuffer(memory, dtype=torch.float32).as_strided(self.dim, self.stride)


@dataclass
class FakeCudnn:
    """A fake library with four engines. Engine 0 is right, 1 computes in TF32, 2 fails when it is
    built, and 3 supports no graph.

    No engine supports the layouts that `unsupported` names ("NCHW" or "NHWC").
    """

    torch: Any
    unsupported: frozenset[str] = frozenset()
    executed: list[str] = field(default_factory=list)
    stream: int = 0

    data_type = SimpleNamespace(FLOAT="float")
    heur_mode = SimpleNamespace(A="A", B="B", FALLBACK="F")
    numerical_note = SimpleNamespace(
        TENSOR_CORE="t", DOWN_CONVERT_INPUTS="d", REDUCED_PRECISION_REDUCTION="r"
    )
    knob_type = KnobType
    cudnnGraphNotSupportedError = NotSupportedError  # noqa: N815  (its name)

    def pygraph(self, **types: Any) -> "FakeGraph":
        assert set(types) == {
            "handle", "io_data_type", "intermediate_data_type", "compute_data_type",
        }  # fmt: skip
        return FakeGraph(self)

    def set_stream(self, handle: int, stream: int) -> None:
        assert handle == 7
        self.stream = stream


class FakeGraph:
    def __init__(self, library: FakeCudnn) -> None:
        self.library = library
        self.plans: list[tuple[int, dict[Any, int]]] = []
        self.barred: set[int] = set()
        self.built: set[int] = set()
        self.checked = False

    def tensor(self, name: str, dim: list[int], stride: list[int], data_type: str) -> FakeTensor:
        assert data_type == "float"
        return FakeTensor(dim, stride)

    def conv_fprop(
        self,
        image: FakeTensor,
        weight: FakeTensor,
        pre_padding: list[int],
        post_padding: list[int],
        stride: list[int],
        dilation: list[int],
    ) -> FakeTensor:
        assert pre_padding == post_padding
        self.x, self.weight, self.padding = image, weight, pre_padding
        sizes = [
            size + 2 * pad - kernel + 1
            for size, pad, kernel in zip(image.dim[2:], pre_padding, weight.dim[2:], strict=True)
        ]
        self.y = FakeTensor([image.dim[0], weight.dim[0], *sizes], [])
        return self.y

    def validate(self) -> None:
        pass

    def build_operation_graph(self) -> None:
        layout = "NHWC" if self.x.stride[1] == 1 else "NCHW"
        if layout in self.library.unsupported:
            raise NotSupportedError(f"no engine for {layout}")

    def create_execution_plans(self, modes: list[str]) -> None:
        self.plans += [(0, {}), (1, {}), (2, {})] if "A" in modes else [(0, {})]

    def deselect_numeric_notes(self, notes: list[str]) -> None:
        assert notes == ["t", "d", "r"]
        self.barred = {index for index, (engine, _) in enumerate(self.plans) if engine == 1}

    def deselect_workspace_greater_than(self, nbytes: int) -> None:
        assert nbytes == 2**30

    def get_engine_count(self) -> int:
        return 4

    def get_knobs_for_engine(self, engine: int) -> list[Any]:
        if engine == 3:
            raise RuntimeError("finalize failed")
        tile = SimpleNamespace(type=KnobType.TILE_SIZE, min_value=0, max_value=2, stride=1)
        odd = SimpleNamespace(type=KnobType.NOT_SET, min_value=0, max_value=9, stride=1)
        split = SimpleNamespace(type=KnobType.SPLIT_K, min_value=1, max_value=128, stride=1)
        return [[tile, odd], [], [tile, split]][engine]

    def create_execution_plan(self, engine: int, knobs: dict[Any, int]) -> None:
        if knobs.get(KnobType.TILE_SIZE) == 2:
            raise RuntimeError("this tile is too large")
        self.plans.append((engine, dict(knobs)))

    def check_support(self) -> None:
        self.checked = True

    def get_execution_plan_count(self) -> int:
        return len(self.plans)

    def get_plan_name_at_index(self, index: int) -> str:
        engine, knobs = self.plans[index]
        return f"eng{engine}" + "".join(f"_k{key.value}={value}" for key, value in knobs.items())

    def build_plan_at_index(self, index: int) -> None:
        assert self.checked
        if index in self.barred:
            raise NotSupportedError("Deselecting execution plan")
        if self.plans[index][0] == 2:
            raise RuntimeError("does not compile")
        self.built.add(index)

    def get_workspace_size_plan_at_index(self, index: int) -> int:
        assert index in self.built
        return 0

    def execute_plan_at_index(
        self, buffers: dict[FakeTensor, int], workspace: int, index: int, handle: int
    ) -> None:
        assert index in self.built
        assert handle == 7
        assert workspace
        torch = self.library.torch
        x, weight = (each.at(buffers[each], torch) for each in (self.x, self.weight))
        if self.plans[index][0] == 1:  # TF32 keeps ten bits of a mantissa
            x, weight = ((each * 2**10).round() / 2**10 for each in (x, weight))
        convolve = (
            torch.nn.functional.conv3d if len(self.padding) == 3 else torch.nn.functional.conv2d
        )
        self.y.at(buffers[self.y], torch).copy_(convolve(x, weight, padding=self.padding))
        self.library.executed.append(self.get_plan_name_at_index(index))
        assert prod(self.y.dim)

"""Timing: the launches and operands, the number of repetitions, and the evaluation of samples."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cusim.device import CusimDevice
from kernels.device.device import ALIGNMENT, Device, Dim3, LaunchError
from kernels.device.launch import Launch, instantiate
from kernels.layout.strided import StridedTensor
from kernels.operations.elementwise import binary_launch
from kernels.problems.binary_operation import BinaryOp
from kernels.tuning.timing import (
    Timing,
    graph_sizes,
    launch_copies,
    operand_sets,
    set_bytes,
    sets_needed,
    time_launches,
)

_ONE = StridedTensor((1,), (1,))
_COUNT = binary_launch(BinaryOp.ADD, _ONE, _ONE, _ONE)  # a + b, and y may be a
_DOUBLE = binary_launch(BinaryOp.MUL, _ONE, _ONE, _ONE)


def test_every_set_of_operands_is_run_as_often_as_every_other_and_in_the_order_asked() -> None:
    device = CusimDevice()
    stream = device.stream()
    sets = 5
    buffer = device.allocate(ALIGNMENT * (sets + 2))
    one, two = buffer.address + ALIGNMENT * sets, buffer.address + ALIGNMENT * (sets + 1)
    device.fill(buffer.address, ALIGNMENT * sets, 0, stream)
    device.upload(one, np.array([1], np.float32), stream)
    device.upload(two, np.array([2], np.float32), stream)
    operands = operand_sets(buffer.address, {"y": 4}, sets)
    count = _named(_COUNT, "y", "one")
    double = _named(_DOUBLE, "y", "two")
    operands = [{**each, "one": one, "two": two} for each in operands]

    copies = launch_copies(device, [count, double], operands, copies=3)
    samples = copies.samples_us(replays=4)

    assert len(samples) == 4
    assert min(samples) > 0
    # Graphs of 3 and 2 copies take turns, two of each. The last warms up before, and the first set
    # ran once by itself. n runs of y = 2 (y + 1) leave 2 (2^n - 1).
    runs = [1 + 2, 2, 2]
    result = np.empty((sets, ALIGNMENT // 4), np.float32)
    device.download(result, buffer.address, stream)
    stream.synchronize()
    assert result[:3, 0].tolist() == [2 * (2.0**n - 1) for n in runs]
    warmed_up = result[3:, 0]
    assert warmed_up[0] == warmed_up[1] >= 2 * (2.0 ** (2 + 1 + 3) - 1)
    device.close()


def _named(launch: Launch, y: str, b: str) -> Launch:
    names = {"a": y, "b": b, "y": y}
    arguments = [
        names.get(each, each) if isinstance(each, str) else each for each in launch.arguments
    ]
    return Launch(launch.instantiation, launch.grid, launch.block, tuple(arguments))


def test_a_cache_between_the_copies_is_warm_on_one_set_and_cold_on_as_many_as_are_needed() -> None:
    device = cast(Device, CachedDevice(cache_bytes=1000))
    launch = Launch(instantiate("none.cu", "none"), (1, 1, 1), (1, 1, 1), ("x",))
    warm = time_launches(device, [launch], operand_sets(0, {"x": ALIGNMENT}, 1), replays=10)
    assert warm == Timing(1, 1, 1)
    for copies in (2, 3, 4, 5, 8, 20):
        sets = sets_needed(ALIGNMENT, 1000, copies=copies, replays=10)
        operands = operand_sets(0, {"x": ALIGNMENT}, sets)
        cold = time_launches(device, [launch], operands, copies=copies, replays=10)
        assert cold == Timing(9, 9, 9)
    # One less, and what lies between is no more than the cache holds.
    (few,) = (operand_sets(0, {"x": ALIGNMENT}, sets_needed(ALIGNMENT, 1000) - 2),)
    assert time_launches(device, [launch], few, replays=10) == Timing(1, 1, 1)


class CachedDevice:
    """Virtual time: a launch takes 1 µs if its operand is in the cache, and 9 µs otherwise."""

    def __init__(self, cache_bytes: int) -> None:
        self._lines = cache_bytes // ALIGNMENT + 1  # the last of them perhaps in part
        self._cached: list[int] = []
        self._graph: Any = None
        self.now_us = 0.0

    def stream(self) -> Any:
        return self

    def synchronize(self) -> None:
        assert self._graph is None

    def load(self, instantiation: object) -> object:
        return instantiation

    def launch(self, kernel: object, *geometry: Any, dependent: bool, cluster: Dim3) -> None:
        (address,) = geometry[3]
        if self._graph is not None:
            self._graph.addresses.append(address)
        else:
            self.touch(address)

    def touch(self, address: int) -> None:
        self.now_us += 1 if address in self._cached else 9
        self._cached = [each for each in self._cached if each != address][-self._lines + 1 :]
        self._cached.append(address)

    @contextmanager
    def capture(self, stream: Any) -> Iterator[Any]:
        self._graph = _Graph(self)
        yield self._graph
        self._graph = None

    def event(self) -> Any:
        return _Event()


class _Graph:
    def __init__(self, device: CachedDevice) -> None:
        self.device = device
        self.addresses: list[int] = []

    def replay(self, stream: object) -> None:
        for address in self.addresses:
            self.device.touch(address)


class _Event:
    us = 0.0

    def record(self, stream: CachedDevice) -> None:
        self.us = stream.now_us

    def elapsed_ms(self, since: "_Event") -> float:
        return (self.us - since.us) / 1e3


def test_the_clocks_are_warm_before_a_replay_counts() -> None:
    device = CachedDevice(cache_bytes=1000)
    launch = Launch(instantiate("none.cu", "none"), (1, 1, 1), (1, 1, 1), ("x",))
    copies = launch_copies(cast(Device, device), [launch], [{"x": 0}], copies=20)
    before = device.now_us
    copies.samples_us(replays=200)
    warming_us = device.now_us - before - 200 * 20
    assert 20_000 <= warming_us < 50_000


def test_a_launch_that_is_refused_is_refused_before_anything_is_captured() -> None:
    device = CusimDevice()
    launch = Launch(_COUNT.instantiation, (1, 1, 1), (2048, 1, 1), _COUNT.arguments)
    buffer = device.allocate(4)
    addresses = dict.fromkeys("aby", buffer.address)
    with pytest.raises(LaunchError):
        launch_copies(device, [launch], [addresses])
    device.synchronize()  # which a stream left in its capture would refuse
    device.close()


@given(st.integers(1, 5000), st.integers(1, 60))
def test_graphs_pass_over_every_set_alike_and_none_is_long(sets: int, copies: int) -> None:
    sizes = graph_sizes(sets, copies)
    assert sum(sizes) % sets == 0
    assert max(sizes) - min(sizes) <= 1
    if sets <= copies:
        assert copies <= sizes[0] < copies + sets
        assert len(sizes) == 1
    else:
        assert sum(sizes) == sets
        assert max(sizes) <= copies
        assert 2 * min(sizes) >= copies - 1


@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=5), st.integers(1, 50), st.integers(0, 99)
)
def test_sets_of_operands_are_aligned_and_never_overlap(
    nbytes: list[int], count: int, begin: int
) -> None:
    sizes = {str(index): size for index, size in enumerate(nbytes)}
    sets = operand_sets(begin * ALIGNMENT, sizes, count)
    spans = sorted((each[name], each[name] + sizes[name]) for each in sets for name in sizes)
    assert len(spans) == count * len(nbytes)
    assert all(first % ALIGNMENT == 0 for first, _ in spans)
    ends = [begin * ALIGNMENT, *(last for _, last in spans)]
    assert all(end <= first for end, (first, _) in zip(ends, spans, strict=False))
    assert ends[-1] <= begin * ALIGNMENT + count * set_bytes(sizes)


@given(st.integers(1, 10**9))
def test_sets_enough_are_asked_for_but_none_that_would_never_be_run(nbytes: int) -> None:
    sets = sets_needed(nbytes, 180_000_000, copies=20, replays=200)
    assert sets >= 2
    never_twice = sets == 20 * 201
    assert never_twice or (sets - 1) * nbytes > 180_000_000 >= (sets - 2) * nbytes


def test_percentiles_are_of_the_samples() -> None:
    assert Timing.of([float(each) for each in range(101)]) == Timing(20, 50, 80)

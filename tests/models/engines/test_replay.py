"""One replay: images in, results out, and the two ways to wait for its end."""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from kernels.device.device import DeviceError, Event, Stream
from models.engines import replay
from models.engines.replay import SPIN_S, Replay, kernel_reads_host

CLASSES = 3


@dataclass
class ScriptedStream:
    """A stream whose wait runs the test's function; it counts the waits."""

    end: Callable[[], None]
    waits: int = 0

    def synchronize(self) -> None:
        """See Stream."""
        self.waits += 1
        self.end()

    def wait(self, event: Event) -> None:
        """See Stream; tests do not use it."""
        raise NotImplementedError


@dataclass
class ScriptedGraph:
    """A graph whose replay runs the test's function."""

    begin: Callable[[], None]

    def replay(self, stream: Stream) -> None:
        """See Graph."""
        self.begin()


def nothing() -> None:
    """Return a time of 0."""


class Rig:
    """A replay of two images with made-up results."""

    def __init__(self) -> None:
        self.images = np.zeros((2, 4, 4, 3), np.uint8)
        self.results = np.full((2, CLASSES + 2 * CLASSES + 1), np.nan, np.float32)
        self.stream, self.graph = ScriptedStream(nothing), ScriptedGraph(nothing)
        self.replay = Replay(self.graph, self.stream, self.images, self.results)

    def compute(self) -> None:
        """Write results first and then the flags, as the kernels do."""
        self.results[:, :CLASSES] = self.images.reshape(2, -1)[:, :CLASSES]
        self.results[:, -1] = 1

    def run(self) -> np.ndarray:
        """Run on two images, of ones and of twos."""
        return self.replay.run([np.full((4, 4, 3), value, np.uint8) for value in (1, 2)])


def test_images_go_in_and_results_come_out_which_the_next_run_does_not_change() -> None:
    rig = Rig()
    rig.graph.begin = rig.compute
    first = rig.run()
    rig.results[...] = 0
    assert first[:, 0].tolist() == [1, 2]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Let each look at the clock take a tenth of the bound. Return the number of the next look."""
    counted = itertools.count()
    monkeypatch.setattr(replay, "perf_counter", lambda: next(counted) * SPIN_S / 10)
    return counted


@pytest.mark.usefixtures("looks")
def test_a_batch_after_a_short_one_is_waited_for_without_the_driver() -> None:
    rig = Rig()
    rig.graph.begin = rig.compute
    rig.run()
    assert rig.stream.waits == 1, "what takes how long is not known yet"
    for _ in range(50):
        rig.run()
    assert rig.stream.waits == 1


def test_a_batch_after_a_long_one_is_waited_for_by_the_driver_at_once() -> None:
    rig = Rig()

    def begin() -> None:
        time.sleep(5 * SPIN_S)
        rig.compute()

    rig.graph.begin = begin
    for runs in range(1, 4):
        rig.run()
        assert rig.stream.waits == runs


def test_a_spin_gives_up_the_core_after_its_bound(looks: Iterator[int]) -> None:
    rig = Rig()
    rig.graph.begin = rig.compute
    rig.run()
    assert rig.stream.waits == 1
    rig.graph.begin = nothing
    before, after = next(looks), list[int]()

    def end() -> None:
        after.append(next(looks))
        rig.compute()

    rig.stream.end = end
    rig.run()
    assert rig.stream.waits == 2
    assert 10 <= after[0] - before <= 13


def test_a_replay_that_ends_without_its_results_is_an_error() -> None:
    rig = Rig()
    with pytest.raises(DeviceError, match="results are missing"):
        rig.run()
    rig.graph.begin = lambda: rig.results[:1].fill(1)  # one image of two
    with pytest.raises(DeviceError, match="results are missing"):
        rig.run()


def test_small_images_are_read_by_the_kernel_and_large_ones_copied() -> None:
    assert kernel_reads_host(8 * 32 * 32)
    assert not kernel_reads_host(224 * 224 * 3)
    assert sorted(map(kernel_reads_host, range(0, 200_000, 1000))) == [
        kernel_reads_host(nbytes) for nbytes in range(199_000, -1, -1000)
    ]

"""Overlapping launches: the operations that are allowed early, and the faults that are found."""

from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import pytest

from cusim.build import BUILDS, ORDERED, PLAIN, Build
from cusim.device import CusimDevice, Order
from kernels.device.device import Argument, FaultError
from tests.cusim.selftest.defects import enumerator
from tests.cusim.selftest.launching import instantiation, opened

THREADS, BLOCKS, LAUNCHES = 64, 6, 5
KERNEL = instantiation("dependent.cu", "add_weight", threads=THREADS)
SIZE = THREADS * BLOCKS


def chain(device: CusimDevice, defect: str, *, graph: bool = False) -> np.ndarray:
    """Return a launch, and several more that each add the weights to the result of the launch
    before."""
    rng = np.random.default_rng(0)
    x, weight = rng.integers(0, 100, (2, SIZE)).astype(np.float32)
    stream, kernel = device.stream(), device.load(KERNEL)
    values = [device.allocate(x.nbytes) for _ in range(LAUNCHES + 1)]
    weights = device.allocate(weight.nbytes, constant=True)
    device.upload(values[0].address, x, stream)
    device.upload(weights.address, weight, stream)
    with device.capture(stream) if graph else nullcontext() as captured:
        for index in range(LAUNCHES):
            planted = enumerator(KERNEL, defect if index == 2 else "NONE")
            arguments: list[Argument] = [
                values[index].address,
                weights.address,
                values[index + 1].address,
                planted,
            ]
            grid, block = (BLOCKS, 1, 1), (THREADS, 1, 1)
            device.launch(kernel, grid, block, 0, arguments, stream, dependent=index > 0)
    if captured is not None:
        for _ in range(2):
            captured.replay(stream)
    result = np.empty_like(x)
    device.download(result, values[-1].address, stream)
    stream.synchronize()
    turned = weight.reshape(BLOCKS, THREADS)[:, ::-1].reshape(-1)
    return np.asarray(result - (x + LAUNCHES * turned))


@pytest.mark.parametrize("graph", [False, True], ids=["one by one", "graph"])
@pytest.mark.parametrize("order", Order, ids=lambda order: order.name.lower())
@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.name)
def test_launches_that_keep_the_rule_give_the_same_though_they_overlap(
    build: Build, order: Order, graph: bool
) -> None:
    device = opened(build, order)
    assert not chain(device, "NONE", graph=graph).any()
    device.close()


@pytest.mark.parametrize(
    ("defect", "build", "said"),
    [
        ("READS_EARLY", ORDERED, "read before it waited"),
        ("WRITES_EARLY", ORDERED, "wrote before it waited"),
        ("ADDS_EARLY", PLAIN, "wrote before it waited"),
        ("COPIES_EARLY", PLAIN, "read before it waited"),
        ("NEVER_WAITS", PLAIN, "no thread waited"),
    ],
)
def test_a_launch_that_breaks_the_rule_is_a_fault(defect: str, build: Build, said: str) -> None:
    for order in Order:
        with pytest.raises(FaultError, match=f"{said} for the preceding launch.*in add_weight"):
            chain(opened(build, order), defect)


Launched = tuple[str, Sequence[str | np.int32]]
"""A kernel of dependent.cu and its arguments, which name buffers."""


def run_chain(device: CusimDevice, *launches: Launched) -> np.ndarray:
    """Run launches, each dependent on the one before, and return the content of buffer "y"."""
    stream, buffers = device.stream(), {}
    for kernel, names in launches:
        for name in names:
            if isinstance(name, str) and name not in buffers:
                buffers[name] = device.allocate(SIZE * 4).address
        arguments = [buffers[name] if isinstance(name, str) else name for name in names]
        loaded = device.load(instantiation("dependent.cu", kernel))
        grid, block = (BLOCKS, 1, 1), (THREADS, 1, 1)
        device.launch(loaded, grid, block, 0, arguments, stream, dependent=True)
    result = np.empty(SIZE, np.float32)
    device.download(result, buffers["y"], stream)
    stream.synchronize()
    device.close()
    return result


FIRST, BEFORE_STORE, NEVER = map(np.int32, range(3))
OTHER: Launched = ("count", ["other", FIRST])
COUNTED = np.arange(SIZE, dtype=np.float32)


@pytest.mark.parametrize(
    ("build", "order"), [*((PLAIN, order) for order in Order), (ORDERED, Order.RANDOM)]
)
@pytest.mark.parametrize("between", range(4))
def test_what_no_wait_orders_is_read_as_it_was_while_two_launches_before_have_not_ended(
    build: Build, order: Order, between: int
) -> None:
    others = [OTHER] * between
    found = run_chain(
        opened(build, order), ("count", ["x", FIRST]), *others, ("add_one", ["x", "y"])
    )
    if between < 2:
        assert np.isnan(found).all()
    else:
        assert np.array_equal(found, COUNTED + 1)


@pytest.mark.parametrize("order", Order, ids=lambda order: order.name.lower())
@pytest.mark.parametrize("between", range(3))
def test_two_launches_begin_before_the_one_ahead_of_them_has_stored(
    order: Order, between: int
) -> None:
    others = [OTHER] * between
    found = run_chain(opened(PLAIN, order), ("count", ["x", FIRST]), *others, ("peek", ["x", "y"]))
    early = 4 * THREADS if between < 2 else 0  # of the blocks, those that begin at once
    assert np.isnan(found).sum() == early
    assert np.isin(found[~np.isnan(found)], COUNTED).all()


@pytest.mark.parametrize("order", Order, ids=lambda order: order.name.lower())
@pytest.mark.parametrize(("trigger", "early"), [(BEFORE_STORE, True), (NEVER, False)])
def test_a_launch_begins_when_the_one_before_lets_it_and_before_that_one_goes_on(
    order: Order, trigger: np.int32, early: bool
) -> None:
    for before in ([], [OTHER]):
        found = run_chain(
            opened(PLAIN, order), *before, ("count", ["x", trigger]), ("peek", ["x", "y"])
        )
        assert np.isnan(found).any() == early


def test_what_is_read_early_is_what_the_launch_before_has_not_written_yet() -> None:
    device = opened(PLAIN)
    assert np.isnan(chain(device, "READS_EARLY")).any()
    device.close()

"""Correct kernels, copies of them with one planted defect each, and the outcome in each build."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cusim.device import CusimDevice
from kernels.device.device import Instantiation
from tests.cusim.selftest.launching import KERNELS, Passed, instantiation, launch, unwritten

WRONG = "wrong"
"""The outcome of a wrong result; every other outcome is a pattern of a fault's message."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A kernel that may contain a planted defect; `run` returns whether its result was right."""

    name: str
    run: Callable[[CusimDevice, str], bool]
    clusters: bool = False  # which ThreadSanitizer's build refuses

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Planted:
    """One defect, and the way in which each build finds it; None for a build that cannot find
    it."""

    subject: Subject
    defect: str
    plain: str | None
    asan: str | None
    tsan: str | None = None

    def __str__(self) -> str:
        return f"{self.subject}-{self.defect}"


def enumerator(kernel: Instantiation, defect: str) -> np.int32:
    """Return the value of `defect` among the enumerators of Defect in the kernel's source."""
    source = (KERNELS / kernel.source).read_text(encoding="utf-8")
    found = re.search(r"enum class Defect \{([^}]*)\}", source)
    assert found is not None
    return np.int32(re.findall(r"\w+", found[1]).index(defect))


def _rotate(device: CusimDevice, defect: str) -> bool:
    threads, rounds = 64, 3
    x = np.arange(2 * threads, dtype=np.float32)
    kernel = instantiation("barriers.cu", "rotate", threads=threads, rounds=rounds)
    arguments: list[Passed] = [x, unwritten(x.shape), enumerator(kernel, defect)]
    _, y = launch(device, kernel, (2, 1, 1), (threads, 1, 1), arguments)
    return np.array_equal(y, np.roll(x.reshape(2, threads), -rounds, axis=1).reshape(-1))


def _twice(device: CusimDevice, defect: str) -> bool:
    n = 32
    x = np.arange(n, dtype=np.float32)
    kernel = instantiation("bounds.cu", "twice")
    arguments: list[Passed] = [x, unwritten(n), np.int32(n), enumerator(kernel, defect)]
    _, y = launch(device, kernel, (1, 1, 1), (n, 1, 1), arguments, shared_bytes=4 * n)
    return np.array_equal(y, 2 * x)


def _sum_rows(device: CusimDevice, defect: str) -> bool:
    threads, rows = 64, 5
    x = np.arange(rows * 4 * threads, dtype=np.float32).reshape(rows, -1)
    kernel = instantiation("copies.cu", "sum_rows", threads=threads)
    arguments: list[Passed] = [
        x,
        unwritten(4 * threads),
        np.int32(rows),
        enumerator(kernel, defect),
    ]
    shared = 2 * 16 * threads
    _, y = launch(device, kernel, (1, 1, 1), (threads, 1, 1), arguments, shared)
    return np.array_equal(y, x.sum(axis=0))


def _warp_sum(device: CusimDevice, defect: str) -> bool:
    threads = 64
    x = np.arange(threads, dtype=np.float32)
    kernel = instantiation("warps.cu", "sum", threads=threads)
    arguments: list[Passed] = [x, unwritten(threads), enumerator(kernel, defect)]
    _, y = launch(device, kernel, (1, 1, 1), (threads, 1, 1), arguments)
    return np.array_equal(y, np.repeat(x.reshape(-1, 32).sum(axis=1), 32))


def _load_matrix(device: CusimDevice, defect: str) -> bool:
    x = np.arange(32 * 8, dtype=np.uint16)
    rows = np.arange(32, dtype=np.int32)
    kernel = instantiation("matrices.cu", "load", count=4, trans=False)
    arguments: list[Passed] = [x, rows, unwritten((32, 4), np.uint32), enumerator(kernel, defect)]
    y = launch(device, kernel, (1, 1, 1), (32, 1, 1), arguments)[2]
    return np.array_equal(y.T.reshape(-1), x.view(np.uint32))


def multiplies_by_warpgroups(
    device: CusimDevice,
    defect: str,
    kind: str = "F16",
    columns: int = 32,
    *,
    registers: bool = False,
) -> bool:
    """Return whether two warpgroups compute the right product, with A in registers or shared
    memory."""
    threads, chunks, rows = 256, 3, 128
    random = np.random.default_rng(columns)
    kernel = instantiation(
        "wgmma.cu", "multiply", kind=f"Kind::{kind}", n=columns, registers=registers
    )
    left, right, sums = {
        "F16": (np.float16, np.float16, np.float32),
        "TF32": (np.float32, np.float32, np.float32),
        "U8S8": (np.uint8, np.int8, np.int32),
    }[kind]
    inner = chunks * 128 // np.dtype(left).itemsize
    low = 0 if kind == "U8S8" else -9
    a = random.integers(low, 10, (rows, inner)).astype(left)
    b = random.integers(-9, 10, (columns, inner)).astype(right)
    if kind == "U8S8":
        a[0], b[0] = 255, -128
    expected = a.astype(sums) @ b.astype(sums).T
    y = unwritten(expected.shape, sums)
    arguments: list[Passed] = [a, b, y, np.int32(chunks), enumerator(kernel, defect)]
    block = (threads - 64 if defect == "WARPGROUP_CUT" else threads, 1, 1)
    shared = 2 * 128 * (rows + columns)
    return np.array_equal(launch(device, kernel, (1, 1, 1), block, arguments, shared)[2], expected)


def _wgmma(device: CusimDevice, defect: str) -> bool:
    return multiplies_by_warpgroups(device, defect)


def _wgmma_registers(device: CusimDevice, defect: str) -> bool:
    return multiplies_by_warpgroups(device, defect, "TF32", registers=True)


def _sum_chunks(device: CusimDevice, defect: str) -> bool:
    chunks, adding, stages = 6, 128, 2
    x = np.random.default_rng(0).integers(-9, 10, (chunks, 4 * adding)).astype(np.float32)
    kernel = instantiation("bulk.cu", "sum_chunks")
    arguments: list[Passed] = [
        x,
        unwritten(4 * adding),
        np.int32(chunks),
        enumerator(kernel, defect),
    ]
    shared = stages * 16 * adding
    _, y = launch(device, kernel, (1, 1, 1), (adding + 32, 1, 1), arguments, shared)
    return np.array_equal(y, x.sum(axis=0))


def _add_up(device: CusimDevice, defect: str) -> bool:
    blocks, threads = 4, 64
    x = np.arange(2 * blocks * threads, dtype=np.float32)
    kernel = instantiation("cluster.cu", "add_up")
    arguments: list[Passed] = [
        x,
        unwritten(2 * threads),
        np.int32(blocks),
        enumerator(kernel, defect),
    ]
    grid, cluster = (2 * blocks, 1, 1), (blocks, 1, 1)
    _, y = launch(device, kernel, grid, (threads, 1, 1), arguments, 8 * threads, cluster)
    return np.array_equal(y, x.reshape(2, blocks, threads).sum(axis=1).reshape(-1))


def _share_chunks(device: CusimDevice, defect: str) -> bool:
    adding, chunks, stages, blocks = 128, 6, 2, 4
    x = np.arange(chunks * 4 * adding, dtype=np.float32).reshape(chunks, -1)
    kernel = instantiation("cluster.cu", "share_chunks")
    arguments: list[Passed] = [
        x,
        unwritten((blocks, 4 * adding)),
        np.int32(chunks),
        enumerator(kernel, defect),
    ]
    shared, threads = stages * 16 * adding, adding + 32
    _, y = launch(device, kernel, (blocks, 1, 1), (threads, 1, 1), arguments, shared, (2, 1, 1))
    return bool((y == x.sum(axis=0)).all())


ROTATE = Subject("barrier", _rotate)
TWICE = Subject("bounds", _twice)
SUM_ROWS = Subject("cp.async", _sum_rows)
WARP_SUM = Subject("warp", _warp_sum)
LOAD_MATRIX = Subject("ldmatrix", _load_matrix)
WGMMA = Subject("wgmma", _wgmma)
WGMMA_REGISTERS = Subject("wgmma-registers", _wgmma_registers)
BULK = Subject("bulk", _sum_chunks)
CLUSTER = Subject("cluster", _add_up, clusters=True)
MULTICAST = Subject("multicast", _share_chunks, clusters=True)
SUBJECTS = (
    *(ROTATE, TWICE, SUM_ROWS, WARP_SUM, LOAD_MATRIX),
    *(WGMMA, WGMMA_REGISTERS, BULK, CLUSTER, MULTICAST),
)


def _everywhere(subject: Subject, defect: str, caught: str) -> Planted:
    return Planted(subject, defect, caught, caught, caught)


_RACE = "data race"
_MET = "its threads have not met yet"
_ENDED = "of the cluster has ended"
_OWED = r"block ended (with \d bulk copies under way|while arrivals)"
_TOUCHED = r"use-after-poison.*wgmma\.cu:\d+"
_INDEX = r"index 36 out of bounds of 'float \[36\]'.*bounds\.cu:\d+"
_STACK = "stack-overflow|SEGV"
_PLACE = r".*block \(0, 0, 0\), thread \({}, 0, 0\)"

PLANTED = (
    # A barrier left out: results differ, whatever the order; ThreadSanitizer says where.
    Planted(ROTATE, "NO_BARRIER_AFTER_WRITE", WRONG, WRONG, _RACE),
    Planted(ROTATE, "NO_BARRIER_AFTER_READ", WRONG, WRONG, _RACE),
    Planted(WARP_SUM, "NO_SYNCWARP", WRONG, WRONG, _RACE),
    Planted(SUM_ROWS, "NO_BARRIER_AFTER_WAIT", WRONG, WRONG, _RACE),
    Planted(SUM_ROWS, "NO_BARRIER_BEFORE_COPY", WRONG, WRONG, _RACE),
    # A barrier, or an operation of a warp, that not all reach.
    _everywhere(ROTATE, "BARRIER_IN_ONE_BRANCH", r"are missing: thread.*barriers\.cu:\d+"),
    _everywhere(ROTATE, "BARRIER_IN_EACH_BRANCH", r"divergent __syncthreads.*barriers\.cu:\d+"),
    _everywhere(
        WARP_SUM, "LANE_MISSING", r"lanes 0x20 of warp 0 are missing: thread \(5, 0, 0\) waits in"
    ),
    _everywhere(
        WARP_SUM, "LANE_NOT_IN_MASK", "lane 5 names mask 0xffffffdf, which lacks the lane itself"
    ),
    _everywhere(WARP_SUM, "MASKS_DIFFER", r"of warp 0 are missing: thread .*warps\.cu:\d+"),
    _everywhere(WARP_SUM, "OTHER_LINE", r"meets lanes .* from warps\.cu:\d+.*at warps\.cu:\d+"),
    _everywhere(WARP_SUM, "OTHER_OPERATION", r"meets lanes .* from warps\.cu:\d+"),
    _everywhere(LOAD_MATRIX, "LANE_MISSING", "lanes 0x8 of warp 0 are missing"),
    _everywhere(LOAD_MATRIX, "LANE_RETURNED", "returned while|without all 32 lanes"),
    # Copies.
    _everywhere(SUM_ROWS, "NO_WAIT", WRONG),
    _everywhere(SUM_ROWS, "WAITS_FOR_TOO_FEW", WRONG),
    _everywhere(SUM_ROWS, "RETURNS_WITH_COPIES", r"returned with \d cp\.async .*copies\.cu:\d+"),
    _everywhere(SUM_ROWS, "MISALIGNED", r"misaligned cp\.async of 16 bytes.*copies\.cu:\d+"),
    _everywhere(SUM_ROWS, "SOURCE_PAST_END", r"cp\.async out of bounds.*copies\.cu:\d+"),
    _everywhere(SUM_ROWS, "TARGET_PAST_END", "outside the block's shared memory"),
    _everywhere(LOAD_MATRIX, "MISALIGNED", r"misaligned ldmatrix.*matrices\.cu:\d+"),
    _everywhere(LOAD_MATRIX, "OUTSIDE", "ldmatrix from .* outside the block's shared memory"),
    # wgmma: what orders it, and what it is given.
    *(
        Planted(WGMMA, defect, r"wgmma reads what thread \d+ stored .* fence\.proxy\.async", None)
        for defect in ("NO_PROXY_FENCE", "PROXY_FENCE_BEFORE_COPIES_END")
    ),
    Planted(WGMMA, "NO_FENCE", r"before any wgmma\.fence of its warp.*wgmma\.cu:\d+", None),
    Planted(WGMMA, "SUMS_WRITTEN_BEHIND_FENCE", r"sums .* after the last wgmma\.fence", None),
    Planted(WGMMA_REGISTERS, "A_WRITTEN_BEHIND_FENCE", r"registers of A were written after", None),
    Planted(
        WGMMA_REGISTERS,
        "A_WRITTEN_UNDER_WAY",
        r"registers of A were written before a wait for the wgmma .*wgmma\.cu:\d+",
        "registers of A were written before",
    ),
    Planted(WGMMA, "SUMS_WRITTEN_UNDER_WAY", "written before a wait for this wgmma", _TOUCHED),
    Planted(WGMMA, "SUMS_READ_UNDER_WAY", WRONG, _TOUCHED),
    Planted(WGMMA, "NO_COMMIT", "returned with 12 wgmma under way", _TOUCHED),
    Planted(WGMMA, "NO_WAIT", "returned with 12 wgmma under way", _TOUCHED),
    Planted(WGMMA, "WAITS_FOR_TOO_FEW", WRONG, WRONG, _RACE),
    Planted(WGMMA, "REFILLED_UNDER_WAY", WRONG, WRONG, _RACE),
    Planted(WGMMA, "NOT_SWIZZLED", WRONG, None),
    Planted(WGMMA, "ALIGNED_TO_128", "tile of A begins at .* multiple of 1024", None),
    Planted(WGMMA, "SECOND_ROW", "tile of B begins at .* multiple of 1024", None),
    Planted(WGMMA, "PAST_THE_ROW", "exceeds the 128 bytes of a swizzled row", None),
    Planted(WGMMA, "BASE_OFFSET", "has base offset 1: begin tiles at multiples of 1024", None),
    Planted(WGMMA, "WRONG_STRIDE", "stride of 1152 bytes .* is no multiple of 1024", None),
    Planted(WGMMA, "UNKNOWN_BITS", "undefined bits", None),
    Planted(WGMMA, "OUTSIDE", "wgmma reads row 0 of B at .* outside the block's shared", None),
    Planted(WGMMA, "LANES_DIFFER", "lanes 0 and 5 give wgmma different descriptors", None),
    Planted(WGMMA, "WARPS_DIFFER", "warps of a warpgroup issue different wgmma", None),
    Planted(WGMMA, "WARP_MISSING", "3 warps of a warpgroup, not 4, issued the wgmma", None),
    Planted(WGMMA, "WARPGROUP_CUT", "whose warpgroup has fewer than 4 warps", None),
    # Bulk copies, and the barriers that count them.
    Planted(BULK, "NO_INIT_FENCE", r"a bulk copy reads what thread 0 .* fence\.proxy\.async", None),
    Planted(BULK, "NO_BARRIER_AFTER_INIT", None, None, _RACE),
    Planted(BULK, "NOT_INITIALISED", r"there is no mbarrier at .*bulk\.cu:\d+", None),
    Planted(BULK, "INITIALISED_TWICE", "is initialised again", None),
    Planted(BULK, "NO_ARRIVALS", "an mbarrier of 0 arrivals", None),
    Planted(BULK, "OVERWRITTEN", "the mbarrier at .* was overwritten", None),
    Planted(BULK, "EXPECTS_NOTHING", "ended with 6 bulk copies under way", None),
    Planted(BULK, "EXPECTS_TOO_FEW", "16 bytes more than a phase of the mbarrier", None),
    Planted(BULK, "EXPECTS_TOO_MANY", "never ends, 0 arrivals and 16 bytes are missing", None),
    Planted(BULK, "EXPECTS_BEYOND_COUNTER", "expects 1048576 bytes, not 0 to 1048575", None),
    Planted(BULK, "NO_WAIT", "one arrival more than the 1 of a phase", None, _RACE),
    Planted(BULK, "WRONG_PARITY", "one arrival more than the 1 of a phase", None),
    Planted(BULK, "NO_PARITY", "an mbarrier's parity of 2, not 0 or 1", None),
    Planted(BULK, "REFILLED_TOO_SOON", "one arrival more than the 1 of a phase", None),
    Planted(BULK, "ARRIVES_TWICE", "one arrival more than the 1 of a phase", None),
    Planted(BULK, "ARRIVES_NEVER", "parity 1 .* never ends, 1 arrivals and 0 bytes", None),
    Planted(BULK, "MISALIGNED", "misaligned bulk copy of 2044 bytes", None),
    Planted(BULK, "SOURCE_PAST_END", "bulk copy out of bounds: .* past the end of a buffer", None),
    Planted(BULK, "TARGET_PAST_END", "outside the block's shared memory", None),
    Planted(BULK, "RETURNS_WITH_COPIES", "ended with 1 bulk copies under way", None),
    # Clusters.
    Planted(CLUSTER, "NO_FIRST_BARRIER", "may not have begun: its threads .*cluster", _MET),
    Planted(CLUSTER, "NO_BARRIER_BETWEEN", "block . of the cluster has ended", _ENDED),
    Planted(CLUSTER, "NO_LAST_BARRIER", "block . of the cluster has ended", _ENDED),
    Planted(CLUSTER, "RELAXED", WRONG, WRONG),
    Planted(CLUSTER, "ONE_RELAXED", WRONG, WRONG),
    Planted(CLUSTER, "ONE_WAITS_ELSEWHERE", "the cluster's barrier never ends", "never ends"),
    Planted(CLUSTER, "ARRIVES_TWICE", "arrives again at the cluster's barrier", "arrives again"),
    Planted(CLUSTER, "WAITS_WITHOUT_ARRIVAL", "before it has arrived there", "has arrived there"),
    Planted(CLUSTER, "NO_SUCH_BLOCK", "block 4 of a cluster of 4", "block 4 of a cluster of 4"),
    Planted(CLUSTER, "NOT_SHARED", "is not in shared memory", "is not in shared memory"),
    Planted(CLUSTER, "READS_WHERE_ONE_ENDED", WRONG, WRONG),
    Planted(CLUSTER, "WRITES_WHERE_ONE_ENDED", "wrote to .* of block 3 .*had ended", "had ended"),
    Planted(MULTICAST, "NO_FIRST_BARRIER", "may not have begun: its threads .*cluster", _MET),
    Planted(MULTICAST, "NO_INIT_FENCE", "of block .: no fence follows its initialisation", None),
    Planted(MULTICAST, "NO_PROXY_FENCE", r"what thread 0 .* fence\.proxy\.async", None),
    Planted(MULTICAST, "TO_NO_BLOCK", "a bulk copy to blocks 0 of a cluster of 2", None),
    Planted(MULTICAST, "TO_BLOCKS_OUTSIDE", "a bulk copy to blocks 0x7 of a cluster of 2", None),
    Planted(MULTICAST, "TO_ONE_ONLY", "never ends, 1 arrivals and 0 bytes are missing", None),
    Planted(MULTICAST, "OTHER_PLACE", WRONG, WRONG),
    Planted(MULTICAST, "EXPECTS_ITS_OWN_HALF", "bytes more than a phase|copies under way", None),
    Planted(MULTICAST, "REFILLED_TOO_SOON", "one arrival more than the 1 of a phase", None),
    Planted(MULTICAST, "ARRIVES_AT_ITS_OWN", "never ends, 1 arrivals and 0 bytes", None),
    *(
        Planted(MULTICAST, defect, r"block ended with \d bulk copies under way, .*:\d+", _OWED)
        for defect in ("ENDS_EARLY", "DOES_NOT_WAIT")
    ),
    Planted(MULTICAST, "RELAXED_AT_THE_END", "arrivals of blocks .* may be on their way", _OWED),
    # Memory.
    Planted(TWICE, "READ_PAST_END", WRONG, r"use-after-poison.*bounds\.cu:\d+", WRONG),
    Planted(TWICE, "READ_BEFORE_START", WRONG, r"use-after-poison.*bounds\.cu:\d+", WRONG),
    Planted(
        TWICE,
        "WRITE_PAST_END",
        "wrote out of bounds: .* 0 bytes past the end of a buffer of 128 bytes",
        r"use-after-poison.*bounds\.cu:\d+",
        "wrote out of bounds",
    ),
    Planted(
        TWICE,
        "WRITE_BEFORE_START",
        "wrote out of bounds: .* 4 bytes before a buffer of 128 bytes",
        r"use-after-poison.*bounds\.cu:\d+",
        "wrote out of bounds",
    ),
    Planted(
        TWICE,
        "WILD_READ",
        r"illegal address: .* past the end of a buffer.*" + _PLACE.format(31) + r".*bounds\.cu:\d+",
        r"SEGV.*bounds\.cu:\d+",
        r"SEGV.*bounds\.cu:\d+",
    ),
    Planted(TWICE, "SHARED_READ_PAST_END", _INDEX, "index 36 out of bounds", _INDEX),
    Planted(TWICE, "SHARED_WRITE_PAST_END", _INDEX, "index 36 out of bounds", _INDEX),
    Planted(TWICE, "DYNAMIC_READ_PAST_END", r"illegal address.*bounds\.cu:\d+", "SEGV", "SEGV"),
    Planted(TWICE, "DYNAMIC_WRITE_PAST_END", r"illegal address.*bounds\.cu:\d+", "SEGV", "SEGV"),
    Planted(
        TWICE,
        "MISALIGNED",
        r"misaligned address: .* no multiple of 16.*" + _PLACE.format(31) + r".*bounds\.cu:\d+",
        r"bounds\.cu:\d+:\d+: .*misaligned address",
        r"misaligned address",
    ),
    # The rest.
    Planted(TWICE, "DIVISION_BY_ZERO", r"division by zero.*bounds\.cu", "division by zero", "FPE"),
    Planted(TWICE, "SIGNED_OVERFLOW", WRONG, r"bounds\.cu:\d+:\d+: .*signed integer overflow"),
    Planted(
        TWICE, "STACK_OVERFLOW", "illegal address", "(stack-overflow|SEGV)", "(stack-overflow|SEGV)"
    ),
    _everywhere(TWICE, "TRAP", r"__trap\(\) in twice.*" + _PLACE.format(31) + r".*bounds\.cu:\d+"),
)

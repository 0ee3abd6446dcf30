"""Clusters: ranks, refusals, overlap with other launches, copies to several blocks, and NVRTC."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from cusim.build import PLAIN
from cusim.device import CusimDevice, Order
from kernels.device.compile import compile_kernel
from kernels.device.device import SOURCE_ROOT, Argument, Dim3, Instantiation, LaunchError
from kernels.device.machine_code import disassemble
from tests.cusim.selftest.defects import enumerator
from tests.cusim.selftest.launching import KERNELS, instantiation, launch, opened, unwritten
from tests.cusim.selftest.test_bulk import Map

RANKS = instantiation("cluster.cu", "rank_blocks")
ADD_UP = instantiation("cluster.cu", "add_up")


@pytest.mark.parametrize("cluster", [(1, 1, 1), (2, 1, 1), (2, 2, 1), (1, 2, 3), (4, 2, 1)])
def test_blocks_have_places_in_their_cluster(device: CusimDevice, cluster: Dim3) -> None:
    grid = (4, 4, 3)
    (y,) = launch(device, RANKS, grid, (32, 1, 1), [unwritten(48, np.uint32)], cluster=cluster)
    for z, row, x in np.ndindex(3, 4, 4):
        a, b, c = (at % size for at, size in zip((x, row, z), cluster, strict=True))
        assert y[(z * 4 + row) * 4 + x] == (c * cluster[1] + b) * cluster[0] + a


@pytest.mark.parametrize(
    ("cluster", "threads", "says"),
    [
        ((3, 1, 1), 32, "must be a multiple of the cluster"),
        ((4, 4, 1), 32, "at most 8 blocks, got"),
        ((4, 2, 1), 1024, "at most 4096 threads in the simulator, got 8192"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(
    device: CusimDevice, cluster: Dim3, threads: int, says: str
) -> None:
    with pytest.raises(LaunchError, match=says):
        launch(
            device, RANKS, (4, 4, 1), (threads, 1, 1), [unwritten(16, np.uint32)], cluster=cluster
        )


@pytest.mark.parametrize("order", list(Order), ids=lambda order: order.name.lower())
def test_launches_of_clusters_overlap(order: Order) -> None:
    """Each launch adds to the sum of the launch before it, which has not ended when it begins."""
    device, threads = opened(PLAIN, order), 32
    x = np.arange(64 * threads, dtype=np.float32)
    kernel, stream = device.load(ADD_UP), device.stream()
    buffers = [device.allocate(x.nbytes // size) for size in (1, 4, 16, 64)]
    device.upload(buffers[0].address, x, stream)
    with device.capture(stream) as graph:
        for number, (before, after) in enumerate(pairwise(buffers)):
            arguments: list[Argument] = [before.address, after.address, np.int32(4)]
            device.launch(
                kernel,
                (64 // 4**number, 1, 1),
                (threads, 1, 1),
                8 * threads,
                [*arguments, enumerator(ADD_UP, "NONE")],
                stream,
                dependent=number > 0,
                cluster=(4, 1, 1),
            )
    graph.replay(stream)
    y = np.empty(threads, np.float32)
    device.download(y, buffers[-1].address, stream)
    stream.synchronize()
    assert device.early_launches(graph) == 2
    assert (y == x.reshape(64, threads).sum(axis=0)).all()
    device.close()


@pytest.mark.parametrize("pixels", [False, True])
def test_a_tile_comes_to_several_blocks(device: CusimDevice, *, pixels: bool) -> None:
    x = np.random.default_rng(0).standard_normal((1, 8, 8, 32)).astype(np.float32)
    dims = (32, 8, 8, 1) if pixels else (32, 64)
    tensor = Map(dims=dims, box=(32, 16), swizzle=0, im2col=pixels)
    kernel, stream = device.load(_sharing(pixels)), device.stream()
    from_, to = device.allocate(x.nbytes), device.allocate(2 * 16 * 128)
    device.upload(from_.address, x, stream)
    arguments: list[Argument] = [tensor.at(from_.address), to.address, np.int32(128)]
    device.launch(kernel, (2, 1, 1), (64, 1, 1), 16 * 128, arguments, stream, cluster=(2, 1, 1))
    y = np.empty((2, 16, 32), np.float32)
    device.download(y, to.address, stream)
    stream.synchronize()
    assert (y == x.reshape(64, 32)[:16]).all()
    from_.free()
    to.free()


def _sharing(pixels: bool) -> Instantiation:
    return instantiation("cluster.cu", "share_tensor", pixels=pixels)


@pytest.mark.parametrize(
    ("kernel", "opcodes"),
    [
        (ADD_UP, ("UCGABAR_ARV", "UCGABAR_WAIT")),
        (
            instantiation("cluster.cu", "share_chunks"),
            ("UBLKCP.S.G.MULTICAST", "SYNCS.ARRIVE.TRANS64.RED"),
        ),
        (_sharing(pixels=False), ("UTMALDG.2D.MULTICAST",)),
        (_sharing(pixels=True), ("UTMALDG.4D.IM2COL.MULTICAST",)),
    ],
    ids=lambda given: getattr(given, "kernel", ""),
)
def test_a_compiler_takes_the_source(
    kernel: Instantiation, opcodes: tuple[str, ...], tmp_path: Path
) -> None:
    for path in (*SOURCE_ROOT.glob("*.cuh"), KERNELS / kernel.source):
        (tmp_path / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    code = disassemble(compile_kernel(kernel, "90a", tmp_path / "cache", tmp_path))
    for opcode in opcodes:
        assert any(each.opcode.startswith(opcode) for each in code), opcode

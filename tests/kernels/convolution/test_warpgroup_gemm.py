"""Convolution by wgmma: any layer by any tile, its defects, and its machine code."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cusim.build import ORDERED, PLAIN, Build
from cusim.device import CusimDevice, Order
from kernels.convolution.algorithms import ConvChoice
from kernels.convolution.split_sum import TileConfig
from kernels.convolution.warpgroup_gemm import WARPGROUP_TILES
from kernels.device import nvrtc
from kernels.device.compile import FLAGS, compile_all
from kernels.device.device import SOURCE_ROOT, FaultError, Instantiation
from kernels.device.machine_code import disassemble
from kernels.problems.precision import Precision
from tests.kernels.convolution.test_implicit_gemm import layers
from tests.kernels.convolution.test_tensor_gemm import projecting_layers
from tests.support.cases import INSTANTIATIONS
from tests.support.cases.conv import conv_case
from tests.support.cases.tensor_gemm import WARPGROUPS, at_precision
from tests.support.kernels.conv_layers import Layer, dense
from tests.support.kernels.kernel_case import run
from tests.support.kernels.mutations import replaced
from tests.support.kernels.resources import CACHE
from tests.support.kernels.windows import ON_A_DEVICE, conv_problem, window

OF_WARPGROUPS = [
    each
    for each in INSTANTIATIONS
    if each.source == "tensor_gemm.cu" and dict(each.arguments)["warpgroups"]
]


@pytest.fixture(scope="module")
def device() -> Iterator[CusimDevice]:
    device = CusimDevice(order=Order.RANDOM)
    yield device
    device.close()


@st.composite
def chosen(draw: st.DrawFn) -> tuple[Layer, ConvChoice]:
    """A layer of 1 to 8 images by any tile, split further than it would be."""
    layer = draw(layers() | projecting_layers())
    layer = replace(layer, problem=replace(layer.problem, n=draw(st.integers(1, 8))))
    layer = at_precision(layer, draw(st.sampled_from((Precision.TF32, Precision.FP16))))
    tile = draw(st.sampled_from(WARPGROUPS.blocks_of(layer.problem)))
    return layer, ConvChoice(WARPGROUPS, TileConfig(tile, draw(st.integers(1, 8))))


@settings(ON_A_DEVICE, max_examples=20)
@given(chosen())
def test_any_layer_is_its_reference_by_any_tile(
    device: CusimDevice, drawn: tuple[Layer, ConvChoice]
) -> None:
    run(conv_case(*drawn), device)


@pytest.mark.slow
@settings(ON_A_DEVICE, max_examples=2000)
@given(chosen())
def test_very_many_layers_are_their_reference(
    device: CusimDevice, drawn: tuple[Layer, ConvChoice]
) -> None:
    run(conv_case(*drawn), device)


_LOOP = """    if constexpr (WARPGROUPS) fence_proxy_async();
    __syncthreads();  // this chunk is there for all, and the one before it read by all
"""

DEFECTS = {
    "no proxy fence": ("if constexpr (WARPGROUPS) fence_proxy_async();", ";"),
    "the proxy fence before the copies end": (
        "cp_async_wait<STAGES - 2>();\n    if constexpr (WARPGROUPS) fence_proxy_async();",
        "if constexpr (WARPGROUPS) fence_proxy_async();\n    cp_async_wait<STAGES - 2>();",
    ),
    "no barrier of the loop": (_LOOP, "if constexpr (WARPGROUPS) fence_proxy_async();\n"),
    "copies waited for too late": ("cp_async_wait<STAGES - 2>()", "cp_async_wait<STAGES - 1>()"),
    "no wgmma.fence": ("wgmma_fence();", ";"),
    "no commit": ("wgmma_commit();", ";"),
    "no wait": ("wgmma_wait<0>();", ";"),
    "a wait for the chunk before": ("wgmma_wait<0>();", "wgmma_wait<1>();"),
    "the first product adds": ("adds = add || step > 0", "adds = true"),
    "every product of a chunk stores": ("adds = add || step > 0", "adds = add"),
    "a chunk stores instead of adding": ("chunk > first_chunk)", "false)"),
    "a stage refilled while it is read": ("writing = STAGES - 1;", "writing = 0;"),
    "pixels of the first warpgroup for all": ("warp / 4 * (64 * ROW)", "0 * warp"),
    "filters where pixels lie": ("wgmma_tile(begin + BM * ROW)", "wgmma_tile(begin)"),
    "tiles aligned to 128 bytes": ("SWIZZLED_SHARED", "DYNAMIC_SHARED"),
    "no zeros for a part without chunks": ("clear(sums);  // no product", ";  // no product"),
    "sums written before the last chunk is read": (
        "__syncthreads();  // all have read the last chunk",
        ";",
    ),
}


_IN_TF32 = {
    "pixels that are truncated": ("x[step][i] = to_tf32(__uint_as_float(x[step][i]))", ""),
    "pixels of the step before": ("(x_lane ^ step * 32));\n#", "(x_lane ^ step / 2 * 32));\n#"),
    **{name: DEFECTS[name] for name in ("no wgmma.fence", "no wait", "no barrier of the loop")},
}


@pytest.mark.parametrize(
    ("precision", "edit"),
    [
        pytest.param(precision, edit, id=f"{precision.value}: {name}")
        for precision, defects in ((Precision.FP16, DEFECTS), (Precision.TF32, _IN_TF32))
        for name, edit in defects.items()
    ],
)
def test_a_defect_is_noticed(precision: Precision, edit: tuple[str, str], tmp_path: Path) -> None:
    """In one of two builds, of which one sees plain stores."""
    root = replaced(tmp_path, "tensor_gemm.cu", *edit)
    seen, stored = window((9, 15), (3, 3), pads=(1, 1, 1, 1)), precision.stored

    def fails(build: Build, channels: int, split: int) -> bool:
        problem = replace(conv_problem(1, channels, 40, seen), precision=precision)
        x, y = (replace(dense(each), stored=stored) for each in (channels, 40))
        layer = Layer("of a defect", problem, x, y)
        device = CusimDevice(build, Order.RANDOM, source_root=root)
        try:
            run(
                conv_case(
                    layer,
                    ConvChoice(WARPGROUPS, TileConfig(WARPGROUPS.blocks_of(problem)[1], split)),
                ),
                device,
            )
        except (AssertionError, FaultError):
            return True
        finally:
            device.close()
        return False

    # Of 6 chunks, whose channels are copied one by one; and of fewer chunks than parts.
    assert any(
        fails(build, channels, split)
        for build in (PLAIN, ORDERED)
        for channels, split in ((35, 1), (12, 4))
    )


def test_every_tile_is_among_the_cases() -> None:
    tiles = {tuple(dict(each.arguments)[name] for name in ("bm", "bn")) for each in OF_WARPGROUPS}
    assert tiles == {(tile.bm, tile.bn) for tile in WARPGROUP_TILES}
    of = {
        tuple(dict(each.arguments)[name] for name in ("precision", "unit"))
        for each in OF_WARPGROUPS
    }
    assert of == {("Precision::FP16", 4), ("Precision::FP16", 8), ("Precision::TF32", 4)}


@pytest.mark.parametrize("kernel", OF_WARPGROUPS, ids=str)
def test_in_machine_code_products_of_a_chunk_are_one_group_that_nothing_waits_for(
    kernel: Instantiation,
) -> None:
    """Where ptxas waits for each product it says so: C7510 to C7515."""
    ((_, cubin),) = compile_all([kernel], ["90a"], CACHE).items()
    listed = disassemble(cubin)
    code = Counter(each.opcode for each in listed)
    waiting = ["gsb0" in each.operands for each in listed if each.base == "HGMMA"]
    assert waiting == [False, False, False, True]
    assert code["WARPGROUP.ARRIVE"] == code["WARPGROUP.DEPBAR.LE"] == 1
    loads = sum(count for opcode, count in code.items() if opcode.startswith("LDSM"))
    assert loads == (4 if "TF32" in kernel.expression else 0)  # pixels, to be rounded
    assert not any(opcode.startswith("HMMA") for opcode in code)
    assert cubin.resources.static_shared == WARPGROUPS.STATIC_BYTES
    assert cubin.resources.spill_stores == cubin.resources.spill_loads == 0
    headers = {path.name: path.read_text(encoding="utf-8") for path in SOURCE_ROOT.glob("*.cuh")}
    source = (SOURCE_ROOT / kernel.source).read_text(encoding="utf-8")
    options = ("--gpu-architecture=sm_90a", *FLAGS)
    log = nvrtc.compile_program(source, kernel.source, kernel.expression, headers, options).log
    assert "registers" in log
    assert "C75" not in log

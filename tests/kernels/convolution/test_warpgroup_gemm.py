"""Convolution with wgmma: any layer with any tile, its defects, and its machine code."""

from dataclasses import replace
from math import ceil
from pathlib import Path

import pytest
from hypothesis import strategies as st

from cusim.build import ORDERED, PLAIN
from cusim.device import CusimDevice
from kernels.convolution.algorithms import ConvChoice, choices
from kernels.convolution.implicit_gemm import inner_size
from kernels.convolution.split_sum import MAX_CLUSTER, MIN_CHUNKS, TileConfig
from kernels.convolution.tensor_gemm import ROW_BYTES, STEP_BYTES
from kernels.convolution.warpgroup_gemm import WARPGROUP_TILES
from kernels.device.device import Instantiation
from kernels.device.gpus import ARCHITECTURES
from kernels.layout.operands import ConvTensors
from kernels.problems.precision import Precision
from tests.kernels.convolution.test_implicit_gemm import layers
from tests.kernels.convolution.test_tensor_gemm import projecting_layers
from tests.support.cases import INSTANTIATIONS
from tests.support.cases.conv import conv_case
from tests.support.cases.tensor_gemm import PRECISIONS, TENSOR, WARPGROUPS, at_precision
from tests.support.kernels import wgmma
from tests.support.kernels.conv_layers import Layer, dense
from tests.support.kernels.kernel_case import run
from tests.support.kernels.mutations import replaced
from tests.support.kernels.rig import notices, of_drawn
from tests.support.kernels.windows import conv_problem, window

OF_WARPGROUPS = [
    each
    for each in INSTANTIATIONS
    if each.source == "tensor_gemm.cu" and dict(each.arguments)["warpgroups"]
]


@st.composite
def chosen(draw: st.DrawFn) -> tuple[Layer, ConvChoice]:
    """Draw a layer of 1 to 8 images with any tile, split into more parts than the planner would
    use."""
    layer = draw(layers() | projecting_layers())
    layer = replace(layer, problem=replace(layer.problem, n=draw(st.integers(1, 8))))
    layer = at_precision(layer, draw(st.sampled_from(PRECISIONS)))
    tile = draw(st.sampled_from(WARPGROUPS.blocks_of(layer.problem)))
    split = draw(st.integers(1, MAX_CLUSTER))
    config = TileConfig(tile, split, cluster=split > 1 and draw(st.booleans()))
    return layer, ConvChoice(WARPGROUPS, config)


test_any_layer_is_its_reference_by_any_tile, test_very_many_layers_are_their_reference = of_drawn(
    conv_case, chosen(), few=20, many=2000
)


_LOOP = """    if constexpr (WARPGROUPS) fence_proxy_async();
    __syncthreads();  // this chunk is there for all, and the one before it read by all
"""

# Of tensor_gemm.cuh; all others are of tensor_gemm.cu.
_OF_PRODUCTS = {
    "no wgmma.fence": ("wgmma_fence();", ";"),
    "no commit": ("wgmma_commit();", ";"),
    "the first product adds": ("adds = add || step > 0", "adds = true"),
    "every product of a chunk stores": ("adds = add || step > 0", "adds = add"),
    "filters where pixels lie": ("wgmma_tile(begin + weight)", "wgmma_tile(begin)"),
}

DEFECTS = {
    "no proxy fence": ("if constexpr (WARPGROUPS) fence_proxy_async();", ";"),
    "the proxy fence before the copies end": (
        "cp_async_wait<STAGES - 2>();\n    if constexpr (WARPGROUPS) fence_proxy_async();",
        "if constexpr (WARPGROUPS) fence_proxy_async();\n    cp_async_wait<STAGES - 2>();",
    ),
    "no barrier of the loop": (_LOOP, "if constexpr (WARPGROUPS) fence_proxy_async();\n"),
    "copies waited for too late": (
        "(!SPLITS) cp_async_wait<STAGES - 2>()",
        "(!SPLITS) cp_async_wait<STAGES - 1>()",
    ),
    "no wait": ("wgmma_wait<0>();", ";"),
    "a wait for the chunk before": ("wgmma_wait<0>();", "wgmma_wait<1>();"),
    "a chunk stores instead of adding": ("chunk > first_chunk)", "false)"),
    "a stage refilled while it is read": ("writing = STAGES - 1,", "writing = 0,"),
    **wgmma.OF_PRODUCTS,
    "sums written before the last chunk is read": (
        "__syncthreads();  // all have read the last chunk",
        ";",
    ),
}


_OF_PRODUCTS_IN_TF32 = {
    "pixels that are truncated": (
        "pixels[step][i] = to_tf32(__uint_as_float(pixels[step][i]))",
        "",
    ),
    "pixels of the step before": ("(lane ^ step * 32)", "(lane ^ step / 2 * 32)"),
    "no wgmma.fence": _OF_PRODUCTS["no wgmma.fence"],
}
_IN_TF32 = {
    **{name: DEFECTS[name] for name in ("no wait", "no barrier of the loop")},
    "factors overwritten under way": DEFECTS["a wait for the chunk before"],
}


_MEETING = "cluster_arrive();  // this block's part is there\n  cluster_wait();"

OF_CLUSTERS = {
    "parts read before they are there": ("cluster_sum.cuh", _MEETING, "__syncthreads();"),
    "parts that are not released": (
        "cluster_sum.cuh",
        _MEETING,
        _MEETING.replace("arrive", "arrive_relaxed"),
    ),
    "no arrival behind the sum": (
        "cluster_sum.cuh",
        "cluster_arrive_relaxed();  // this block reads",
        ";  // this block reads",
    ),
    "an arrival ahead of the sum": (
        "cluster_sum.cuh",
        _MEETING,
        _MEETING + "\n  cluster_arrive();",
    ),
    "its own part for all": (
        "cluster_sum.cuh",
        "of_block(at, begin + (first + each) * apart)",
        "at",
    ),
    "a part too few": ("cluster_sum.cuh", "first + each < blocks ?", "first + each + 1 < blocks ?"),
    "a part too many": ("cluster_sum.cuh", "first + each < blocks ?", "first + each <= blocks ?"),
    "four parts at most": (
        "cluster_sum.cuh",
        "first < blocks; first += 4",
        "first < 4; first += 4",
    ),
    "a block that ends while others read": (
        "tensor_gemm.cu",
        "if (in_cluster) cluster_wait();",
        "",
    ),
    **{name: ("tensor_gemm.cu", *edit) for name, edit in wgmma.OF_CLUSTERS.items()},
}


@pytest.mark.parametrize("edit", OF_CLUSTERS.values(), ids=OF_CLUSTERS)
def test_a_defect_of_clusters_is_noticed(edit: tuple[str, str, str], tmp_path: Path) -> None:
    layer = _layer(35, Precision.FP16)
    tile = WARPGROUPS.blocks_of(layer.problem)[1]
    configs = (TileConfig(tile, split, cluster=True) for split in (3, 5))
    cases = [conv_case(layer, ConvChoice(WARPGROUPS, config)) for config in configs]
    assert notices(replaced(tmp_path, *edit), cases)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("split", range(1, MAX_CLUSTER + 1))
def test_sums_are_those_of_mma_sync_to_the_bit_in_clusters_too(
    split: int, precision: Precision, device: CusimDevice
) -> None:
    """This holds in the simulator, whose tensor cores truncate the sums of both kinds of products
    equally."""
    layer = _layer(90, precision)
    of_warps = TileConfig(TENSOR.blocks_of(layer.problem)[-1], split)
    tile = WARPGROUPS.blocks_of(layer.problem)[split % len(WARPGROUP_TILES)]
    choices = [ConvChoice(TENSOR, of_warps), ConvChoice(WARPGROUPS, TileConfig(tile, split))]
    if split > 1:
        choices.append(ConvChoice(WARPGROUPS, TileConfig(tile, split, cluster=True)))
    sums = {run(conv_case(layer, choice), device).tobytes() for choice in choices}
    assert len(sums) == 1


def test_splits_of_2_to_8_may_be_clusters_without_workspace_and_counters() -> None:
    layer = _layer(200, Precision.FP16)
    problem = layer.problem
    chunks = ceil(inner_size(problem) / 64)
    configs = WARPGROUPS.configs(problem)
    clusters = [config for config in configs if config.cluster]
    assert {config.split for config in clusters} == set(range(2, MAX_CLUSTER + 1))
    assert {config.tile for config in clusters} == set(WARPGROUPS.blocks_of(problem))
    assert len(set(map(str, configs))) == len(configs)
    for config in clusters:
        assert replace(config, cluster=False) in configs
        assert chunks >= MIN_CHUNKS * config.split
        assert not WARPGROUPS.workspace(problem, config)
        assert WARPGROUPS.counter_bytes(problem, config) == 0
        (launch,) = WARPGROUPS.launches(problem, config, ConvTensors(layer.x, layer.y))
        assert launch.cluster == (1, config.split, 1)
        assert not {"workspace", "counters"} & set(launch.operands)


def test_only_hopper_is_offered_clusters() -> None:
    problem = _layer(200, Precision.FP16).problem
    clustered = {
        arch: sum(
            getattr(config, "cluster", False)
            for _, config, _ in choices(problem, architecture=arch)
        )
        for arch in ARCHITECTURES
    }
    assert {arch for arch, count in clustered.items() if count} == {"90a"}


def _layer(channels: int, precision: Precision) -> Layer:
    seen, stored = window((9, 15), (3, 3), pads=(1, 1, 1, 1)), precision.stored
    problem = replace(conv_problem(1, channels, 40, seen), precision=precision)
    x, y = (replace(dense(each), stored=stored) for each in (channels, 40))
    return Layer("of any channels", problem, x, y)


_OF_STEP = "wgmma_tf32(in_a_row(of_steps[step]), "

_IN_3XTF32 = {
    "pixels without what they lack": (_OF_STEP + "x_small[step]", _OF_STEP + "x[step]"),
    "weights without what they lack": ("x[step], b_small + at", "x[step], b + at"),
    "a product too few": (_OF_STEP + "x[step], b_small + at, true);", ";"),
    "a step adds to the one before": (
        "x_small[step], b + at, false",
        "x_small[step], b + at, true",
    ),
    "a step's last product stores": ("x[step], b + at, true", "x[step], b + at, false"),
    "a step of another chunk": ("unsigned(first + step) * 2", "unsigned(step) * 2 + 2"),
    "weights that are not split": (
        "if (first_chunk < last_chunk) split_weights(reading, small);",
        ";",
    ),
    "every other chunk's weights that are not split": (
        "if (chunk + 1 < last_chunk) split_weights",
        "if (small == 0) split_weights",
    ),
    "weights of another chunk": ("split_weights(next, small ^ 1)", "split_weights(next, small)"),
    "weights split before they are there": (
        "cp_async_wait<STAGES - 2>();\n      if (chunk + 1",
        "if (chunk + 1",
    ),
    "no wgmma.fence": ("wgmma_fence();", ";"),
    "no commit": ("wgmma_commit();", ";"),
    "no wait": ("wgmma_wait<0>();", ";"),
    "pixels split while they are multiplied": (
        "wgmma_commit();\n    }\n  };\n  const auto add_steps",
        "wgmma_commit();\n      split_tf32<false>(x[0], x_small[0]);\n    }\n  };\n"
        "  const auto add_steps",
    ),
    "no proxy fence": DEFECTS["no proxy fence"],
    "no barrier of the loop": DEFECTS["no barrier of the loop"],
}


@pytest.mark.parametrize(
    ("precision", "edit"),
    [
        pytest.param(precision, (file, *edit), id=f"{precision.value}: {name}")
        for precision, file, defects in (
            (Precision.FP16, "tensor_gemm.cu", DEFECTS),
            (Precision.FP16, "tensor_gemm.cuh", _OF_PRODUCTS),
            (Precision.TF32, "tensor_gemm.cu", _IN_TF32),
            (Precision.TF32, "tensor_gemm.cuh", _OF_PRODUCTS_IN_TF32),
            (Precision.TF32X3, "tensor_gemm.cu", _IN_3XTF32),
        )
        for name, edit in defects.items()
    ],
)
def test_a_defect_is_noticed(
    precision: Precision, edit: tuple[str, str, str], tmp_path: Path
) -> None:
    """One of two builds must notice the defect; one of them shows plain stores."""
    cases = []
    # Of 6 chunks, whose channels are copied one by one; and of fewer chunks than parts.
    for channels, split in ((35, 1), (12, 4)):
        layer = _layer(channels, precision)
        config = TileConfig(WARPGROUPS.blocks_of(layer.problem)[1], split)
        cases.append(conv_case(layer, ConvChoice(WARPGROUPS, config)))
    assert notices(replaced(tmp_path, *edit), cases, (PLAIN, ORDERED))


def test_every_tile_is_among_the_cases() -> None:
    tiles = {tuple(dict(each.arguments)[name] for name in ("bm", "bn")) for each in OF_WARPGROUPS}
    assert tiles == {(tile.bm, tile.bn) for tile in WARPGROUP_TILES}
    of = {
        tuple(dict(each.arguments)[name] for name in ("precision", "unit"))
        for each in OF_WARPGROUPS
    }
    assert of == {
        *(("Precision::FP16", 4), ("Precision::FP16", 8)),
        *(("Precision::TF32", 4), ("Precision::TF32X3", 4)),
    }


@pytest.mark.parametrize("kernel", OF_WARPGROUPS, ids=str)
def test_in_machine_code_products_of_a_chunk_are_one_group_that_nothing_waits_for(
    kernel: Instantiation,
) -> None:
    """With 128 filters, 3xTF32 has registers for the sums of two steps, so a chunk has two
    groups."""
    splits = "TF32X3" in kernel.expression
    groups = 2 if splits and dict(kernel.arguments)["bn"] == 128 else 1
    products = 3 * ROW_BYTES // STEP_BYTES if splits else ROW_BYTES // STEP_BYTES
    waiting = [*[False] * (products // groups - 1), True] * groups
    cubin, _, code = wgmma.machine_code(kernel, waiting)
    assert code["WARPGROUP.ARRIVE"] == code["WARPGROUP.DEPBAR.LE"] == groups
    # Where a cluster adds up: a barrier's two halves, ahead of the sum and behind it. The first
    # arrival fences what the block stored; a workspace's counter has the other fence.
    assert code["UCGABAR_ARV"] == code["UCGABAR_WAIT"] == 2
    assert code["MEMBAR.ALL.GPU"] == 2
    assert cubin.resources.static_shared == WARPGROUPS.STATIC_BYTES

"""Convolution with tensor copies and wgmma: any layer with any tile, its defects, its machine
code."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import strategies as st

from cusim.build import ORDERED, PLAIN
from kernels.convolution.algorithms import ConvChoice, choices
from kernels.convolution.split_sum import MAX_CLUSTER, MIN_CHUNKS, TileConfig
from kernels.convolution.tma_gemm import TMA_TILES, has_filter_rows
from kernels.convolution.warpgroup_gemm import WARPGROUP_TILES
from kernels.device.device import SOURCE_ROOT, Instantiation
from kernels.device.tensor_map import TensorMap
from kernels.layout.operands import ConvTensors
from kernels.layout.pixels import Pixels
from kernels.problems.conv import ConvProblem, Projection
from kernels.problems.precision import HALF, Precision
from tests.kernels.convolution.test_implicit_gemm import layers
from tests.kernels.convolution.test_tensor_gemm import projecting_layers
from tests.support.cases import INSTANTIATIONS
from tests.support.cases.conv import conv_case
from tests.support.cases.tensor_gemm import at_precision
from tests.support.cases.tma_gemm import PRECISIONS, TMA, TOGETHER, at_16_bytes
from tests.support.kernels import wgmma
from tests.support.kernels.conv_layers import Layer, dense, drawn_layer, odd, within
from tests.support.kernels.mutations import replaced
from tests.support.kernels.resources import ARCHITECTURES
from tests.support.kernels.rig import notices, of_drawn
from tests.support.kernels.windows import conv_problem, window, windows

KERNELS = [each for each in INSTANTIATIONS if each.kernel == "conv_tensor_tma"]


@st.composite
def deep_layers(draw: st.DrawFn) -> Layer:
    """Draw a layer with several chunks per tap and several tiles of filters."""
    c, k = 8 * draw(st.integers(1, 25)), draw(st.integers(1, 140))
    return drawn_layer(draw, conv_problem(1, c, k, draw(windows())))


@st.composite
def chosen(draw: st.DrawFn) -> tuple[Layer, ConvChoice]:
    """Draw a layer of 1 to 8 images with any tile, with single or grouped blocks, split into more
    parts than planned."""
    any_layer = (layers() | deep_layers() | projecting_layers()).map(
        lambda layer: at_16_bytes(at_precision(layer, draw(st.sampled_from(PRECISIONS))))
    )
    layer = draw(any_layer.filter(lambda layer: TMA.supports(layer.problem) is None))
    layer = replace(layer, problem=replace(layer.problem, n=draw(st.integers(1, 8))))
    tile = draw(st.sampled_from(TMA.blocks_of(layer.problem)))
    together = draw(st.sampled_from(TOGETHER))
    split = draw(st.integers(1, MAX_CLUSTER))
    cluster = 1 < split <= MAX_CLUSTER // together and draw(st.booleans())
    config = TileConfig(tile, split, cluster, together)
    return layer, ConvChoice(TMA, config)


test_any_layer_is_its_reference_by_any_tile, test_very_many_layers_are_their_reference = of_drawn(
    conv_case, chosen(), few=50, many=2000
)


_RELEASE = "release(i - PENDING, PENDING == 0 ? stage : (stage == 0 ? STAGES : stage) - 1);"
_EMPTY = "mbarrier_wait(released + stage, parity);"
_ADVANCE = "if (++stage == STAGES) stage = 0, parity ^= 1;\n    }"

DEFECTS = {
    "barriers that copies do not see": ("    fence_proxy_async();\n", ""),
    "barriers that threads do not see": (
        "  } else {\n    __syncthreads();\n  }",
        "  } else {\n  }",
    ),
    "a chunk that is not waited for": ("mbarrier_wait(arrived + stage, parity);", ";"),
    "the parity of the first round for all": (
        _ADVANCE.replace("\n    }", "\n  }"),
        _ADVANCE.replace("\n    }", "\n  }").replace(", parity ^= 1", ""),
    ),
    "the parity of the first round for all copies": (
        _ADVANCE,
        _ADVANCE.replace(", parity ^= 1", ""),
    ),
    "a stage refilled while it is read": (_EMPTY, ";"),
    "the parity of this round": (_EMPTY, _EMPTY.replace("parity", "parity ^ 1")),
    "a stage released while it is read": (_RELEASE, "release(i, stage);"),
    "a stage released never": (_RELEASE, ";"),
    "a warp less that releases": ("(MULTIPLYING / 32));", "(MULTIPLYING / 32) - 1);"),
    "a warp more that releases": ("(MULTIPLYING / 32));", "(MULTIPLYING / 32) + 1);"),
    "bytes of one factor expected": (
        "mbarrier_expect(arrived + stage, STAGE)",
        "mbarrier_expect(arrived + stage, BM * ROW)",
    ),
    "bytes of a factor more expected": (
        "mbarrier_expect(arrived + stage, STAGE)",
        "mbarrier_expect(arrived + stage, STAGE + BM * ROW)",
    ),
    "pixels copied before the launch ahead has ended": (
        "    wait_for_previous();\n    int stage",
        "    int stage",
    ),
    "no wait for the last products": ("  wgmma_wait<0>();\n", ""),
    "no wait for products": ("wgmma_wait<PENDING>();", ";"),
    "sums written before the last chunk is read": (
        "__syncthreads();  // all have multiplied the last chunk",
        ";",
    ),
    "a chunk stores instead of adding": ("i > 0);", "false);"),
    "the first product adds": ("i > 0);", "true);"),
    "weights of the first chunk for all": (
        "weight, column, first_filter,",
        "weight, 0, first_filter,",
    ),
    "pixels of the first column for all": ("s += window.dilation[2];", "s += 0;"),
    "pixels of the first row for all": ("r += window.dilation[1];", "r += 0;"),
    "a row of taps without an end": (
        "if (s == window.kernel[2] * window.dilation[2])",
        "if (false)",
    ),
    "a tap of pixels without an end": ("if (--x_left > 0) return;", "return;"),
    "a tap of weights without an end": ("if (--weights_left > 0)", "if (true)"),
    **wgmma.OF_PRODUCTS,
    "a part of pixels from the first column on": (
        "s = int(peel(tap, window.kernel[2])) * window.dilation[2]",
        "s = 0 * int(peel(tap, window.kernel[2]))",
    ),
    "a part of pixels from the first row on": (
        "r = int(peel(tap, window.kernel[1])) * window.dilation[1]",
        "r = 0",
    ),
    "a part of pixels from a tap's first chunk on": ("channel = of_tap * BK", "channel = 0"),
    "a part of weights from the first tap on": ("column = int(tap) *", "column = 0 * int(tap) *"),
    "a part of weights from a tap's first chunk on": ("channels + of_tap * BK", "channels"),
    "a part's first tap of pixels is whole": (
        "x_left = chunks_of_tap(0) - of_tap",
        "x_left = chunks_of_tap(0)",
    ),
    "a part's first tap of weights is whole": (
        "weights_left = chunks_of_tap(0) - of_tap",
        "weights_left = chunks_of_tap(0)",
    ),
}
"""Defects of single blocks."""

_END = "if (TOGETHER > 1 || in_cluster) cluster_wait();"
_OF_PIXELS = "of_pixels = (TOGETHER == 4 ? 3u << 2 * row : 3u)"

OF_SEVERAL = {
    "barriers that the other block does not see": ("fence_mbarrier_init();", ";"),
    "a block that may not have begun": (
        "    cluster_arrive_relaxed();\n    cluster_wait();",
        "    __syncthreads();",
    ),
    "pixels for one block": (_OF_PIXELS, "of_pixels = (1u << rank)"),
    "pixels for the other block alone": (_OF_PIXELS, "of_pixels = (1u << (rank ^ 1))"),
    "weights for one block": (
        "of_filters = (TOGETHER == 4 ? 5u << filter : 3u)",
        "of_filters = (1u << rank)",
    ),
    "a stage that another block reads refilled": ("READERS * (MULTIPLYING", "(MULTIPLYING"),
    "a stage released to one block": (
        "mbarrier_arrive_at(empty + stage, of_all ^ reader)",
        "mbarrier_arrive(empty + stage)",
    ),
    "a release that may come too late": ("lane != 0 || i + STAGES >= count", "lane != 0"),
    "a block that ends while others wait for its copies": (
        _END,
        _END.replace("TOGETHER > 1 || ", ""),
    ),
    "the first half of pixels twice": ("image = first_pixel + half_x", "image = first_pixel"),
    "the first half of weights twice": ("first_filter + half_weights", "first_filter"),
    "halves of weights at one place": ("(BM + half_weights) * ROW", "BM * ROW"),
    "halves of pixels at one place": ("shared + half_x * ROW", "shared"),
    "the same pixels for all": ("pixels + row) * BM", "pixels) * BM"),
    "the same filters for all": ("copies.filters + filter) * BN", "copies.filters) * BN"),
    **{
        name: DEFECTS[name]
        for name in ("a stage released while it is read", "the parity of the first round for all")
    },
}


_ADDED_UP = "splits, TOGETHER,\n                                        rank);"

OF_CLUSTERS = {
    "parts of blocks that have another tile": (_ADDED_UP, _ADDED_UP.replace("rank", "0")),
    "parts of neighbours": (_ADDED_UP, _ADDED_UP.replace("TOGETHER", "1")),
    "weights for the blocks of the first part": (
        "(TOGETHER == 4 ? 5u << filter : 3u) << of_part",
        "(TOGETHER == 4 ? 5u << filter : 3u)",
    ),
    "pixels for the blocks of the first part": (
        _OF_PIXELS + " << of_part",
        _OF_PIXELS,
    ),
    "a stage released to the blocks of the first part": ("of_all ^ reader", "rank ^ reader"),
    "a block that ends while others read": (_END, ";"),
    "parts that are not released": (
        "cluster_arrive();  // this block's part",
        "cluster_arrive_relaxed();  // this block's part",
    ),
    **wgmma.OF_CLUSTERS,
}
"""Defects of blocks that share copies and, in the same cluster, the parts of sums."""

OF_PROJECTIONS = {
    "pixels of x for what is projected": ("if (x_left == ENDLESS) project();", ";"),
    "the same for a part of it": ("if (first_chunk >= copies.of_x) project();", ";"),
    "a part of it from its first chunk on": (" + projected_chunks;", ";"),
    "windows without the projection's stride": ("at_w = w * projection.stride[2]", "at_w = w"),
    "a matrix of what is projected": (", as_matrix = false", ""),
    "taps of what is projected": (
        "return first_chunk + i < copies.of_x ? int(copies.tap_chunks) : ENDLESS;",
        "return int(copies.tap_chunks);",
    ),
}

OF_FILTER_ROWS = {
    "filters where pixels lie": ("(FILTER_ROWS ? BM * ROW : 0)", "0"),
    "pixels where filters lie": ("FILTER_ROWS ? 0 : BM * ROW, x_lane", "BM * ROW, x_lane"),
    "filters of the first warpgroup for all": DEFECTS["pixels of the first warpgroup for all"],
    "sums as of pixels": ("FILTER_ROWS ? column_lane * PITCH + row_lane : row_lane", "row_lane"),
    "every other pixel": ("to[(n * 8 + 1) * PITCH", "to[n * 8 * PITCH"),
    "every other 8 filters": ("to[n * 8 * PITCH + i * 4]", "to[n * 8 * PITCH]"),
    **{
        name: DEFECTS[name]
        for name in (
            "a chunk that is not waited for",
            "a stage released while it is read",
            "no wait for the last products",
            "sums written before the last chunk is read",
        )
    },
}
"""Defects of tiles with pixels as the columns of wgmma."""


def _layer(channels: int, precision: Precision, filters: int = 104) -> Layer:
    problem = conv_problem(1, channels, filters, window((9, 15), (3, 3), pads=(1, 1, 1, 1)))
    layer = Layer("of any channels", problem, dense(channels), dense(filters))
    return at_precision(layer, precision)


def _projecting(precision: Precision) -> Layer:
    projection = Projection(136, (17, 29), (2, 2))  # of whose windows not all are in one tile
    problem = conv_problem(1, 72, 104, window(projection.output, (1, 1)))
    problem = replace(problem, precision=Precision.FP16, projection=projection)
    layer = Layer("projecting", problem, dense(72), dense(104), dense(136))
    return at_precision(layer, precision)


PIXEL_ROWS, FILTER_ROWS = slice(1, 4, 2), slice(5, 7)
"""Tiles of TMA.blocks_of, of either kind."""


def _notices(
    edit: tuple[str, str],
    folder: Path,
    *,
    together: int = 1,
    precision: Precision = Precision.FP16,
    tiles: slice = PIXEL_ROWS,
    cluster: bool = False,
    projecting: bool = False,
) -> bool:
    """Return whether a run fails in one of two builds; one of them shows plain stores.

    Layers have more chunks than a block holds, and fewer chunks than parts; two blocks share either
    factor. In layers with a projection, one part begins with x's chunks, and another is among the
    chunks after them.
    """
    files = ("tma_gemm.cu", "tensor_gemm.cuh", "cluster_sum.cuh")
    texts = ((SOURCE_ROOT / file).read_text(encoding="utf-8") for file in files)
    root = replaced(
        folder, next(f for f, text in zip(files, texts, strict=True) if edit[0] in text), *edit
    )
    parts = ((72, 104, 2), (72, 56, 2)) if cluster else ((72, 104, 1), (72, 56, 2), (8, 104, 12))
    tried = [(_layer(channels, precision, filters), split) for channels, filters, split in parts]
    if projecting:
        tried = [(_projecting(precision), split) for split in (1, 3)]
    cases = [
        conv_case(layer, ConvChoice(TMA, TileConfig(tile, split, cluster, together)))
        for layer, split in tried
        for tile in TMA.blocks_of(layer.problem)[tiles]
    ]
    return notices(root, cases, (PLAIN, ORDERED))


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_noticed(defect: str, tmp_path: Path) -> None:
    assert _notices(DEFECTS[defect], tmp_path)


@pytest.mark.parametrize("together", [2, 4])
@pytest.mark.parametrize("defect", OF_SEVERAL)
def test_a_defect_of_several_blocks_is_noticed(defect: str, together: int, tmp_path: Path) -> None:
    assert _notices(OF_SEVERAL[defect], tmp_path, together=together)


@pytest.mark.parametrize("defect", OF_CLUSTERS)
def test_a_defect_of_sums_in_shared_clusters_is_noticed(defect: str, tmp_path: Path) -> None:
    assert _notices(OF_CLUSTERS[defect], tmp_path, together=4, cluster=True)


@pytest.mark.parametrize("defect", OF_PROJECTIONS)
def test_a_defect_of_projections_is_noticed(defect: str, tmp_path: Path) -> None:
    assert _notices(OF_PROJECTIONS[defect], tmp_path, projecting=True)


@pytest.mark.parametrize("defect", OF_FILTER_ROWS)
def test_a_defect_of_filters_as_rows_is_noticed(defect: str, tmp_path: Path) -> None:
    assert _notices(OF_FILTER_ROWS[defect], tmp_path, tiles=FILTER_ROWS)


@pytest.mark.parametrize(
    "edit",
    [
        ("pixels[step][i] = to_tf32(__uint_as_float(pixels[step][i]))", ""),
        ("chunk + (lane ^ step * 32)", "chunk + (lane ^ step / 2 * 32)"),
        DEFECTS["a stage released never"],
        DEFECTS["a chunk that is not waited for"],
        ("PRECISION == Precision::FP16 ? 1 : 0", "1"),  # factors overwritten under way
    ],
)
def test_a_defect_in_tf32_is_noticed(edit: tuple[str, str], tmp_path: Path) -> None:
    assert _notices(edit, tmp_path, precision=Precision.TF32)


@pytest.mark.parametrize("cluster", [False, True])
@pytest.mark.parametrize(
    ("together", "precision", "tiles"),
    [
        *((together, Precision.FP16, PIXEL_ROWS) for together in TOGETHER),
        (1, Precision.FP16, FILTER_ROWS),
        (1, Precision.TF32, PIXEL_ROWS),
    ],
)
def test_without_a_defect_nothing_is_noticed(
    together: int, precision: Precision, tiles: slice, cluster: bool, tmp_path: Path
) -> None:
    same = ("constexpr int MULTIPLYING", "constexpr int MULTIPLYING")
    assert not _notices(
        same, tmp_path, together=together, precision=precision, tiles=tiles, cluster=cluster
    )


def test_without_a_defect_nothing_is_noticed_of_projections(tmp_path: Path) -> None:
    assert not _notices(
        ("constexpr int MULTIPLYING", "constexpr int MULTIPLYING"), tmp_path, projecting=True
    )


def _problem(c: int = 64, k: int = 64, precision: Precision = Precision.FP16) -> ConvProblem:
    return replace(conv_problem(2, c, k, window((9, 15), (3, 3))), precision=precision)


REFUSED = {
    "groups 2": replace(_problem(), groups=2),
    "pixels of 3 float16 channels": _problem(c=3),
    "3xtf32": _problem(precision=Precision.TF32X3),
    "strict float32": _problem(precision=Precision.FP32),
    "3-D windows": replace(_problem(), window=window((4, 9, 9), (3, 3, 3))),
    "a stride of 9": replace(_problem(), window=window((40, 40), (1, 1), strides=(9, 9))),
    "windows that reach further beyond the image": replace(
        _problem(), window=window((300, 300), (3, 3), dilations=(99, 1))
    ),
    "pixels of 2 float16 channels": replace(
        _problem(),
        window=window((5, 5), (1, 1)),
        projection=Projection(2, (5, 5), (1, 1)),
    ),
}


@pytest.mark.parametrize(("says", "problem"), REFUSED.items(), ids=REFUSED)
def test_what_tensor_copies_do_not_take_is_refused_with_a_reason(
    says: str, problem: ConvProblem
) -> None:
    assert says in str(TMA.supports(problem))


def test_a_pointwise_convolution_is_run_in_any_dimension() -> None:
    assert TMA.supports(replace(_problem(), window=window((4, 9, 9), (1, 1, 1)))) is None


def test_it_runs_on_hopper_alone() -> None:
    offered = {
        arch
        for arch in ARCHITECTURES
        if any(each.algorithm.name == TMA.name for each in choices(_problem(), None, arch))
    }
    assert offered == {"90a"}


def test_where_pixels_do_not_lie_at_16_bytes_another_kernel_copies_them() -> None:
    layer = at_precision(_layer(12, Precision.TF32), Precision.FP16)
    for x in (dense(12), odd(12), replace(within(12), offset=4)):
        for config in TMA.configs(layer.problem):
            (made,) = TMA.launches(
                layer.problem, config, ConvTensors(replace(x, stored=layer.x.stored), layer.y)
            )
            assert made.instantiation.kernel == "conv_tensor"
            assert dict(made.instantiation.arguments)["warpgroups"]
            # In a cluster: its tiles, perhaps larger, may need more workspace than was planned.
            assert made.cluster == (1, min(config.split, MAX_CLUSTER), 1)
            assert not {"workspace", "counters"} & set(made.operands)
    moved = at_16_bytes(layer)
    (made,) = TMA.launches(
        moved.problem, TMA.configs(moved.problem)[0], ConvTensors(moved.x, moved.y)
    )
    assert made.instantiation.kernel == "conv_tensor_tma"


@pytest.mark.parametrize(("together", "halves"), [(1, (1, 1)), (2, (1, 2)), (4, (2, 2))])
def test_maps_say_where_factors_lie(together: int, halves: tuple[int, int]) -> None:
    problem = _problem(c=72, k=136)
    tile = TMA.blocks_of(problem)[2]
    config = TileConfig(tile, together=together)
    x_pixels = Pixels(72, 80, offset=8, stored=HALF)
    (made,) = TMA.launches(problem, config, ConvTensors(x_pixels, Pixels(136, 136, stored=HALF)))
    x, weight, projected, *_ = made.arguments
    assert isinstance(x, TensorMap)
    assert isinstance(weight, TensorMap)
    assert (x.base, weight.base, projected) == ("x", "weight", x)
    assert (x.dims, x.strides) == ((72, 15, 9, 2), (160, 160 * 15, 160 * 15 * 9))
    assert (weight.dims, weight.strides) == ((9 * 72, 136), (9 * 72 * 2,))
    # 128 filters a tile are more than 64 pixels: two blocks share them.
    assert (x.rows, weight.rows) == (tile.bm // halves[0], tile.bn // halves[1])
    assert made.cluster == (together, 1, 1)
    assert made.operands == ("x", "weight", "y")


def test_the_grid_has_whole_clusters() -> None:
    """If the number of tiles is odd, blocks that write nothing fill the last cluster."""
    for filters, shape in ((40, "rows"), (300, "either")):
        problem = _problem(k=filters)
        for tile in TMA.blocks_of(problem):
            alone, two, four = (TMA.tiles(problem, TileConfig(tile, together=n)) for n in TOGETHER)
            of_filters = -(-filters // tile.bn)
            of_pixels = -(-2 * 91 // tile.bm)  # 2 images
            assert alone == of_pixels * of_filters, shape
            assert two == (alone if alone % 2 == 0 else of_filters * (of_pixels + 1))
            assert four == 4 * -(-of_filters // 2) * -(-of_pixels // 2)


def test_as_many_blocks_are_together_as_have_something_in_common() -> None:
    def offered(n: int, filters: int) -> set[int]:
        problem = replace(
            conv_problem(n, 64, filters, window((5, 5), (1, 1))), precision=Precision.FP16
        )
        return {c.together for c in TMA.configs(problem) if c.tile.bm == 64 and c.tile.bn == 64}

    assert offered(1, 64) == {1}
    assert offered(4, 64) == offered(1, 128) == {1, 2}
    assert offered(4, 128) == {1, 2, 4}


def test_every_tile_is_among_the_cases_alone_and_together() -> None:
    assert {(tile.bm, tile.bn) for tile in TMA_TILES if not has_filter_rows(tile)} == {
        (tile.bm, tile.bn) for tile in WARPGROUP_TILES
    }
    names = ("precision", "together", "filter_rows", "bm", "bn")
    of = {tuple(dict(each.arguments)[name] for name in names) for each in KERNELS}
    assert of == {
        (f"Precision::{precision.name}", together, has_filter_rows(tile), tile.bm, tile.bn)
        for precision in PRECISIONS
        for together in TOGETHER
        for tile in TMA_TILES
        if precision is Precision.FP16 or not has_filter_rows(tile)
    }


def test_blocks_of_a_cluster_share_copies_and_sums() -> None:
    problem = replace(
        conv_problem(1, 1024, 256, window((14, 14), (1, 1))), precision=Precision.FP16
    )
    configs = TMA.configs(problem)
    assert len(set(map(str, configs))) == len(configs)
    clusters = [config for config in configs if config.cluster]
    assert {(config.together, config.split) for config in clusters} == {
        (together, split)
        for together in TOGETHER
        for split in range(2, MAX_CLUSTER // together + 1)
    }
    pixels = dense(1024), dense(256)
    x, y = (replace(each, stored=HALF) for each in pixels)
    for config in clusters:
        assert TMA.chunks(problem, config.tile) >= MIN_CHUNKS * config.split
        assert not TMA.workspace(problem, config)
        (made,) = TMA.launches(problem, config, ConvTensors(x, y))
        assert made.cluster == (config.together, config.split, 1)
        assert not {"workspace", "counters"} & set(made.operands)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_in_machine_code_products_of_a_chunk_are_one_group_that_nothing_waits_for(
    kernel: Instantiation,
) -> None:
    waiting = [False, False, False, True]
    _, listed, code = wgmma.machine_code(kernel, waiting)
    assert code["WARPGROUP.ARRIVE"] == 1
    # Filters as rows leave a tile as many columns as it has pixels.
    arguments = dict(kernel.arguments)
    columns = arguments["bm"] if arguments["filter_rows"] else arguments["bn"]
    assert sum(f"64x{columns}x" in opcode for opcode in code.elements()) == len(waiting)
    assert not any(opcode.startswith("LDGSTS") for opcode in code)
    # The copying thread is elected: ptxas makes no loop of the lanes around a copy.
    assert code["ELECT"] == 1
    assert code["BRA.U.ANY"] == 0
    # Ahead of the copying thread's wait, the second, weights alone are copied.
    _, wait = (i for i, each in enumerate(listed) if each.base == "ACQBULK")
    early = [each.opcode for each in listed[:wait] if each.base == "UTMALDG"]
    alone, shared = "UTMALDG.2D", "UTMALDG.2D.MULTICAST"
    expected = {1: [alone], 2: [alone, shared], 4: [shared]}
    assert sorted(early) == expected[int(arguments["together"])]
    assert any("IM2COL" in each.opcode for each in listed[wait:])
    # An arrival at another block's barrier is no fence of the whole GPU: one is the counter's where
    # a sum is split, one the cluster's arrival behind what the block stored.
    fences = sum(opcode.startswith("MEMBAR.ALL.GPU") for opcode in code.elements())
    assert fences == 2
    # At the end blocks that share copies arrive in one of two places, and wait in one.
    together = int(arguments["together"]) > 1
    assert code["UCGABAR_ARV"] == (4 if together else 2)
    assert code["UCGABAR_WAIT"] == (3 if together else 2)

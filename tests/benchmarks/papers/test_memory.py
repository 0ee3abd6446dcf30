"""The bytes moved through memory, counted by hand in small cases."""

import pytest

from benchmarks.kernels.suites import C3D, VGG_E
from benchmarks.papers.memory import (
    GROUP,
    LAYOUTS,
    TITAN_X_L2,
    blocking,
    blocks_of,
    dram_bytes,
    network_blocking,
    sectors_of,
    stages,
    table_shares,
)
from kernels.problems.conv import same_padded


def test_a_cache_drops_what_was_used_longest_ago() -> None:
    a, b, c = ((name, 0) for name in "abc")
    assert dram_bytes([[(a, 4), (b, 4)], [(a, 4)], [(b, 4)]], 8) == 8
    # c takes b's place, for a was used since.
    assert dram_bytes([[(a, 4)], [(b, 4)], [(a, 4)], [(c, 4)], [(a, 4)], [(b, 4)]], 8) == 16


def test_groups_load_each_filter_once_and_each_tile_once_a_group() -> None:
    problem = same_padded((64, 64), 3, 512, 512)  # 1,024 tiles: 32 blocks of them
    groups = list(blocks_of(problem, GROUP))
    assert len(groups) == 32 * 512 // 32
    filters, pixels = 4 * 9 * 512 * 512, 4 * 4 * 1024 * 512
    loaded = dram_bytes(groups, TITAN_X_L2)
    # The last tiles of a group are still there when the next begins, but it begins with others.
    assert loaded == filters + 512 // GROUP * pixels


def test_groups_save_traffic_where_filters_do_not_fit_and_cost_some_where_they_do() -> None:
    by_name = {layer.name: blocking(layer.problem.with_batch(8), TITAN_X_L2) for layer in VGG_E}
    for name in ("conv 4.2", "conv 5"):
        found = by_name[name]
        assert found["groups of 128"] < 0.4 * min(found["filters inside"], found["tiles inside"])
    assert by_name["conv 3.2"]["groups of 128"] > by_name["conv 3.2"]["filters inside"]
    for n, most in ((1, 0.7), (8, 0.35)):
        found = network_blocking(VGG_E, n)
        others = min(found["filters inside"], found["tiles inside"])
        assert 0.2 < found["groups of 128"] / others < most


def test_an_image_for_each_lane_needs_eight_times_the_sectors_unless_they_lie_side_by_side() -> (
    None
):
    problem = C3D[1].problem.with_batch(32)
    by_layout = {
        layout: {stage.name: stage for stage in stages(problem, layout)} for layout in LAYOUTS
    }
    far, near, without = (by_layout[layout] for layout in LAYOUTS)
    assert far["imageTransform"].sectors == 8 * near["imageTransform"].sectors
    tiles = 4 * 14 * 14
    assert near["imageTransform"].instructions == 2 * 64 * 64 * tiles
    assert not any(name.startswith("reshape") for name in without)
    matrices = 64 * (32 * tiles * (64 + 256) + 64 * 256)  # floats
    assert without["sgemm"].sectors == matrices * 4 // 32


def test_figures_3_and_4_are_those_of_the_page() -> None:
    for layer in C3D:
        base, near, without = (sectors_of(layer.problem, layout) for layout in LAYOUTS)
        assert base / near == pytest.approx(1.85, abs=0.1)
        assert base / without == pytest.approx(8.85, abs=0.1)
    _, *rows = table_shares(C3D[1].problem)
    shares = {name: cells for name, *cells in rows}
    assert shares["filterTransform"] == ["0.11%", "0.03%", "0.13%"]  # "about 0.1%" in the paper
    most = [max(rows, key=lambda row: float(row[i].rstrip("%") or 0))[0] for i in (2, 3)]
    assert most == ["reshapeOutput", "sgemm"]

"""Blocks and shares of the configurations that cuConv profiles."""

from benchmarks.papers import launches
from benchmarks.papers.cuconv import COUNTED
from benchmarks.papers.launches import BLOCKS, FILTER_SIZES, SECOND_STAGE
from kernels.convolution.winograd import WinogradConv


def test_as_many_configurations_of_each_size_as_the_paper_says_but_in_resnet() -> None:
    for network, theirs in FILTER_SIZES.items():
        labels = launches.configurations(network)
        assert sum(theirs) == 100
        if network != "ResNet-50":
            assert len(labels) == COUNTED[network]
            ours = launches.sizes(labels)
            assert max(abs(a - b) for a, b in zip(theirs, ours, strict=True)) < 0.11, network
            # Every percentage is a whole number of configurations.
            counts = [each * COUNTED[network] / 100 for each in theirs]
            assert all(abs(each - round(each)) < 0.05 for each in counts)


def test_blocks_are_those_that_are_launched() -> None:
    assert {where: theirs[0] for where, theirs in BLOCKS.items()} == {
        where: launches.named(where).k for where in BLOCKS
    }, "cuConv launches a block a filter"
    for where in BLOCKS:
        problem = launches.named(where)
        for name in ("coalesced", "gemm"):
            choice = launches.best(problem, name)
            (work,) = choice.algorithm.work(problem, choice.config)
            assert launches.blocks(problem, choice) == work.blocks


def test_shares_are_shares() -> None:
    for where, theirs in SECOND_STAGE.items():
        assert theirs < launches.second_stage(launches.named(where)) < 0.4
    five = launches.named("cuConv, table 5, A")
    two = WinogradConv(m=2, r=5, axes=2)
    wider = launches.named("cuConv, table 5, B")
    assert 0 < launches.transform_share(five, two) < 0.1
    assert launches.transform_share(five, two) == launches.transform_share(wider, two)
    choice = launches.best(five, "coalesced")
    assert 0 < launches.occupancy(five, choice) <= 1

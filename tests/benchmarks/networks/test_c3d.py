"""The C3D that the repository builds is the network in the paper's table."""

from pathlib import Path

import onnx
import pytest
from onnx import numpy_helper

from benchmarks.networks import c3d as module
from benchmarks.networks.c3d import C3D, c3d
from models.graph import Conv
from models.onnx_loader import load_proto

# Lan et al. 2017, table 2: C×D×H×W and K of each layer, and GFLOPS, for a batch of 32 clips. They
# count a multiply-add as one.
TABLE_2 = [
    ((3, 16, 112, 112), 32, 16.65),
    ((32, 16, 56, 56), 64, 88.8),
    ((64, 8, 28, 28), 256, 88.8),
    ((256, 4, 14, 14), 256, 44.4),
    ((256, 2, 7, 7), 256, 5.55),
]


def test_its_convolutions_are_those_of_the_papers_table() -> None:
    graph = load_proto("c3d", c3d(C3D(hidden=8))).graph
    problems = [node.problem.with_batch(32) for node in graph.nodes if isinstance(node, Conv)]
    assert len(problems) == len(TABLE_2)
    for problem, (image, k, gigaflops) in zip(problems, TABLE_2, strict=True):
        assert (problem.c, *problem.window.input) == image
        assert problem.output_shape == (32, k, *image[1:])
        assert problem.macs / 1e9 == pytest.approx(gigaflops, rel=5e-4)
    assert graph.shape(graph.outputs[0]) == (101,)


def test_the_seed_says_every_weight() -> None:
    small = C3D(clip=(2, 4, 4), filters=(4, 8), hidden=8, classes=3)
    assert c3d(small) == c3d(small)
    first, other = (
        [numpy_helper.to_array(weight) for weight in c3d(small, seed).graph.initializer]
        for seed in (0, 1)
    )
    assert len(first) == 2 * (2 + 3)
    assert all((a != b).any() for a, b in zip(first, other, strict=True))


def test_the_command_writes_the_papers_network(tmp_path: Path) -> None:
    path = tmp_path / "c3d.onnx"
    module.main([str(path)])
    model = onnx.load(path)
    onnx.checker.check_model(model)
    shapes = {weight.name: tuple(weight.dims) for weight in model.graph.initializer}
    assert shapes["fc6.weight"] == (2048, 256 * 1 * 4 * 4)
    assert shapes["fc7.weight"] == (2048, 2048)

"""YOLO11n-cls at reduced size: it has the nodes of the exported file, and all run on the
kernels."""

from math import prod

from onnx import TensorProto

from benchmarks.networks.light import classifier
from benchmarks.networks.yolo import NANO, Yolo, yolo
from models.graph import Attention, Conv, Product

SMALL = Yolo(96, (4, 8, 8, 16, 32), 24, 7)


def test_its_attention_is_one_node_among_convolutions() -> None:
    network = classifier("YOLO", yolo(SMALL))
    assert not network.network.no_kernels
    graph = network.rewritten.graph
    assert len([node for node in graph.nodes if isinstance(node, Conv)]) == 39
    assert len([node for node in graph.nodes if isinstance(node, Attention)]) == 1
    assert not [node for node in graph.nodes if isinstance(node, Product)]


def test_it_has_as_many_weights_as_the_file_that_ultralytics_exports() -> None:
    """The parameters of yolo11n-cls for 1000 classes, with folded normalisations."""
    weights = [each for each in yolo(NANO).graph.initializer if each.data_type == TensorProto.FLOAT]
    assert sum(prod(each.dims) for each in weights if each.dims) == 2_807_024

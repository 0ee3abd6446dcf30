"""The suites compared with the papers' tables, and with networks that the loader reads."""

import re
from collections.abc import Callable, Mapping
from functools import cache
from itertools import chain

import onnx
import onnx.utils
import pytest
from onnx import helper

from benchmarks.kernels.suites import C3D, CUCONV, CUCONV_NETWORKS, MEASURED, NAMED, VGG_E
from benchmarks.networks import c3d
from kernels.problems.conv import ConvProblem, same_padded
from models.graph import Conv
from models.onnx_loader import load_proto
from tests.support.networks import LIGHT, SHARED

CUCONV_TEXT = SHARED / "seeds" / "cuconv-2021-coalesced-direct.txt"


def convolutions(model: onnx.ModelProto) -> tuple[ConvProblem, ...]:
    """Return every convolution that the loader reads."""
    nodes = load_proto("network", model).graph.nodes
    return tuple(node.problem for node in nodes if isinstance(node, Conv))


@cache
def of_light(name: str) -> tuple[ConvProblem, ...]:
    """Return the convolutions of the onnx package's network as its authors published it, with
    constant weights."""
    model = onnx.load(LIGHT / f"light_{name}.onnx")
    model.ir_version = 4  # from 4 on an initializer need not be a graph input too
    change = CHANGES.get(name)
    return convolutions(up_to_the_last_convolution(model if change is None else change(model)))


def up_to_the_last_convolution(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without its fully connected layers, which have most of its weights."""
    outputs = [node.output[0] for node in model.graph.node if node.op_type == "Conv"]
    constants = {tensor.name for tensor in model.graph.initializer}
    (image,) = (each.name for each in model.graph.input if each.name not in constants)
    extractor = onnx.utils.Extractor(onnx.shape_inference.infer_shapes(model))
    cut = extractor.extract_model([image], outputs)
    assert isinstance(cut, onnx.ModelProto)
    return cut


def labels_of(name: str) -> set[str]:
    """Return every convolution with stride 1 of 1×1, 3×3 or 5×5, with cuConv's labels, without
    groups."""
    found = set()
    for problem in of_light(name):
        if set(problem.window.strides) != {1}:
            continue
        size, kernel = problem.window.input[0], problem.window.kernel[0]
        assert problem.window == same_padded((size, size), kernel, problem.c, problem.k).window
        assert kernel in (1, 3, 5)
        found.add(f"{size}-{kernel}-{problem.k}-{problem.c}")
    return found


def with_pooling_windows_that_end_outside(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model as its authors published it: Caffe's pooling rounds sizes up."""
    model.opset_import[0].version = 10  # the first with ceil_mode
    for node in model.graph.node:
        if node.op_type == "MaxPool":
            node.attribute.append(helper.make_attribute("ceil_mode", 1))
        elif node.op_type == "AveragePool":  # over all that is left, now 7×7
            del node.attribute[:]
            node.attribute.append(helper.make_attribute("kernel_shape", [7, 7]))
    return model


def with_images_of(model: onnx.ModelProto, size: int) -> onnx.ModelProto:
    for dim in model.graph.input[0].type.tensor_type.shape.dim[2:]:
        dim.dim_value = size
    return model


CHANGES: Mapping[str, Callable[[onnx.ModelProto], onnx.ModelProto]] = {
    "bvlc_alexnet": lambda model: with_images_of(model, 227),
    "inception_v1": with_pooling_windows_that_end_outside,
}


@pytest.mark.parametrize(
    ("network", "name"),
    [
        ("AlexNet", "bvlc_alexnet"),
        ("GoogLeNet", "inception_v1"),
        ("ResNet-50", "resnet50"),
        ("VGG-19", "vgg19"),
    ],
)
def test_a_networks_layers_are_those_that_the_loader_reads(network: str, name: str) -> None:
    assert labels_of(name) == set(CUCONV_NETWORKS[network])


def test_squeezenet_1_0_has_the_layers_of_1_1_at_other_sizes_but_for_the_first() -> None:
    def without_size(labels: set[str]) -> set[str]:
        return {label.partition("-")[2] for label in labels}

    ours = without_size(set(CUCONV_NETWORKS["SqueezeNet"]))
    theirs = without_size(labels_of("squeezenet"))
    assert ours - theirs == {"1-16-96"}  # 96 filters before the first fire module
    assert theirs - ours == {"1-16-64"}  # and 64


@pytest.mark.skipif(not CUCONV_TEXT.is_file(), reason=f"needs the paper's text, {CUCONV_TEXT}")
def test_every_configuration_that_the_paper_names_is_among_them() -> None:
    text = CUCONV_TEXT.read_text()
    # [H and W]-[N]-[R and S]-[K]-[C] in tables 3 to 5, [H and W]-[K]-[C] where all are 1×1.
    named = {
        f"{size}-{kernel}-{k}-{c}"
        for size, kernel, k, c in re.findall(r"\b(\d+)-\d+-(\d+)-(\d+)-(\d+)\b", text)
    }
    named |= {f"{size}-1-{k}-{c}" for size, k, c in re.findall(r"the (\d+)-(\d+)-(\d+) conf", text)}
    assert len(named) == 7
    assert named <= set(chain.from_iterable(CUCONV_NETWORKS.values()))


def test_as_many_configurations_as_the_paper_counts() -> None:
    ours = {network: len(set(labels)) for network, labels in CUCONV_NETWORKS.items()}
    # Table 1; see suites.py on GoogLeNet and ResNet-50.
    assert ours == {
        "AlexNet": 4,
        "GoogLeNet": 42 + 6,
        "ResNet-50": 12 + 4,
        "SqueezeNet": 21,
        "VGG-19": 9,
    }
    assert len(CUCONV) == len({layer.name for layer in CUCONV}) == 97


def test_vgg_e_is_vgg_19_and_takes_as_many_operations_as_the_table_says() -> None:
    labels = {f"{p.window.input[0]}-3-{p.k}-{p.c}" for p in (layer.problem for layer in VGG_E)}
    assert labels == set(CUCONV_NETWORKS["VGG-19"])
    gflops = [2e-9 * layer.count * layer.problem.macs for layer in VGG_E]
    table = [0.17, 3.70, 1.85, 3.70, 1.85, 11.10, 1.85, 11.10, 3.70]
    assert gflops == pytest.approx(table, abs=0.006)
    assert sum(gflops) == pytest.approx(39.02, abs=0.005)
    assert len(of_light("vgg19")) == sum(layer.count for layer in VGG_E)


def test_c3d_is_the_model_and_takes_as_many_operations_as_the_table_says() -> None:
    convs = convolutions(c3d.c3d(c3d.C3D(hidden=1, classes=1)))
    assert list(convs[1:]) == [layer.problem for layer in C3D]
    # Table 2 counts a multiplication with its addition as one, for 32 clips.
    gigaoperations = [32e-9 * layer.problem.macs for layer in C3D]
    assert gigaoperations == pytest.approx([88.8, 88.8, 44.4, 5.55], abs=0.05)


def test_a_suites_layers_have_names_of_their_own_and_are_for_one_image() -> None:
    for layers in MEASURED.values():
        assert len({layer.name for layer in layers}) == len(layers)
        assert {layer.problem.n for layer in layers} == {1}


def test_the_named_times_add_up_to_the_papers_totals() -> None:
    of_lan = [named for named in NAMED if named.suite == "c3d"]
    rates = [[float(number) for number in re.findall(r"[\d.]+", each.took)] for each in of_lan]
    totals = [
        sum(
            32e-9 * each.layer.problem.macs / rate[side]
            for each, rate in zip(of_lan, rates, strict=True)
        )
        for side in (0, 1)
    ]
    assert totals == pytest.approx([108.2, 132.6], rel=5e-3)  # figure 5, in ms
    for named, (rate, best) in zip(of_lan, rates, strict=True):
        assert named.speedup == pytest.approx(rate / best, abs=0.015)


@pytest.mark.skipif(not CUCONV_TEXT.is_file(), reason=f"needs the paper's text, {CUCONV_TEXT}")
def test_the_named_times_are_the_papers() -> None:
    text = CUCONV_TEXT.read_text()
    totals = [
        float(number)
        for line in re.findall(r"Total .*", text)
        for number in re.findall(r"[\d.]+", line)
    ]
    for named in NAMED:
        if named.where.startswith("cuConv, table"):
            us, best = (float(number) for number in re.findall(r"[\d.]+", named.took))
            assert {us, best} <= set(totals), named
            assert named.speedup == best / us

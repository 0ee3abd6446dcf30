"""The engine with Convoy's own kernels: whole networks, which the simulator runs on the CPU."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.networks import light
from cusim.device import CusimDevice, Order
from cusim.streams import CusimStream, own_event
from kernels.device.device import Device, Event, FaultError, Kernel
from kernels.problems.activation import RELU, Activation, ActivationKind
from kernels.problems.binary_operation import BinaryOp
from kernels.problems.pool import PoolKind
from kernels.problems.precision import Precision
from kernels.problems.prologue import Prologue
from kernels.tuning.heuristic import heuristic
from models import BUILT_IN_MODEL, DeviceKind, EngineError, load_classifier, open_engine
from models.classifier import Classifier
from models.engines.cuda_engine import CudaEngine
from models.engines.tolerance import relative_error, score_tolerance
from models.graph import Conv, Normalise
from models.preprocessing import Layout, normalised
from models.schedule.branches import streams
from service.images.prepare import ImageLimits, prepare_image
from tests.support.models.engines import (
    branching,
    classifier_of,
    network_of,
    network_tolerance,
    opened,
    pixels,
    reference_scores,
    with_one_output,
)
from tests.support.models.graphs import GraphBuilder
from tests.support.models.random_graphs import Draw
from tests.support.networks import (
    LIGHT_NETWORKS,
    SQUEEZENET,
    light_network,
    needs_shared,
    photographs,
)

LIMITS = ImageLimits(20_000_000, 50_000_000)
QUICK = ("squeezenet", "shufflenet")


@pytest.fixture(scope="module")
def digits() -> Classifier:
    return load_classifier(BUILT_IN_MODEL)


def test_digits_agree_with_onnxruntime_at_every_n(device: Device, digits: Classifier) -> None:
    engine = opened(digits, device, max_batch=8)
    expected = open_engine(digits, device=DeviceKind.CPU, max_batch=8)
    for n in range(1, 9):
        images = pixels(digits, n, seed=n)
        error = relative_error(engine.run(images).scores, expected.run(images).scores)
        assert error < network_tolerance(digits.network.graph)
    engine.close()


def test_the_same_images_give_the_same_bits_whatever_ran_before_and_in_any_order(
    digits: Classifier,
) -> None:
    images = pixels(digits, 3)
    answers = []
    for order in Order:
        cusim = CusimDevice(order=order, seed=5)
        engine = opened(digits, cusim, max_batch=3)
        answers.append(engine.run(images).scores)
        engine.run(pixels(digits, 2, seed=9))
        answers.append(engine.run(images).scores)
        engine.close()
        cusim.close()
    assert all((answer == answers[0]).all() for answer in answers)


def test_branches_side_by_side_give_the_bits_of_one_after_another_in_any_order() -> None:
    classifier = branching()
    images, answers = pixels(classifier, 2), []
    for order, together in ((Order.FORWARD, False), *((order, True) for order in Order)):
        cusim = CusimDevice(order=order, seed=3)
        engine = CudaEngine(
            classifier,
            cusim,
            max_batch=2,
            choose=heuristic(cusim),
            pays=lambda *_, together=together: together,
        )
        engine.warm_up()
        answers += [engine.run(images).scores, engine.run(images).scores]
        assert (max(streams(engine.plans[2].after)) > 0) == together
        engine.close()
        cusim.close()
    assert all((answer == answers[0]).all() for answer in answers)


def test_a_branch_that_does_not_wait_for_what_it_reads_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    classifier, wait = branching(), CusimStream.wait
    forgotten: list[Event] = []

    def forgetting(self: CusimStream, event: Event) -> None:
        if not forgotten:  # joins the capture, but behind nothing
            forgotten.append(event)
            mark = own_event(event).mark
            assert mark is not None
            mark.behind = frozenset()
        wait(self, event)

    cusim = CusimDevice(order=Order.REVERSED)
    engine = CudaEngine(
        classifier, cusim, max_batch=1, choose=heuristic(cusim), pays=lambda *_: True
    )
    images = pixels(classifier, 1)
    engine.warm_up()
    right = engine.run(images).scores
    monkeypatch.setattr(CusimStream, "wait", forgetting)
    engine.warm_up()
    assert not (engine.run(images).scores == right).all()
    engine.close()
    cusim.close()


def test_scores_stay_as_they_were_when_the_next_batch_runs(
    device: Device, digits: Classifier
) -> None:
    engine = opened(digits, device, max_batch=2)
    scores = engine.run(pixels(digits, 2)).scores
    before = scores.copy()
    engine.run(pixels(digits, 2, seed=1))
    assert (scores == before).all()
    engine.close()


def test_a_batch_of_the_wrong_shape_is_refused(device: Device, digits: Classifier) -> None:
    engine = opened(digits, device, max_batch=2)
    for shape in ((0, 32, 32, 1), (3, 32, 32, 1), (1, 32, 31, 1)):
        with pytest.raises(EngineError, match="takes 1 to 2 images of"):
            engine.run(np.zeros(shape, np.uint8))
    engine.close()
    with pytest.raises(EngineError, match="is closed"):
        engine.run(np.zeros((1, 32, 32, 1), np.uint8))


def test_a_device_that_is_too_small_is_told_with_what_was_needed_and_what_was_free(
    digits: Classifier,
) -> None:
    cusim = CusimDevice(memory_bytes=200_000)
    with pytest.raises(EngineError, match=r"needs [\d,]+ bytes on .*, where [\d,]+ are free"):
        opened(digits, cusim, max_batch=8)
    cusim.close()


def test_an_error_that_comes_after_the_launch_names_the_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched: list[str] = []
    launch, synchronize = CusimDevice.launch, CusimStream.synchronize

    def launching(self: CusimDevice, kernel: Kernel, *rest: Any, **options: Any) -> None:
        launch(self, kernel, *rest, **options)
        launched.append(kernel.instantiation.kernel)

    def failing(self: CusimStream) -> None:  # as a GPU's does after an illegal access
        if launched[-1:] == ["global_pool"]:
            raise FaultError("an illegal memory access was encountered")
        synchronize(self)

    monkeypatch.setattr(CusimDevice, "launch", launching)
    monkeypatch.setattr(CusimStream, "synchronize", failing)
    b = GraphBuilder(0, x=(3, 5, 5))
    pooled = b.pool("pooled", b.conv("c", "x", 4, 3), PoolKind.MAX, 5)
    classifier = classifier_of(b.build(b.reshape("flat", pooled, (4,))))
    cusim = CusimDevice()
    with pytest.raises(EngineError, match=r"step \S*pooled \(global_pool<.*illegal memory"):
        opened(classifier, cusim)
    cusim.close()


@needs_shared
def test_squeezenet_names_photographs_as_onnxruntime_does(device: Device) -> None:
    classifier = load_classifier(SQUEEZENET, overrides={"preset": "caffe", "precision": "fp32"})
    simulated = device.architecture == "cusim"  # which takes seconds for an image
    images = np.stack(
        [
            prepare_image(file.read_bytes(), classifier.preprocessing, LIMITS).run()
            for file in photographs(40 if simulated else 10)
        ]
    )
    most = 1 if simulated else 8
    engine = opened(classifier, device, max_batch=most)
    reference = open_engine(classifier, device=DeviceKind.CPU, max_batch=1)
    expected = np.concatenate([reference.run(image[np.newaxis]).scores for image in images])
    assert len(images) == (5 if simulated else 20)
    begin = 0
    while begin < len(images):
        n = min(begin % most + 1, len(images) - begin)
        part = slice(begin, begin + n)
        ours, theirs = engine.run(images[part]).scores, expected[part]
        assert (ours.argmax(axis=1) == theirs.argmax(axis=1)).all()
        allowed = score_tolerance(classifier, float(theirs.min()), heuristic(device), n)
        assert relative_error(ours, theirs) <= allowed
        begin += n
    engine.close()


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
        for name in LIGHT_NETWORKS
    ],
)
def test_a_light_network_agrees_with_the_reference(device: Device, name: str) -> None:
    _check_network(device, network_of(name, light_network(name)))


@pytest.mark.slow
def test_fully_connected_layers_of_4096_agree_with_the_reference(device: Device) -> None:
    _check_network(device, network_of("AlexNet", light.light_network("bvlc_alexnet")))


def _check_network(device: Device, classifier: Classifier) -> None:
    engine = opened(classifier, device)
    images = pixels(classifier, 1)
    tolerance = network_tolerance(classifier.network.graph)
    assert (
        relative_error(engine.run(images).scores, reference_scores(classifier, images)) < tolerance
    )
    engine.close()


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_whatever_graph_is_drawn_the_engine_computes_it(
    device: Device, data: st.DataObject
) -> None:
    graph = with_one_output(Draw(data).graph())
    n = data.draw(st.integers(1, 3), "n")
    classifier = classifier_of(graph)
    engine = opened(classifier, device, max_batch=n)
    images = pixels(classifier, n)
    expected = reference_scores(classifier, images)
    if np.abs(expected).max() < 1e6:  # products of products soon leave what float32 resolves
        np.testing.assert_allclose(
            engine.run(images).scores, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max()
        )
    engine.close()


def test_prologues_read_slices_and_sums_at_every_n(device: Device) -> None:
    b, gelu = GraphBuilder(0, x=(3, 6, 5)), Activation(ActivationKind.GELU)
    stem = b.conv("stem", "x", 12, 3)
    narrow = b.conv("narrow", b.scale_shift("n1", stem, RELU), 8, 1)
    grown = b.concat("grown", stem, b.conv("more", b.activate("r", narrow, RELU), 8, 3))
    scale, shift = (b.noise(role, (20, 1, 1)) for role in "gh")
    normal = {"x": grown, "scale": scale, "shift": shift, "axes": (0,), "epsilon": 1e-6}
    wide = b.conv("wide", b.add(Normalise, "n2", (20, 6, 5), **normal), 36, 1, activation=gelu)
    y = b.binary("y", BinaryOp.ADD, grown, b.conv("back", wide, 20, 1))
    scores = b.conv("scores", b.scale_shift("n3", y, RELU), 4, 1)
    classifier = classifier_of(b.build(b.reshape("flat", scores, (4 * 6 * 5,))))
    prologues = [
        node.problem.prologue
        for node in classifier.rewritten.graph.nodes
        if isinstance(node, Conv) and node.problem.prologue
    ]
    assert prologues == [Prologue(None, RELU), Prologue(1e-6), Prologue(None, RELU)]
    engine = opened(classifier, device, max_batch=3)
    for n in (1, 2, 3):
        images = pixels(classifier, n)
        error = relative_error(engine.run(images).scores, reference_scores(classifier, images))
        assert error < network_tolerance(classifier.network.graph)
    engine.close()


def test_a_network_that_reads_nhwc_is_run(device: Device) -> None:
    b = GraphBuilder(0, x=(6, 5, 3))
    image = b.transpose("image", "x", 2, 0, 1)
    scores = b.reshape("flat", b.conv("conv", image, 4, 3), (4 * 6 * 5,))
    classifier = classifier_of(b.build(scores), Layout.NHWC)
    engine = opened(classifier, device, max_batch=2)
    images = pixels(classifier, 2)
    error = relative_error(engine.run(images).scores, reference_scores(classifier, images))
    assert error < network_tolerance(classifier.network.graph)
    engine.close()


@pytest.mark.parametrize(
    ("precision", "tolerance"), [(Precision.FP32, 1e-5), (Precision.FP16, 1e-3)]
)
@pytest.mark.parametrize("layout", list(Layout))
def test_tensors_are_taken_as_they_are_alone_and_among_pixels(
    device: Device, layout: Layout, precision: Precision, tolerance: float
) -> None:
    b = GraphBuilder(0, x=(3, 6, 5) if layout is Layout.NCHW else (6, 5, 3))
    value = "x" if layout is Layout.NCHW else b.transpose("turned", "x", 2, 0, 1)
    flat = b.reshape("flat", b.pool("p", b.conv("c", value, 4, 3), PoolKind.MAX, 2), (4 * 5 * 4,))
    classifier = classifier_of(b.build(b.gemm("scores", flat, 7)), layout)
    engine = opened(replace(classifier, precision=precision), device, max_batch=3)
    images = pixels(classifier, 3)
    tensors = normalised(images, classifier.preprocessing)
    expected = engine.run(images).scores
    np.testing.assert_allclose(engine.run(tensors).scores, expected, rtol=tolerance, atol=tolerance)
    mixed = engine.run([tensors[0], images[1], tensors[2]]).scores
    np.testing.assert_allclose(mixed, expected, rtol=tolerance, atol=tolerance)
    engine.close()

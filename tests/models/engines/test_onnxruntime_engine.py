"""The CPU engine: pixels in, scores out, at every N."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models import (
    DeviceKind,
    EngineError,
    OutputKind,
    load_classifier,
    open_engine,
)
from models.engines import onnxruntime_engine
from models.engines.onnxruntime_engine import OnnxRuntimeEngine, SessionModel
from models.errors import ModelError
from models.preprocessing import normalised
from models.session import open_session
from tests.support.onnx_models import run_onnxruntime

RNG = np.random.default_rng(3)
FILTER = RNG.normal(0, 0.2, (5, 3, 3, 3)).astype(np.float32)
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def small(layout: str = "nchw", *, softmax: bool = False) -> onnx.ModelProto:
    """Conv, global average, flatten: 5 classes of 16×16 images."""
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["c"], ["p"]),
        helper.make_node("Flatten", ["p"], ["scores"]),
    ]
    shape = [1, 3, 16, 16]
    if layout == "nhwc":
        nodes[0].input[0] = "nchw"
        nodes.insert(0, helper.make_node("Transpose", ["image"], ["nchw"], perm=[0, 3, 1, 2]))
        shape = [1, 16, 16, 3]
    if softmax:
        nodes[-1].output[0] = "logits"
        nodes.append(helper.make_node("Softmax", ["logits"], ["scores"], axis=1))
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 5])],
        [numpy_helper.from_array(FILTER, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def save(folder: Path, model: onnx.ModelProto, description: str = "") -> Path:
    path = folder / "small.onnx"
    path.write_bytes(model.SerializeToString())
    text = f'preset = "imagenet"\nmean = {list(MEAN)}\nstd = {list(STD)}\n{description}'
    path.with_suffix(".toml").write_text(text)
    return path


def pixels(n: int) -> NDArray[np.uint8]:
    return RNG.integers(0, 256, (n, 16, 16, 3), np.uint8)


def expected_scores(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    x = (images / 255 - np.array(MEAN)) / np.array(STD)
    x = x.transpose(0, 3, 1, 2).astype(np.float32)
    rows = [run_onnxruntime(small(), {"image": x[i : i + 1]})["scores"] for i in range(len(x))]
    return np.concatenate(rows)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_pixels_are_normalised_in_the_engine_at_every_n(tmp_path: Path, layout: str) -> None:
    classifier = load_classifier(save(tmp_path, small(layout)))
    engine = open_engine(classifier, device=DeviceKind.CPU, max_batch=8)
    engine.warm_up()
    for n in range(1, 9):
        images = pixels(n)
        scores = engine.run(images).scores
        assert scores.shape == (n, 5)
        assert scores.dtype == np.float32
        np.testing.assert_allclose(scores, expected_scores(images), rtol=1e-4, atol=1e-5)
    engine.close()


def test_the_engine_says_where_it_runs_and_what_it_gives(tmp_path: Path) -> None:
    engine = open_engine(
        load_classifier(save(tmp_path, small())), device=DeviceKind.AUTO, max_batch=4, threads=1
    )
    assert engine.device.startswith("cpu (ONNX Runtime")
    assert (engine.max_batch, engine.classes) == (4, 5)


def _fake_times(monkeypatch: pytest.MonkeyPatch, *times: tuple[float, float]) -> None:
    """Let each comparison run both ways, and find these times instead of real ones."""
    found = iter(times)

    def fastest(*ways: Callable[[], object]) -> tuple[float, float]:
        for run in ways:
            run()
        return next(found)

    monkeypatch.setattr(onnxruntime_engine, "_fastest", fastest)


def test_quick_ways_are_compared_when_they_are_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are tried in turns, and each way's shortest time counts."""
    called: list[str] = []
    seconds = iter([0.004, 0.002, 0.001, 0.0015, 0.0005, 0.002, 1.0])
    monkeypatch.setattr(onnxruntime_engine, "_seconds", lambda run: (run(), next(seconds))[1])
    ways = [lambda name=name: called.append(name) for name in "ab"]
    assert onnxruntime_engine._fastest(*ways) == [0.0005, 0.0015]
    assert called == [*"ababab"]
    quick = iter([0.001, 0.001] * 4 + [0.0009, 0.0008, 0.002, 0.002])
    monkeypatch.setattr(onnxruntime_engine, "_seconds", lambda _: next(quick))
    assert onnxruntime_engine._fastest(*ways) == [0.0009, 0.0008]


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize(
    ("alone_s", "apart_s", "apart"),
    [(1.0, 0.5, True), (1.0, 1.03, True), (1.0, 1.04, False), (1e-4, 0.5, False)],
)
def test_images_go_side_by_side_unless_that_is_clearly_slower(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    threads: int,
    alone_s: float,
    apart_s: float,
    apart: bool,
) -> None:
    """The measurement decides, and with either choice every image gets its own scores. One
    thread runs the batches of a quick model."""
    _fake_times(monkeypatch, (alone_s, alone_s), (1.0, apart_s))
    classifier = load_classifier(save(tmp_path, small()))
    others = set(threading.enumerate())
    engine = OnnxRuntimeEngine(SessionModel.of(classifier), max_batch=8, threads=threads)
    engine.warm_up()
    assert bool(set(threading.enumerate()) - others) is apart
    singles = []
    run_one = engine._arrays

    def watched(session: Any, images: NDArray[np.uint8], outputs: Any) -> Any:
        singles.append(len(images))
        return run_one(session, images, outputs)

    monkeypatch.setattr(engine, "_arrays", watched)
    for n in range(1, 9):
        images = pixels(n)
        singles.clear()
        scores = engine.run(list(images) if n % 2 else images).scores
        np.testing.assert_allclose(scores, expected_scores(images), rtol=1e-4, atol=1e-5)
        rest = n % threads
        parts = [1] * (n - rest) + [rest] * bool(rest)
        assert singles == (parts if apart and n >= threads else [n])
    assert len(set(threading.enumerate()) - others) <= threads - 1
    engine.close()


@pytest.mark.parametrize(
    ("together", "alone", "chosen"),
    [
        (0.00010, 0.00006, True),
        (0.00010, 0.00010, True),
        (0.00006, 0.00010, False),
        (0.00200, 0.00200, False),  # no quick model: it was perhaps measured beside other work
    ],
)
def test_one_thread_computes_a_quick_model_where_that_is_as_fast(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    together: float,
    alone: float,
    chosen: bool,
) -> None:
    opened: list[int] = []
    real = open_session

    def opening(data: bytes, threads: int, *, exact: bool = False) -> Any:
        opened.append(threads)
        return real(data, threads, exact=exact)

    _fake_times(monkeypatch, (together, alone), (1.0, 1.1))
    monkeypatch.setattr(onnxruntime_engine, "open_session", opening)
    model = SessionModel.of(load_classifier(save(tmp_path, small())))
    engine = OnnxRuntimeEngine(model, max_batch=4, threads=2)
    several, one = engine._session, engine._single
    assert opened == [2, 1]
    engine.warm_up()
    assert engine._session is (one if chosen else several)
    images = pixels(3)
    expected = expected_scores(images)
    np.testing.assert_allclose(engine.run(images).scores, expected, rtol=1e-4, atol=1e-5)
    again = engine.proved(model).open()  # as a new version's, which measures nothing
    assert opened == [2, 1, 1 if chosen else 2]
    again.warm_up()
    np.testing.assert_allclose(again.run(images).scores, expected, rtol=1e-4, atol=1e-5)
    engine.close()
    again.close()


def test_what_goes_wrong_beside_is_an_error_of_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = SessionModel.of(load_classifier(save(tmp_path, small())))
    engine = OnnxRuntimeEngine(model, max_batch=4, threads=2, side_by_side=True, one_thread=False)
    engine.warm_up()
    here, both = threading.get_ident(), threading.Barrier(2, timeout=30)

    def fails_elsewhere(_: object, images: NDArray[np.uint8], __: object) -> Any:
        both.wait()
        if threading.get_ident() != here:
            raise RuntimeError("no more memory")
        return [np.zeros((len(images), 5), np.float32)]

    monkeypatch.setattr(engine, "_arrays", fails_elsewhere)
    with pytest.raises(EngineError, match=r"a batch of size 2: no more memory"):
        engine.run(pixels(2))


@pytest.mark.parametrize("shape", [(0, 16, 16, 3), (5, 16, 16, 3), (1, 16, 15, 3), (1, 3, 16, 16)])
def test_a_batch_of_the_wrong_shape_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    classifier = load_classifier(save(tmp_path, small()))
    engine = OnnxRuntimeEngine(SessionModel.of(classifier), max_batch=4)
    with pytest.raises(EngineError, match="takes 1 to 4 images of"):
        engine.run(np.zeros(shape, np.uint8))


def test_onnxruntime_leaves_no_trace_of_telemetry_and_prints_nothing(tmp_path: Path) -> None:
    code = (
        "from models import BUILT_IN_MODEL as m, load_classifier as l, open_engine as o, DeviceKind"
    )
    code += "; o(l(m), device=DeviceKind.CPU, max_batch=1).warm_up()"
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    run = subprocess.run(
        [sys.executable, "-c", code], check=True, env=environment, capture_output=True
    )
    assert list(tmp_path.rglob("*onnxruntime*")) == []
    assert (run.stdout, run.stderr) == (b"", b"")


def test_a_closed_engine_says_so(tmp_path: Path) -> None:
    engine = OnnxRuntimeEngine(
        SessionModel.of(load_classifier(save(tmp_path, small()))), max_batch=4
    )
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.run(pixels(1))


def test_a_device_that_is_not_there_is_an_error_that_names_what_to_do(tmp_path: Path) -> None:
    classifier = load_classifier(save(tmp_path, small()))
    with pytest.raises(EngineError, match="--device cpu"):
        open_engine(classifier, device=DeviceKind.CUDA, max_batch=1)


def test_a_network_that_ends_in_softmax_gives_probabilities_whatever_was_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = load_classifier(save(tmp_path, small(), 'output = "logits"'))
    assert plain.preprocessing.output is OutputKind.LOGITS
    ending = load_classifier(save(tmp_path, small(softmax=True), 'output = "logits"'))
    assert ending.preprocessing.output is OutputKind.PROBABILITIES
    assert 'output = "logits" is overruled, because Softmax bounds its output' in caplog.text


def test_labels_that_do_not_fit_the_classes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("a\nb\nc\n")
    path = save(tmp_path, small(), 'labels = "labels.txt"')
    with pytest.raises(ModelError, match=r"3 labels in labels\.txt, but the model has 5 classes"):
        load_classifier(path)


def test_a_second_output_that_has_positions_is_not_the_scores(tmp_path: Path) -> None:
    model = small()
    model.graph.output.add().CopyFrom(
        helper.make_tensor_value_info("c", TensorProto.FLOAT, [1, 5, 16, 16])
    )
    (scores,) = load_classifier(save(tmp_path, model)).network.graph.outputs
    assert scores == small().graph.output[0].name


def test_a_model_with_open_sizes_takes_them_from_its_description(tmp_path: Path) -> None:
    model = small()
    for index, name in enumerate(("N", None, "h", "w")):
        if name:
            model.graph.input[0].type.tensor_type.shape.dim[index].dim_param = name
    classifier = load_classifier(save(tmp_path, model, "size = 16\nresize = 16"))
    engine = OnnxRuntimeEngine(SessionModel.of(classifier), max_batch=2)
    images = pixels(2)
    np.testing.assert_allclose(
        engine.run(images).scores, expected_scores(images), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("threads", [1, 2])
def test_tensors_are_taken_as_they_are_alone_and_among_pixels(
    tmp_path: Path, layout: str, threads: int
) -> None:
    classifier = load_classifier(save(tmp_path, small(layout)))
    engine = OnnxRuntimeEngine(SessionModel.of(classifier), max_batch=4, threads=threads)
    engine.warm_up()
    images = RNG.integers(0, 256, (4, 16, 16, 3)).astype(np.uint8)
    tensors = normalised(images, classifier.preprocessing)
    expected = engine.run(images).scores
    np.testing.assert_allclose(engine.run(tensors).scores, expected, atol=1e-5)
    mixed = [tensors[0], images[1], images[2], tensors[3]]
    np.testing.assert_allclose(engine.run(mixed).scores, expected, atol=1e-5)
    np.testing.assert_allclose(engine.run([tensors[0]]).scores, expected[:1], atol=1e-5)
    with pytest.raises(EngineError, match="float64"):
        engine.run([tensors[0].astype(np.float64)])

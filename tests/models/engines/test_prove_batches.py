"""No image of a batch changes another's scores: this is known for a model, or tested during
warm-up."""

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from models import (
    BUILT_IN_MODEL,
    DeviceKind,
    DeviceLostError,
    Engine,
    EngineError,
    load_classifier,
    open_engine,
)
from models.classifier import Classifier
from models.engines.engine import Batch, Results
from models.engines.onnxruntime_engine import OnnxRuntimeEngine, SessionModel
from models.engines.original import Original
from models.engines.prove import check_images, prove
from models.engines.tolerance import relative_error, repeat_tolerance
from tests.support.models.batch_mixers import MIXERS, mixer
from tests.support.networks import LIGHT_NETWORKS, SQUEEZENET, light_network, needs_shared

MAX_BATCH = 4


def saved(folder: Path, name: str) -> Path:
    path = folder / "mixer.onnx"
    path.write_bytes(mixer(name).SerializeToString())
    return path


def loaded(folder: Path, name: str) -> Classifier:
    return load_classifier(saved(folder, name), overrides={"preset": "digits"})


def digits_engine() -> Engine:
    return open_engine(
        load_classifier(BUILT_IN_MODEL), device=DeviceKind.CPU, max_batch=MAX_BATCH, threads=1
    )


@pytest.fixture(params=MIXERS)
def mixing(tmp_path: Path, request: pytest.FixtureRequest) -> Classifier:
    return loaded(tmp_path, request.param)


@pytest.mark.parametrize(("threads", "largest"), [(1, 1), (2, MAX_BATCH)])
def test_a_model_whose_nodes_mix_a_batch_runs_one_image_at_a_time(
    mixing: Classifier,
    tmp_path: Path,
    threads: int,
    largest: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Images run in parallel if there are threads for it, and otherwise in batches of one."""
    monkeypatch.setattr(OnnxRuntimeEngine, "_is_as_fast_apart", lambda *_: True)
    engine = open_engine(mixing, device=DeviceKind.CPU, max_batch=MAX_BATCH, threads=threads)
    assert "one image at a time" in caplog.text
    engine.warm_up()
    assert engine.max_batch == largest
    original = Original(tmp_path / "mixer.onnx", mixing)
    images = check_images(MAX_BATCH, mixing.preprocessing.image_shape, seed=5)
    expected = np.stack([original.run(image) for image in images])
    for n in range(1, largest + 1):
        for order in (slice(None), slice(None, None, -1)):
            scores = engine.run(images[:n][order]).scores
            assert relative_error(scores, expected[:n][order]) < 1e-5
    engine.close()


def test_the_proof_catches_it_where_a_batch_is_run_as_one(
    mixing: Classifier, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = OnnxRuntimeEngine(SessionModel.of(mixing), max_batch=MAX_BATCH, threads=1)
    monkeypatch.setattr(engine, "_one_by_one", False)
    with caplog.at_level(logging.WARNING, "convoy"):
        assert prove(engine, mixing) == 1
    (record,) = caplog.records
    says = f"mixer on {engine.device} runs one image at a time: at batch size 2, scores differ from"
    assert record.getMessage().startswith(f"{says} the scores of each image alone by ")
    engine.close()


def test_a_flaw_of_the_largest_batch_or_of_tensors_alone_is_caught(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    digits = load_classifier(BUILT_IN_MODEL)
    run = OnnxRuntimeEngine.run

    def spoiled(spoils: Callable[[Batch], bool]) -> int:
        def running(self: OnnxRuntimeEngine, images: Batch) -> Results:
            results = run(self, images)
            rolled = Results(np.roll(results.scores, 1, axis=0))
            return rolled if spoils(images) else results

        monkeypatch.setattr(OnnxRuntimeEngine, "run", running)
        engine = open_engine(digits, device=DeviceKind.CPU, max_batch=MAX_BATCH, threads=1)
        engine.warm_up()
        engine.close()
        return engine.max_batch

    assert spoiled(lambda _: False) == MAX_BATCH
    assert caplog.text == ""
    assert spoiled(lambda images: len(images) == MAX_BATCH) == 1
    assert "at batch size 4, scores differ" in caplog.text
    assert spoiled(lambda images: images[0].dtype == np.float32) == 1


@pytest.mark.parametrize(
    ("error", "batch"), [(EngineError, 1), (DeviceLostError, None)], ids=["failed", "lost"]
)
def test_an_engine_that_fails_on_a_batch_takes_one_image_at_a_time(
    error: type[EngineError],
    batch: int | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = OnnxRuntimeEngine.run

    def failing(self: OnnxRuntimeEngine, images: Batch) -> Results:
        if len(images) > 2:
            raise error("a Reshape to 2 images")
        return run(self, images)

    monkeypatch.setattr(OnnxRuntimeEngine, "run", failing)
    engine = digits_engine()
    if batch is None:
        with pytest.raises(error):
            engine.warm_up()
    else:
        engine.warm_up()
        assert engine.max_batch == batch
        assert "at batch size 3, a Reshape to 2 images" in caplog.text
    engine.close()


def test_a_model_that_cannot_tell_images_apart_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = digits_engine()
    monkeypatch.setattr(
        OnnxRuntimeEngine, "run", lambda _, images: Results(np.ones((len(images), 10), np.float32))
    )
    engine.warm_up()
    assert engine.max_batch == MAX_BATCH
    assert "digits gives 4 different images the same scores" in caplog.text
    engine.close()


def test_scores_that_are_no_numbers_are_the_same_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = OnnxRuntimeEngine.run

    def overflowing(self: OnnxRuntimeEngine, images: Batch) -> Results:
        results = run(self, images)
        results.scores[:, 0], results.scores[:, 1] = np.nan, np.inf
        return results

    engine = digits_engine()
    monkeypatch.setattr(OnnxRuntimeEngine, "run", overflowing)
    engine.warm_up()
    assert engine.max_batch == MAX_BATCH
    assert "at N =" not in caplog.text
    engine.close()


@pytest.mark.parametrize("expected", [0.0, np.inf, np.nan])
def test_equal_scores_have_no_error_and_others_have_one(expected: float) -> None:
    scores = np.array([[expected, expected], [1, 2]], np.float32)
    assert relative_error(scores, scores) == 0
    assert not relative_error(scores, scores[::-1]) <= 1e30


def keeps_apart(classifier: Classifier) -> None:
    """Full batches are tested with images whose scores differ clearly."""
    engine = OnnxRuntimeEngine(SessionModel.of(classifier), max_batch=MAX_BATCH, threads=1)
    engine.warm_up()
    assert prove(engine, classifier) == MAX_BATCH
    images = check_images(MAX_BATCH, classifier.preprocessing.image_shape)
    scores = engine.run(images).scores
    allowed = repeat_tolerance(classifier, scores.min())
    for a in range(MAX_BATCH):
        for b in range(a):
            assert relative_error(scores[a : a + 1], scores[b : b + 1]) > 10 * allowed
    engine.close()


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet", "bvlc_alexnet"])
def test_networks_keep_their_images_apart(tmp_path: Path, name: str) -> None:
    keeps_apart(saved_light(tmp_path, name))


@pytest.mark.slow
@pytest.mark.parametrize("name", LIGHT_NETWORKS)
def test_every_network_keeps_its_images_apart(tmp_path: Path, name: str) -> None:
    keeps_apart(saved_light(tmp_path, name, softmax=False))


@needs_shared
def test_a_trained_network_keeps_its_images_apart() -> None:
    keeps_apart(load_classifier(SQUEEZENET, overrides={"preset": "caffe"}))


def saved_light(folder: Path, name: str, *, softmax: bool = True) -> Classifier:
    """Load a network with random weights, which may saturate its softmax: one class has probability
    1 for every image."""
    model = light_network(name)
    if not softmax and model.graph.node[-1].op_type == "Softmax":
        model.graph.output[0].name = model.graph.node.pop().input[0]
    path = folder / "light.onnx"
    path.write_bytes(model.SerializeToString())
    return load_classifier(path, overrides={"preset": "imagenet"})
